//! Suggested settings in sentences, and as a table of the config file with the sentences as comments.

pub mod file;
pub mod quic;

use std::fmt::Write as _;
use std::time::Duration;

use weir_api::{Profile as Figures, RefusedSource, ShareOver, SuggestedKey, Suggestion};
use weir_config::{Table, wrap};
use weir_core::class::Class;
use weir_core::listener::{Admit, Establish, Listener, Mode, ResidenceMode};
use weir_core::profile::{Profile, Source};
use weir_core::suggest::{
    self, Backlog, LEAST_CONNECTIONS, Limited, Missing, SMALL_BACKLOG, TargetWait, WAITING,
};
use weir_core::units::{about_duration, format_duration};
use weir_core::word::Word;

use crate::show::describe::{count, percent};

/// Width of the comments.
const WIDTH: usize = 100;
/// A target from which on many clients' patience is shorter.
const LONG_TARGET: Duration = Duration::from_secs(1);
/// The name of a class for one source.
const CLASS: &str = "busiest";

/// What is suggested for a listener that had the settings `asked` while it was looked at.
pub fn suggestion(asked: &Listener, profile: &Profile, least: Duration) -> Suggestion {
    let decided = suggest::suggest(asked, profile);
    let mut suggestion = Suggestion {
        listener: asked.name.clone(),
        address: asked.address.to_string(),
        looked_s: profile.looked().as_secs(),
        profile: figures(asked, profile, &decided.over),
        ..Suggestion::default()
    };
    let (looked, connections) = (profile.looked(), profile.connections());
    if let Some(missing) = suggest::missing(looked, connections, least) {
        suggestion.missing = Some(missing_text(looked, connections, "connection", missing));
        suggestion.missing_s = missing_s(missing);
        return suggestion;
    }
    suggestion.keys = keys(asked, profile, &decided);
    suggestion.backlog = decided.backlog.and_then(|backlog| backlog.raise_to);
    suggestion.notes = notes(asked, profile, decided.backlog);
    suggestion.unknown = unknown(asked);
    suggestion.toml = toml(&decided, profile, &suggestion);
    suggestion
}

fn figures(asked: &Listener, profile: &Profile, over: &[(Duration, f64)]) -> Figures {
    let peak = profile.peak();
    let us = |time: Duration| time.as_micros() as u64;
    let over = over.iter().map(|(target, share)| ShareOver {
        target_wait_us: us(*target),
        share: *share,
    });
    let refused = Refused::of(asked, profile);
    let sources = profile.sources().iter().map(|source| RefusedSource {
        source: name_of(source),
        per_second: (source.per_second * 10.0).round() / 10.0,
        share: (source.share * 1000.0).round() / 1000.0,
    });
    Figures {
        mode: asked.mode.word().to_owned(),
        seconds: profile.seconds(),
        connections: profile.connections(),
        refused: refused.all,
        refused_full: refused.full,
        refused_wait: refused.wait,
        flood: profile.flood(),
        rate_median: profile.rate_at(0.5),
        rate_peak: peak.syns,
        queue_limit: profile.queue_limit(),
        full_seconds: profile.full_seconds(),
        queue_length_median: profile.queue_at(0.5),
        peak_queue_length: peak.queue_length,
        peak_half_open: peak.half_open,
        wait_median_us: us(profile.wait_at(0.5)),
        wait_p99_us: us(profile.wait_at(0.99)),
        peak_wait_us: us(peak.wait),
        accepts_per_second: profile.service().map(|service| 1.0 / service.as_secs_f64()),
        over: over.collect(),
        sources: sources.collect(),
    }
}

/// Connections that were refused; of observe mode, that enforcement would have refused.
struct Refused {
    all: u64,
    full: u64,
    wait: u64,
}

impl Refused {
    fn of(asked: &Listener, profile: &Profile) -> Refused {
        match (asked.mode, profile.forecast()) {
            (Mode::Observe, Some(forecast)) => Refused {
                all: forecast.would(profile.over_rate()).refused,
                full: forecast.refused_full(),
                wait: forecast.refused() - forecast.refused_full(),
            },
            _ => Refused {
                all: profile.refused(),
                full: profile.refused_full(),
                wait: profile.refused_wait(),
            },
        }
    }
}

