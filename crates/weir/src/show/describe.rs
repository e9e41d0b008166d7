//! Policies and interfaces in a few words, for lines and tables.

use std::time::{Duration, UNIX_EPOCH};

use weir_api::LastReload;
use weir_config::policy_words;
use weir_core::forecast::{REPEATS, Would};
use weir_core::listener::{Admit, DEFAULT_INTERVAL, Establish, Front, HalfClose, Listener, Mode};
use weir_core::overload::{Waits, share};
use weir_core::rfc3339::Rfc3339;
pub use weir_core::units::count;
use weir_core::units::{about_duration, format_duration};
use weir_core::verdict::{ADMITS, Counters, SYNS, Verdict};
use weir_core::word::Word;

/// Names that a line gives before it only counts the rest.
const EXAMPLES: usize = 6;

/// `reserv rst-syn, admit wait 20ms`, and whatever else is not the default.
pub fn policy(listener: &Listener) -> String {
    let mut words = policy_words(listener);
    words += &match listener.admit {
        _ if listener.establish == Establish::Default => String::new(),
        Admit::Queue => ", admit queue".to_owned(),
        Admit::Wait => format!(", admit wait {}", format_duration(listener.target_wait)),
    };
    let waits = listener.admit == Admit::Wait && listener.establish != Establish::Default;
    if waits && listener.interval != DEFAULT_INTERVAL {
        words += &format!(", interval {}", format_duration(listener.interval));
    }
    if listener.overbook_1024() > 0 {
        words += &format!(", overbook {}", listener.overbook);
    }
    if listener.half_close != HalfClose::Keep {
        words += &format!(", half-close {}", listener.half_close.word());
    }
    if listener.reason {
        words += ", reason";
    }
    if listener.front == Front::Xdp {
        words += ", front xdp";
    }
    words
}

/// `lo, eth0, eth1 and 12 more`.
pub fn interfaces<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.into_iter().collect();
    if names.is_empty() {
        return "no interface yet".to_owned();
    }
    examples(&names)
}

/// The first names, and how many more there are.
pub fn examples(names: &[&str]) -> String {
    if names.len() <= EXAMPLES {
        return names.join(", ");
    }
    let rest = names.len() - EXAMPLES;
    format!("{} and {rest} more", names[..EXAMPLES].join(", "))
}