/// `thing`: what has come so many times.
fn missing_text(looked: Duration, came: u64, thing: &str, missing: Missing) -> String {
    let looked = about_duration(looked);
    let some = count(came as usize, thing);
    match missing {
        Missing::Time(time) => {
            let time = about_duration(time);
            format!("weir has looked for {looked} only: let it look for {time} more")
        }
        Missing::Connections(Some(time)) => format!(
            "only {some} came in {looked}, and {LEAST_CONNECTIONS} say something: let it look for about {} more",
            about_duration(time)
        ),
        Missing::Connections(None) => format!("no {thing} came in {looked}"),
    }
}

fn missing_s(missing: Missing) -> Option<u64> {
    match missing {
        Missing::Time(time) | Missing::Connections(Some(time)) => {
            Some(time.as_secs_f64().ceil() as u64)
        }
        Missing::Connections(None) => None,
    }
}

/// A key that was looked into.
fn key<T: Table>(name: &str, asked: &T, suggested: &T, reason: String) -> SuggestedKey {
    let mut all = T::keys().iter();
    let key = all.find(|key| key.name == name).expect("it is a key");
    SuggestedKey {
        key: name.to_owned(),
        now: key.show(asked).to_string(),
        value: key.show(suggested).to_string(),
        reason,
    }
}

fn keys(asked: &Listener, profile: &Profile, decided: &suggest::Suggestion) -> Vec<SuggestedKey> {
    let suggested = &decided.listener;
    let mut keys = Vec::new();
    let mut add = |name, reason| keys.push(key(name, asked, suggested, reason));
    if asked.admit == Admit::Wait {
        add("target_wait", target_reason(asked, profile, decided));
        if suggested.interval != asked.interval {
            add("interval", interval_reason(profile, decided));
        }
    }
    add("mode", mode_reason(asked, profile));
    keys
}

fn target_reason(asked: &Listener, profile: &Profile, decided: &suggest::Suggestion) -> String {
    let now = format_duration(asked.target_wait);
    let ten = |per_second: f64| {
        let time = about_duration(Duration::from_secs_f64(f64::from(WAITING) / per_second));
        let accepts = about(per_second);
        format!(
            "While it is busy the server accepts about {accepts}/s, so {WAITING} connections wait {time}"
        )
    };
    let mut text = match decided.target_wait {
        TargetWait::NothingWaited => {
            format!("No connection was seen to wait for accept(): nothing speaks against {now}.")
        }
        TargetWait::Enough(per_second) => format!("{}: {now} is enough.", ten(per_second)),
        TargetWait::Slow(per_second) => format!(
            "{}, and fewer than that wait by chance now and then: {now} is too short.",
            ten(per_second)
        ),
    };
    if decided.listener.target_wait >= LONG_TARGET
        && decided.listener.target_wait > asked.target_wait
    {
        text += " Take it only if your clients wait for so long: with a shorter one weir has as few wait as keep the server busy.";
    }
    let (refused, all) = (Refused::of(asked, profile).wait, profile.connections());
    let _ = match asked.mode {
        Mode::Observe => write!(text, " {now} would have refused"),
        Mode::Enforce => write!(text, " {now} has refused"),
    };
    let share = percent(refused as f64 / all.max(1) as f64);
    let _ = write!(text, " {share} ({refused} of {all})");
    let others = decided
        .over
        .iter()
        .filter(|(target, _)| *target != asked.target_wait);
    for (target, share) in others {
        let (target, share) = (format_duration(*target), percent(*share));
        let _ = write!(text, ", {target} about {share}");
    }
    text.push('.');
    text
}

fn interval_reason(profile: &Profile, decided: &suggest::Suggestion) -> String {
    let Some((interval, share)) = decided.catches_up else {
        return "It is no shorter than target_wait: with a shorter one weir refuses in bursts, too."
            .to_owned();
    };
    let now = profile.forecast().map_or(0.0, |forecast| forecast.share());
    format!(
        "The server stops for moments and then catches up by itself: with an interval of {} weir refuses about {} of the connections \
         instead of {}. Clients that come in such a moment wait for its end.",
        format_duration(interval),
        percent(share),
        percent(now),
    )
}

fn mode_reason(asked: &Listener, profile: &Profile) -> String {
    let (refused, all) = (Refused::of(asked, profile).all, profile.connections());
    let share = percent(refused as f64 / all.max(1) as f64);
    match asked.mode {
        Mode::Enforce => format!("It has refused {refused} of {all} connections ({share})."),
        Mode::Observe => format!(
            "It would have refused about {refused} of {all} connections ({share}): what came, each once, and the server did not \
             accept while the wait stood."
        ),
    }
}

fn notes(asked: &Listener, profile: &Profile, backlog: Option<Backlog>) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(backlog) = backlog {
        let Backlog {
            sockets,
            now,
            needed,
            raise_to,
            stands,
        } = backlog;
        let (full, seconds) = (profile.full_seconds(), profile.seconds());
        let share = percent(full as f64 / seconds.max(1) as f64);
        let (is_one, looked) = (sockets == 1, about_duration(profile.looked()));
        let of_all = match is_one {
            true => format!("backlog of {now}"),
            false => format!("{sockets} listening sockets, with {now} places together,"),
        };
        notes.push(match raise_to {
            Some(raised) => format!(
                "The server's {of_all} {} too small: in {looked} {} full in {share} of the seconds ({full} of {seconds}), and a burst \
                 needed {needed} places. Raise {} to {raised}, and net.core.somaxconn if that is less, and restart the server \
                 (docs/tuning.md says where).",
                if is_one { "is" } else { "are" },
                if is_one { "the queue was" } else { "their queues were" },
                if is_one { "it" } else { "the backlog of each" },
            ),
            None if stands => format!(
                "The server's {of_all} {} full in {share} of the seconds ({full} of {seconds}), for up to {} s without a break: no burst, \
                 but a server that is slower than its clients. With more places they would only wait for longer.",
                if is_one { "was" } else { "were" },
                profile.longest_full(),
            ),
            None if backlog.is_small() => format!(
                "Whenever weir looked, {needed} of the {now} places of the server's {} were taken at most. Between two looks a burst may \
                 need more, and {} is small: {SMALL_BACKLOG} or more cost nothing (docs/tuning.md says where to set it).",
                if is_one { "backlog".to_owned() } else { format!("{sockets} listening sockets") },
                if is_one { now.to_string() } else { format!("a backlog of {}", now / sockets) },
            ),
            None if is_one => {
                format!("The server's {of_all} is enough: {needed} places were needed at most.")
            }
            None => format!("The server's {of_all} have enough: {needed} places were needed at most."),
        });
    }
    if profile.flood() > 0 && asked.establish == Establish::Reserv {
        notes.push(format!(
            "{} came while half-open connections held most places, as in a SYN flood: establish = \"reserv\" answers them with \
             SYN cookies.",
            count(profile.flood() as usize, "SYN")
        ));
    }
    notes
}

fn unknown(asked: &Listener) -> Vec<String> {
    let mut unknown = vec![
        "What comes at other times: let weir look through the busiest hour of the week.".to_owned(),
        "Short bursts: weir looks at the queue four times a second while connections come."
            .to_owned(),
        "How often clients come that were let in: weir samples only those that it refuses."
            .to_owned(),
    ];
    if asked.residence == ResidenceMode::Off {
        unknown.push(format!(
            "How long {} takes after accept(): weir sees the wait before it only. If clients wait and this queue is short, the queue is \
             inside the server: residence = \"observe\" measures it there (docs/residence.md).",
            asked.name
        ));
    }
    unknown.push("How long your clients wait before they give up: a target_wait that is longer serves nobody.".to_owned());
    unknown
}

fn toml(decided: &suggest::Suggestion, profile: &Profile, suggestion: &Suggestion) -> String {
    let listener = &decided.listener;
    let head = head(listener, profile);
    let mut text = table(&head, listener, &suggestion.keys, &suggestion.notes);
    if let Some(limited) = &decided.class {
        text += "\n";
        text += &class(&listener.name, limited);
    }
    text
}

/// The table of the config file: the keys that are not at their defaults, and those that were looked into with their reasons.
fn table<T: Table>(
    head: &str,
    suggested: &T,
    looked_into: &[SuggestedKey],
    notes: &[String],
) -> String {
    let blank = T::blank();
    let mut text = comment(head) + &format!("[[{}]]\n", T::NAME);
    for key in T::keys() {
        let value = key.show(suggested).to_string();
        let is_given = ["name", "address"].contains(&key.name);
        match looked_into.iter().find(|s| s.key == key.name) {
            Some(suggested) => {
                text += "\n";
                text += &comment(&suggested.reason);
                if suggested.now != suggested.value {
                    text += &comment(&format!("It is {} now.", suggested.now));
                }
            }
            None if !is_given && value == key.show(&blank).to_string() => continue,
            None => {}
        }
        let _ = writeln!(text, "{} = {value}", key.name);
    }
    for note in notes {
        text += "\n";
        text += &comment(note);
    }
    text
}