/// `a`, `a and b`, `a, b and c`
pub fn list(words: &[String]) -> String {
    match words {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// `3 listeners` of three, else `1 of 3 listeners`.
pub fn part(n: usize, of: usize, thing: &str) -> String {
    match n == of {
        true => count(of, thing),
        false => format!("{n} of {}", count(of, thing)),
    }
}

/// Connections that were let in.
pub fn admitted(counters: &Counters) -> u64 {
    ADMITS.iter().map(|verdict| counters.get(*verdict)).sum()
}

/// `55 %`; `0.3 %` of few.
pub fn percent(share: f64) -> String {
    let percent = 100.0 * share;
    match percent {
        0.0 => "0 %".to_owned(),
        ..0.995 => format!("{:.1} %", percent.max(0.1)),
        _ => format!("{percent:.0} %"),
    }
}

/// `admitted 70, refused 30 (30 %), answered 5 with a cookie`; in observe mode what would have been done, of connections that
/// are each counted once as far as `would` is known.
pub fn totals(mode: Mode, counters: &Counters, would_do: Option<Would>) -> String {
    let answered = counters.cookies_sent();
    let would = match mode {
        Mode::Enforce => "",
        Mode::Observe => "would have ",
    };
    // What is reset at its FIN was served before.
    let reset = counters.get(Verdict::FinReset);
    let (admitted, refused) = match would_do {
        Some(would) => (would.offered.saturating_sub(would.refused), would.refused),
        None => (admitted(counters), counters.refused() - reset),
    };
    let syns: u64 = SYNS.iter().map(|verdict| counters.get(*verdict)).sum();
    if would_do.is_some_and(|would| would.offered == 0) && syns > 0 {
        return format!(
            "would have refused: not known yet: none has been counted since weir observes. Of a queue that is full then it counts from {} on: \
             until then most SYNs repeat earlier ones",
            format_duration(REPEATS)
        );
    }
    let percent = percent(share(refused, admitted));
    let mut text = format!("admitted {admitted}, {would}refused {refused} ({percent})");
    if answered > 0 {
        text += &format!(", {would}answered {answered} with a cookie");
    }
    if reset > 0 {
        text += &format!(", {would}reset {reset} at the client's FIN");
    }
    text
}

/// Why the verdicts of observe mode say more than what enforcing would have refused; `None` where they do not.
pub fn observed_verdicts(counters: &Counters, would_do: Option<Would>) -> Option<&'static str> {
    let would = would_do?;
    (counters.refused() > would.refused).then_some(
        "the verdicts are more: each judges one SYN, repeats too, by the queue as it is, which enforcing would have kept short",
    )
}

/// A line that the config file is not in force as it is, and why, after `before`; empty if it is in force.
pub fn failed_reload(reload: Option<&LastReload>, before: &str) -> String {
    let Some(reload) = reload.filter(|reload| !reload.succeeded) else {
        return String::new();
    };
    let time = UNIX_EPOCH + Duration::from_millis(reload.at_unix_ms);
    let why = reload.failure.as_deref().unwrap_or_default();
    let why = why.lines().next().unwrap_or_default();
    let time = Rfc3339(time);
    format!(
        "{before}the reload of {time:.0} failed, and what was in force before has stayed: {why}\n"
    )
}

/// A line that a reload is undone in so many seconds, after `before`; empty if it is not.
pub fn unconfirmed(seconds: Option<u64>, before: &str) -> String {
    seconds.map_or(String::new(), |s| {
        format!("{before}in {s} s the config file before is in force again, unless `weir reload` confirms this one\n")
    })
}

/// A line that nobody is refused for so many seconds, after `before`; empty if the file decides.
pub fn observes(seconds: Option<u64>, before: &str) -> String {
    seconds.map_or(String::new(), |s| {
        format!("{before}for {s} s weir refuses nobody (`weir observe`); `weir reload` ends that\n")
    })
}

/// `wait for accept(): 43 ms at most, 12 ms on average`; `None` if nothing was seen to wait.
pub fn waits(waits: &Waits) -> Option<String> {
    let mean = waits.mean()?;
    let (peak, mean) = (about_duration(waits.peak), about_duration(mean));
    Some(format!(
        "wait for accept(): {peak} at most, {mean} on average"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_config::parse;

    #[test]
    fn a_policy_is_the_papers_words_and_what_differs_from_the_default() {
        let words = |keys: &str| {
            let file = format!("[[listener]]\naddress = \"*:80\"\n{keys}\n");
            policy(&parse("f", &file).unwrap().listeners[0])
        };
        assert_eq!(words(""), "reserv rst-syn, admit wait 20ms");
        assert_eq!(
            words("establish = \"no-syn-drop\""),
            "no-syn-drop, admit wait 20ms"
        );
        assert_eq!(
            words(
                "reject_syn = \"drop\"\nadmit = \"queue\"\noverbook = 0.5\nhalf_close = \"reset\""
            ),
            "reserv, admit queue, overbook 0.5, half-close reset"
        );
        assert_eq!(
            words("interval = \"1s\"\nreason = true\nfront = \"xdp\""),
            "reserv rst-syn, admit wait 20ms, interval 1s, reason, front xdp"
        );
        assert_eq!(
            words("admit = \"queue\"\ninterval = \"1s\""),
            "reserv rst-syn, admit queue",
            "an interval that admit = queue does not use"
        );
    }

    #[test]
    fn a_cookie_that_was_taken_is_admitted_and_not_answered_again() {
        let mut counters = Counters::default();
        counters.0[Verdict::SynAdmitted as usize] = 84;
        counters.0[Verdict::SynResetFull as usize] = 313;
        counters.0[Verdict::CookieSent as usize] = 4;
        counters.0[Verdict::CookieSentFlood as usize] = 1970;
        counters.0[Verdict::CookieAccepted as usize] = 92;
        assert_eq!(
            totals(Mode::Enforce, &counters, None),
            "admitted 176, refused 313 (64 %), answered 1974 with a cookie"
        );
    }

    #[test]
    fn of_an_incident_that_weir_comes_into_the_share_is_not_known_at_once_and_verdicts_are_explained()
     {
        let mut counters = Counters::default();
        let would = |offered, refused| Some(Would { offered, refused });
        let text = |counters: &Counters, would| totals(Mode::Observe, counters, would);
        let nothing = "admitted 0, would have refused 0 (0 %)";
        assert_eq!(text(&counters, would(0, 0)), nothing);
        counters.0[Verdict::SynResetFull as usize] = 9554;
        assert!(
            text(&counters, would(0, 0)).contains("it counts from 8s on"),
            "{}",
            text(&counters, would(0, 0))
        );
        let known = text(&counters, would(3000, 1975));
        assert_eq!(known, "admitted 1025, would have refused 1975 (66 %)");
        assert!(observed_verdicts(&counters, would(3000, 1975)).is_some());
        assert_eq!(
            observed_verdicts(&counters, None),
            None,
            "they are what was done"
        );
        assert_eq!(observed_verdicts(&Counters::default(), would(9, 0)), None);
    }

    #[test]
    fn long_lists_of_interfaces_are_counted() {
        assert_eq!(interfaces(["lo", "eth0"]), "lo, eth0");
        assert_eq!(interfaces([]), "no interface yet");
        let many: Vec<String> = (0..9).map(|i| format!("v{i}")).collect();
        let text = interfaces(many.iter().map(String::as_str));
        assert_eq!(text, "v0, v1, v2, v3, v4, v5 and 3 more");
    }
}