fn head(listener: &Listener, profile: &Profile) -> String {
    let peak = profile.peak();
    let wait = match peak.wait {
        Duration::ZERO => String::new(),
        wait => format!(", wait {}", about_duration(wait)),
    };
    format!(
        "{} ({}): in {} {} came, about {}/s in the median second and {}/s in the busiest one. At most: queue {}/{}, half-open {}{wait}.",
        listener.name,
        listener.address,
        about_duration(profile.looked()),
        count(profile.connections() as usize, "connection"),
        about(profile.rate_at(0.5) as f64),
        peak.syns,
        peak.queue_length,
        profile.queue_limit(),
        peak.half_open,
    )
}

/// A class for one source, as a comment: it is the operator's to say who may have less.
fn class(listener: &str, limited: &Limited) -> String {
    let source = name_of(&limited.source);
    let class = Class {
        listener: Some(listener.to_owned()),
        from: vec![limited.source.network],
        rate: Some(limited.rate),
        ..Class::new(CLASS)
    };
    let reason = format!(
        "{source} was refused {} times a second in its busiest minute, {} of all refusals then; the next largest source {} times. \
         A class lets in as many of its connections as you give it. Uncomment these lines for {}/s, four times the next one's:",
        rate(limited.source.per_second),
        percent(limited.source.share),
        rate(limited.next),
        rate(limited.rate),
    );
    let mut text = comment(&reason) + "#[[class]]\n";
    for name in ["name", "listener", "from", "rate"] {
        let mut keys = Class::keys().iter();
        let key = keys.find(|key| key.name == name).expect("it is a key");
        let _ = writeln!(text, "#{name} = {}", key.show(&class));
    }
    text
}

/// The address, or the network as a prefix.
fn name_of(source: &Source) -> String {
    let network = source.network;
    match network.prefix_len() == network.max_prefix_len() {
        true => network.addr().to_string(),
        false => network.to_string(),
    }
}

fn rate(per_second: f64) -> String {
    match per_second {
        ..9.95 => format!("{per_second:.1}"),
        _ => format!("{per_second:.0}"),
    }
}

/// To two digits: that much the distributions tell.
fn about(per_second: f64) -> String {
    if per_second < 9.95 {
        return format!("{per_second:.1}").trim_end_matches(".0").to_owned();
    }
    let unit = 10_f64.powf(per_second.log10().floor() - 1.0);
    format!("{:.0}", (per_second / unit).round() * unit)
}

/// A sentence as a comment of a config file.
pub fn comment(text: &str) -> String {
    let lines = wrap(text, WIDTH - 2);
    lines.iter().map(|line| format!("# {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use weir_core::forecast::{self, Rule};
    use weir_core::listener::ListenAddress;
    use weir_core::profile::Look;
    use weir_core::verdict::{Counters, Verdict};

    use super::*;

    /// A second: SYNs admitted and refused by each of two verdicts, the queue's length, and the time of an accept in µs.
    type Seen = (u64, u64, u64, u32, u64);

    fn profile(seconds: impl IntoIterator<Item = Seen>, sources: &[(&str, f64, f64)]) -> Profile {
        profile_of(1, seconds, sources)
    }

    /// The same of so many sockets.
    fn profile_of(
        sockets: u32,
        seconds: impl IntoIterator<Item = Seen>,
        sources: &[(&str, f64, f64)],
    ) -> Profile {
        let mut profile = Profile::default();
        let mut counters = Counters::default();
        let mut at = Duration::ZERO;
        let mut look = |at, counters: &Counters, queue_length, service_us| {
            profile.take(Look {
                at,
                queue_length,
                queue_limit: 128,
                sockets,
                half_open: queue_length / 4,
                wait: Some(Duration::from_micros(service_us) * queue_length),
                counters,
                rule: Rule::from(&web()),
                seen: forecast::Look {
                    at,
                    offered: forecast::offered(counters, 0),
                    full: forecast::found_full(counters),
                    accepted: Some(
                        counters.get(Verdict::SynAdmitted) as i64 - i64::from(queue_length),
                    ),
                    queue_length,
                    queue_limit: 128,
                    accepts: (service_us > 0).then(|| 1e6 / service_us as f64),
                    kept: 0,
                    wait: None,
                    observed: true,
                },
            });
        };
        look(at, &counters, 0, 0);
        for (admitted, full, wait, queue_length, service_us) in seconds {
            counters.0[Verdict::SynAdmitted as usize] += admitted;
            counters.0[Verdict::SynResetFull as usize] += full;
            counters.0[Verdict::SynResetWait as usize] += wait;
            counters.0[Verdict::CookieSentFlood as usize] += full / 20;
            at += Duration::from_secs(1);
            look(at, &counters, queue_length, service_us);
        }
        for (network, per_second, share) in sources {
            profile.see_source(Source {
                network: network.parse().unwrap(),
                per_second: *per_second,
                share: *share,
            });
        }
        profile
    }

    fn web() -> Listener {
        Listener {
            mode: Mode::Observe,
            ..Listener::new("web", ListenAddress { ip: None, port: 80 })
        }
    }

    const MINUTE: Duration = Duration::from_secs(60);

    /// Two hours with bursts that 128 places do not hold.
    fn busy() -> Profile {
        let second = |n: u64| match n % 100 {
            0..3 => (130, 40, 9, 128, 2500),
            _ => (100, 0, 0, 2, 2500),
        };
        let sources = [
            ("203.0.113.7/32", 310.0, 0.62),
            ("198.51.100.9/32", 12.0, 0.02),
        ];
        profile((0..7200).map(second), &sources)
    }

    #[test]
    fn a_long_target_is_for_patient_clients_and_the_queue_inside_is_told_of() {
        let told = |service_us, asked: &Listener| {
            let second = |_| (100, 0, 0, 2, service_us);
            let profile = profile((0..7200).map(second), &[]);
            suggestion(asked, &profile, 10 * MINUTE)
        };
        let slow = told(500_000, &web());
        let reason = &slow.keys[0].reason;
        assert_eq!(slow.keys[0].value, "\"5s\"", "{reason}");
        assert!(
            reason.contains("only if your clients wait for so long"),
            "{reason}"
        );
        let fast = told(2500, &web());
        assert!(!fast.keys[0].reason.contains("only if"), "{fast:?}");
        let inside = |asked: &Listener| {
            let unknown = told(2500, asked).unknown;
            unknown
                .iter()
                .any(|text| text.contains("residence = \"observe\""))
        };
        assert!(inside(&web()));
        let observed = Listener {
            residence: ResidenceMode::Observe,
            ..web()
        };
        assert!(!inside(&observed), "it is measured");
    }

    #[test]
    fn the_text_of_two_busy_hours_is_as_agreed() {
        let suggestion = suggestion(&web(), &busy(), MINUTE);
        assert_eq!(suggestion.missing, None);
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/suggest.toml");
        if std::env::var_os("WEIR_BLESS").is_some() {
            std::fs::write(file, &suggestion.toml).unwrap();
        }
        let agreed = std::fs::read_to_string(file).unwrap_or_default();
        assert_eq!(suggestion.toml, agreed, "WEIR_BLESS=1 accepts");
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/suggest.md");
        let page = std::fs::read_to_string(page).unwrap();
        assert!(page.contains(&format!("```toml\n{agreed}```")), "{page}");
    }

    #[test]
    fn several_sockets_are_not_called_one_backlog() {
        let notes = |longest: u32, full: u64| {
            let second = move |n: u64| match n % 100 {
                0..3 => (130, full, 0, longest, 2500),
                _ => (100, 0, 0, 2, 2500),
            };
            let two = profile_of(2, (0..7200).map(second), &[]);
            suggestion(&web(), &two, MINUTE).notes[0].clone()
        };
        let short = notes(128, 40);
        let words = "The server's 2 listening sockets, with 128 places together, are too small: ";
        assert!(short.starts_with(words), "{short}");
        assert!(
            short.contains("Raise the backlog of each to 128"),
            "{short}"
        );
        let small = notes(20, 0);
        let words = "places of the server's 2 listening sockets were taken at most.";
        assert!(small.contains(words), "{small}");
        assert!(small.contains("and a backlog of 64 is small"), "{small}");
    }

    #[test]
    fn a_small_backlog_is_not_called_enough_for_bursts_that_no_look_saw() {
        let quiet = profile((0..7200).map(|_| (100, 0, 0, 0, 2500)), &[]);
        let toml = suggestion(&web(), &quiet, MINUTE).toml.replace("\n# ", " ");
        assert!(toml.contains("128 is small: 511 or more"), "{toml}");
        assert!(!toml.contains("is enough"), "{toml}");
    }

    #[test]
    fn figures_of_distributions_have_two_digits() {
        let figures = [0.0, 0.25, 7.0, 9.96, 103.0, 391.2, 123_456.0].map(about);
        assert_eq!(figures, ["0", "0.2", "7", "10", "100", "390", "120000"]);
    }

    #[test]
    fn too_little_is_said_with_what_is_missing() {
        let say = |seconds: u64, come: u64, least: u64| {
            let seen = profile((0..seconds).map(|_| (come, 0, 0, 0, 0)), &[]);
            let suggestion = suggestion(&web(), &seen, Duration::from_secs(least));
            assert!(suggestion.toml.is_empty() && suggestion.keys.is_empty());
            (suggestion.missing.unwrap(), suggestion.missing_s)
        };
        assert_eq!(
            say(123, 9, 600),
            (
                "weir has looked for 2 min 3 s only: let it look for 7 min 57 s more".into(),
                Some(477)
            )
        );
        assert_eq!(
            say(60, 1, 60),
            (
                "only 60 connections came in 1 min 0 s, and 100 say something: let it look for about 40 s more".into(),
                Some(40)
            )
        );
        assert_eq!(
            say(60, 0, 60),
            ("no connection came in 1 min 0 s".into(), None)
        );
    }

    /// The class as an operator takes it: the # of each of its lines removed.
    fn with_class(toml: &str) -> String {
        let line = |line: &str| match line.strip_prefix('#') {
            Some(rest) if !rest.starts_with(' ') => rest.to_owned(),
            _ => line.to_owned(),
        };
        toml.lines().map(|text| line(text) + "\n").collect()
    }

    fn listeners() -> impl Strategy<Value = Listener> {
        let mode = prop_oneof![Just(Mode::Observe), Just(Mode::Enforce)];
        let admit = prop_oneof![Just(Admit::Wait), Just(Admit::Queue)];
        let establish = prop_oneof![Just(Establish::Reserv), Just(Establish::NoSynDrop)];
        let ip = prop_oneof![Just(None), Just(Some("2001:db8::1".parse().unwrap()))];
        (mode, admit, establish, ip, 1_u64..=10_000, any::<bool>()).prop_map(
            |(mode, admit, establish, ip, target_ms, reason)| Listener {
                mode,
                admit,
                establish,
                reason,
                target_wait: Duration::from_millis(target_ms),
                interfaces: vec!["eth0".to_owned()],
                ..Listener::new("web.1", ListenAddress { ip, port: 80 })
            },
        )
    }

    proptest! {
        /// Whatever was seen and asked for: weir reads what it suggests, finds nothing odd in it, and gets the settings that
        /// were decided, with the class and without it.
        #[test]
        fn what_is_suggested_is_a_config_that_weir_accepts(
            asked in listeners(),
            seconds in prop::collection::vec((0_u64..2000, 0_u64..2000, 0_u64..2000, 0_u32..200, 0_u64..2_000_000), 120..200),
            rates in (0.0..1000.0, 0.0..1000.0),
            shares in (0.0..1.0, 0.0..1.0),
        ) {
            // Of the family of the listener.
            let networks = match asked.address.ip {
                None => ["203.0.113.0/24", "2001:db8::/56"],
                Some(_) => ["2001:db8:0:100::/56", "2001:db8::/56"],
            };
            let sources = [(networks[0], rates.0, shares.0), (networks[1], rates.1, shares.1)];
            let seen = profile(seconds, &sources);
            let suggestion = suggestion(&asked, &seen, MINUTE);
            if seen.connections() < LEAST_CONNECTIONS {
                prop_assert!(suggestion.missing.is_some());
                return Ok(());
            }
            let toml = &suggestion.toml;
            for text in [toml.clone(), with_class(toml)] {
                let config = weir_config::parse("suggested", &text);
                let config = config.map_err(|e| TestCaseError::fail(format!("{e:?}\n{text}")))?;
                let decided = suggest::suggest(&asked, &seen).listener;
                prop_assert!(config.listeners == [decided], "{}", text);
                let is_odd = |warning: &weir_config::Warning| {
                    let text = warning.text.to_string();
                    // The operator has asked for it so.
                    !(text.contains("target_wait is unused") || text.contains("reason is unused"))
                };
                prop_assert!(!config.warnings.iter().any(is_odd), "{:?}", config.warnings);
            }
            prop_assert!(toml.lines().all(|line| line.len() <= WIDTH), "{}", toml);
        }
    }
}
