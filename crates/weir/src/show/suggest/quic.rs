//! Suggested settings of a QUIC listener.

use std::fmt::Write as _;
use std::time::Duration;

use weir_api::{QuicProfile as Figures, QuicSuggestion, ShareOver, SuggestedKey};
use weir_config::Table;
use weir_core::listener::{Listener, Mode};
use weir_core::profile::quic::{LONGEST_TARGET, QuicProfile};
use weir_core::quic::QuicListener;
use weir_core::suggest::quic::{
    QuicTargetWait, ReceiveBuffer, Room, SMALL_RECEIVE_BUFFER, suggest,
};
use weir_core::suggest::{WAITING, missing};
use weir_core::units::{about_duration, about_size, count, format_duration};
use weir_core::word::Word;

use super::{about, comment, key, missing_s, missing_text, table};
use crate::host::diagnosis::larger_receive_buffer;
use crate::show::describe::percent;

/// What is known of the machine beside the profile.
#[derive(Debug, Clone, Copy)]
pub struct Machine<'a> {
    /// The listeners under guard.
    pub listeners: &'a [&'a Listener],
    /// `net.core.rmem_max`.
    pub rmem_max: Option<u32>,
    /// The name of the process that has the socket; `None` while not known.
    pub server: Option<&'a str>,
}

type Decided = weir_core::suggest::quic::QuicSuggestion;

/// What is suggested for a QUIC listener that had the settings `asked` while it was looked at.
pub fn suggestion(
    asked: &QuicListener,
    profile: &QuicProfile,
    least: Duration,
    machine: &Machine<'_>,
) -> QuicSuggestion {
    let mut suggestion = QuicSuggestion {
        listener: asked.name.clone(),
        address: asked.address.to_string(),
        looked_s: profile.looked().as_secs(),
        profile: figures(asked, profile, &[]),
        ..QuicSuggestion::default()
    };
    let (looked, attempts) = (profile.looked(), profile.attempts());
    if let Some(missing) = missing(looked, attempts, least) {
        suggestion.missing = Some(missing_text(looked, attempts, "attempt", missing));
        suggestion.missing_s = missing_s(missing);
        return suggestion;
    }
    let decided = suggest(asked, profile, machine.listeners.iter().copied());
    suggestion.profile = figures(asked, profile, &decided.over);
    suggestion.keys = keys(asked, profile, &decided);
    suggestion.receive_buffer = decided.buffer.and_then(|buffer| buffer.raise_to);
    suggestion.notes = decided
        .buffer
        .map(|buffer| buffer_note(buffer, profile, &decided, machine))
        .into_iter()
        .collect();
    suggestion.unknown = unknown();
    suggestion.toml = table(
        &head(asked, profile),
        &decided.listener,
        &suggestion.keys,
        &suggestion.notes,
    );
    suggestion.tcp_toml = decided.tcp.as_ref().map_or(String::new(), tcp);
    suggestion
}

/// Attempts that were refused; of observe mode, that enforcement would have refused.
fn refused(asked: &QuicListener, profile: &QuicProfile) -> u64 {
    match asked.mode {
        Mode::Observe => profile.would().refused,
        Mode::Enforce => profile.refused(),
    }
}

fn figures(asked: &QuicListener, profile: &QuicProfile, over: &[(Duration, f64)]) -> Figures {
    let over = over.iter().map(|(target, share)| ShareOver {
        target_wait_us: target.as_micros() as u64,
        share: *share,
    });
    let peak = profile.peak();
    let us = |time: Duration| time.as_micros() as u64;
    Figures {
        mode: asked.mode.word().to_owned(),
        seconds: profile.seconds(),
        attempts: profile.attempts(),
        answered: profile.answered(),
        refused: refused(asked, profile),
        refused_room: profile.refused_room(),
        refused_in_bursts: profile.refused_in_bursts(),
        refused_wait: profile.refused_wait(),
        rate_median: profile.rate_at(0.5),
        rate_peak: peak.attempts,
        sockets: profile.sockets(),
        buffer_limit: profile.buffer_limit(),
        full_seconds: profile.full_seconds(),
        peak_buffer: (peak.fullness * 1000.0).round() / 1000.0,
        peak_pending: peak.pending,
        wait_median_us: us(profile.wait_at(0.5)),
        wait_p99_us: us(profile.wait_at(0.99)),
        peak_wait_us: us(peak.wait),
        answers_per_second: profile
            .service()
            .map(|service| 1.0 / service.as_secs_f64().max(1e-9)),
        over: over.collect(),
    }
}

fn keys(asked: &QuicListener, profile: &QuicProfile, decided: &Decided) -> Vec<SuggestedKey> {
    let suggested = &decided.listener;
    let mut keys = Vec::new();
    let mut add = |name, reason| keys.push(key(name, asked, suggested, reason));
    add("target_wait", target_reason(asked, profile, decided));
    if suggested.interval != asked.interval {
        let reason =
            "It is no shorter than target_wait: with a shorter one weir refuses in bursts, too.";
        add("interval", reason.to_owned());
    }
    if let Some(reason) = room_reason(asked, profile, decided) {
        add("room", reason);
    }
    add("mode", mode_reason(asked, profile, decided));
    keys
}

fn target_reason(asked: &QuicListener, profile: &QuicProfile, decided: &Decided) -> String {
    let now = format_duration(asked.target_wait);
    let ten = |per_second: f64| {
        let time = about_duration(Duration::from_secs_f64(f64::from(WAITING) / per_second));
        let answers = about(per_second);
        let each = match profile.sockets() {
            ..=1 => "",
            _ => " at each socket",
        };
        format!(
            "While it is busy the server answers about {answers} attempts/s{each}, so {WAITING} of them wait {time}"
        )
    };
    let mut text = match decided.target_wait {
        QuicTargetWait::NothingWaited => {
            format!("No attempt was seen to wait for its answer: nothing speaks against {now}.")
        }
        QuicTargetWait::Enough(per_second) => format!("{}: {now} is enough.", ten(per_second)),
        QuicTargetWait::NoGain(per_second) => format!(
            "{}. But with a longer target_wait weir would refuse hardly fewer: {now} is enough.",
            ten(per_second)
        ),
        QuicTargetWait::Slow(per_second) => format!(
            "{}, and fewer than that wait by chance now and then: {now} is too short.",
            ten(per_second)
        ),
    };
    let (refused, all) = (refused(asked, profile), profile.attempts());
    let _ = match asked.mode {
        Mode::Observe => write!(text, " {now} would have refused"),
        Mode::Enforce => write!(text, " {now} has refused"),
    };
    let share = percent(refused as f64 / all.max(1) as f64);
    let _ = write!(text, " {share} ({refused} of {all})");
    for (target, share) in &decided.over {
        let (target, share) = (format_duration(*target), percent(*share));
        let _ = write!(text, ", {target} about {share}");
    }
    text.push('.');
    if decided.is_too_slow {
        let _ = write!(
            text,
            " weir suggests no more than {}: clients repeat their Initial after a second.",
            format_duration(LONGEST_TARGET)
        );
    }
    text
}

/// `None`: the operator does not want the buffer to count.
fn room_reason(asked: &QuicListener, profile: &QuicProfile, decided: &Decided) -> Option<String> {
    let (room, attempts) = (asked.room, profile.attempts());
    let burst = |n| {
        format!(
            "In bursts that the server worked off, {n} of {attempts} attempts found more than {} of the receive buffer taken",
            percent(room)
        )
    };
    Some(match decided.room {
        Room::Unused => return None,
        Room::Enough if profile.full_seconds() == 0 => format!(
            "When weir looked, {} of the receive buffer was taken at most: {room} is enough.",
            percent(profile.peak().fullness)
        ),
        Room::Enough if profile.service().is_none() => format!(
            "In {} the buffer was fuller than that. Whether in bursts or in an overload, weir cannot tell: it has seen no attempt wait \
             for an answer.",
            count(profile.full_seconds() as usize, "second")
        ),
        Room::Enough => format!(
            "In {} the buffer was fuller than that, while the wait stood over target_wait: no burst needs more.",
            count(profile.full_seconds() as usize, "second")
        ),
        Room::SmallBuffer(n) => format!("{}: the buffer is too small (see below).", burst(n)),
        Room::Bursts(n) if decided.listener.room > room => format!(
            "{}. With {} they find room, and the rest is for packets of established connections.",
            burst(n),
            decided.listener.room
        ),
        Room::Bursts(n) => format!("{}: they need a larger buffer (see below).", burst(n)),
    })
}

fn mode_reason(asked: &QuicListener, profile: &QuicProfile, decided: &Decided) -> String {
    if !decided.answers {
        return "weir has seen no answer of the server, so it knows no wait and would go by the receive buffer alone. Does the \
                server speak QUIC, and does interfaces name those by which its answers leave? Enforce once quic_answered counts."
            .to_owned();
    }
    let (refused, all) = (refused(asked, profile), profile.attempts());
    let share = percent(refused as f64 / all.max(1) as f64);
    match asked.mode {
        Mode::Enforce => format!("It has refused {refused} of {all} attempts ({share})."),
        Mode::Observe => format!(
            "It would have refused about {refused} of {all} attempts ({share}): what came, and the server did not answer while the \
             wait stood."
        ),
    }
}

fn buffer_note(
    buffer: ReceiveBuffer,
    profile: &QuicProfile,
    decided: &Decided,
    machine: &Machine<'_>,
) -> String {
    let size = about_size(buffer.now.into());
    let its = match profile.sockets() {
        ..=1 => "The receive buffer of the server's socket".to_owned(),
        n => format!("The smallest receive buffer of the server's {n} sockets"),
    };
    let Some(bytes) = buffer.raise_to else {
        return match decided.room {
            Room::Enough if profile.full_seconds() > 0 && profile.service().is_some() => format!(
                "{its} takes {size}. It was full in overloads only: in a larger one clients would only wait for longer."
            ),
            _ => format!("{its} takes {size}, which is enough."),
        };
    };
    let hint = larger_receive_buffer(bytes, machine.rmem_max, machine.server);
    match buffer.now < SMALL_RECEIVE_BUFFER {
        true => format!(
            "{its} takes {size}: too small for bursts of new QUIC connections. Datagrams that find no room are lost, also those of \
             established connections. Raise it to {} or more: {hint} (docs/quic.md).",
            about_size(bytes.into())
        ),
        false => format!(
            "{its} takes {size}, and bursts need more. Raise it to {}, which Linux doubles: {hint} (docs/quic.md).",
            about_size(bytes.into())
        ),
    }
}

fn head(asked: &QuicListener, profile: &QuicProfile) -> String {
    let peak = profile.peak();
    let wait = match peak.wait {
        Duration::ZERO => String::new(),
        wait => format!(", wait {}", about_duration(wait)),
    };
    let size = profile.buffer_limit().unwrap_or(0);
    format!(
        "{} (QUIC, {}): in {} {} came, about {}/s in the median second and {}/s in the busiest one, and {} were answered. At most: \
         pending {}, buffer {} of {}{wait}.",
        asked.name,
        asked.address,
        about_duration(profile.looked()),
        count(profile.attempts() as usize, "attempt"),
        about(profile.rate_at(0.5) as f64),
        peak.attempts,
        profile.answered(),
        peak.pending,
        percent(peak.fullness),
        about_size(size.into()),
    )
}

fn unknown() -> Vec<String> {
    [
        "What comes at other times: let weir look through the busiest hour of the week.",
        "Whether a client is behind an attempt of QUIC: anybody can send one with a made-up address, and weir counts each.",
        "What a server of QUIC does after its first answer: requests on established connections may keep it busy.",
        "For how long clients wait for an answer by QUIC: curl tries TCP beside it after about 50 ms, others wait for seconds.",
    ]
    .map(str::to_owned)
    .into()
}

/// A listener for the TCP port. Only what is not its default.
fn tcp(listener: &Listener) -> String {
    let reason = format!(
        "Nothing guards TCP port {}, and clients that weir refuses by QUIC come there. weir has not looked at it yet, so all settings \
         are the defaults. Without a server there, leave it out.",
        listener.address.port
    );
    let mut text = comment(&reason) + "[[listener]]\n";
    let blank = Listener::blank();
    for key in Listener::keys() {
        let value = key.show(listener).to_string();
        if key.name == "address" || key.name != "name" && value != key.show(&blank).to_string() {
            let _ = writeln!(text, "{} = {value}", key.name);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use weir_core::listener::ListenAddress;
    use weir_core::quic::{QuicCounters, QuicLook, QuicSocket, QuicVerdict};
    use weir_core::suggest::LEAST_CONNECTIONS;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);
    const ADDRESS: ListenAddress = ListenAddress {
        ip: None,
        port: 443,
    };
    const MACHINE: Machine<'_> = Machine {
        listeners: &[],
        rmem_max: Some(212_992),
        server: Some("nginx"),
    };

    fn h3() -> QuicListener {
        QuicListener {
            mode: Mode::Observe,
            ..QuicListener::new("h3", ADDRESS)
        }
    }

    /// A second: attempts let in, and those refused by the wait and by the buffer; attempts that wait, the time of an answer in
    /// µs, the buffer taken in percent, and whether the wait stands.
    type Seen = (u64, u64, u64, u32, u64, u32, bool);

    fn profile(buffer_limit: u32, seconds: impl IntoIterator<Item = Seen>) -> QuicProfile {
        let mut profile = QuicProfile::default();
        let mut counters = QuicCounters::default();
        let listener = h3();
        let mut at = Duration::ZERO;
        let mut look = |at, counters: &QuicCounters, sockets: &[QuicSocket]| {
            let listener = &listener;
            profile.take(QuicLook {
                at,
                listener,
                counters,
                sockets,
            });
        };
        look(at, &counters, &[]);
        for (let_in, wait, room, pending, service_us, full, standing) in seconds {
            counters.0[QuicVerdict::QuicAdmitted as usize] += let_in;
            counters.0[QuicVerdict::QuicVnWait as usize] += wait;
            counters.0[QuicVerdict::QuicVnRoom as usize] += room;
            if service_us > 0 {
                counters.0[QuicVerdict::QuicAnswered as usize] += let_in;
            }
            at += Duration::from_secs(1);
            let service = (service_us > 0).then(|| Duration::from_micros(service_us));
            let socket = QuicSocket {
                pending,
                wait: service.map(|service| service * pending),
                service,
                buffer: (u64::from(buffer_limit) * u64::from(full) / 100) as u32,
                buffer_limit,
                standing,
                least: 2,
            };
            look(at, &counters, &[socket]);
        }
        profile
    }

    /// Two hours with bursts at a server of the default buffer, which is overloaded now and then.
    fn busy() -> QuicProfile {
        let second = |n: u64| match n % 100 {
            0..3 => (130, 60, 0, 90, 2600, 40, true),
            50 => (100, 0, 40, 4, 2600, 60, false),
            _ => (100, 0, 0, 2, 2600, 2, false),
        };
        profile(212_992, (0..7200).map(second))
    }

    #[test]
    fn the_text_of_two_busy_hours_is_as_agreed() {
        let suggestion = suggestion(&h3(), &busy(), MINUTE, &MACHINE);
        assert_eq!(suggestion.missing, None);
        assert_eq!(suggestion.receive_buffer, Some(1 << 20));
        let text = format!("{}\n{}", suggestion.toml, suggestion.tcp_toml);
        let file = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/golden/suggest-quic.toml"
        );
        if std::env::var_os("WEIR_BLESS").is_some() {
            std::fs::write(file, &text).unwrap();
        }
        let agreed = std::fs::read_to_string(file).unwrap_or_default();
        assert_eq!(text, agreed, "WEIR_BLESS=1 accepts");
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/suggest-quic.md");
        let page = std::fs::read_to_string(page).unwrap();
        assert!(page.contains(&format!("```toml\n{agreed}```")), "{page}");
    }

    #[test]
    fn of_an_overload_a_larger_buffer_is_no_cure_and_of_bursts_more_room_is() {
        let overload = profile(
            2 << 20,
            (0..200).map(|_| (300, 20, 200, 400, 2000, 90, true)),
        );
        let told = suggestion(&h3(), &overload, MINUTE, &MACHINE);
        assert_eq!(told.receive_buffer, None);
        assert!(
            told.notes[0].contains("full in overloads only"),
            "{told:#?}"
        );
        let bursts = profile(2 << 20, (0..200).map(|_| (300, 0, 20, 3, 100, 55, false)));
        let told = suggestion(&h3(), &bursts, MINUTE, &MACHINE);
        let room = told.keys.iter().find(|key| key.key == "room").unwrap();
        assert_eq!((&*room.now, &*room.value), ("0.5", "0.75"), "{room:?}");
        let roomy = QuicListener { room: 0.75, ..h3() };
        let told = suggestion(&roomy, &bursts, MINUTE, &MACHINE);
        assert_eq!(told.receive_buffer, Some(2 << 20));
        assert!(
            told.notes[0].contains("`listen 443 quic rcvbuf=2m;` in nginx"),
            "{told:#?}"
        );
    }

    #[test]
    fn a_server_whose_answers_are_not_seen_stays_observed() {
        let silent = profile(2 << 20, (0..200).map(|_| (10, 0, 0, 20, 0, 1, false)));
        let told = suggestion(&h3(), &silent, MINUTE, &MACHINE);
        let mode = told.keys.iter().find(|key| key.key == "mode").unwrap();
        assert_eq!(mode.now, mode.value);
        assert!(mode.reason.contains("has seen no answer"), "{mode:?}");
    }

    #[test]
    fn too_little_is_said_with_what_is_missing() {
        let seen = profile(2 << 20, (0..123).map(|_| (1, 0, 0, 0, 100, 1, false)));
        let told = suggestion(&h3(), &seen, 10 * MINUTE, &MACHINE);
        assert!(told.toml.is_empty() && told.tcp_toml.is_empty());
        let expected = "weir has looked for 2 min 3 s only: let it look for 7 min 57 s more";
        assert_eq!(told.missing.as_deref(), Some(expected));
        assert_eq!(told.missing_s, Some(477));
        let none = profile(2 << 20, (0..60).map(|_| (0, 0, 0, 0, 0, 0, false)));
        let told = suggestion(&h3(), &none, MINUTE, &MACHINE);
        assert_eq!(
            told.missing.as_deref(),
            Some("no attempt came in 1 min 0 s")
        );
    }

    fn listeners() -> impl Strategy<Value = QuicListener> {
        let mode = prop_oneof![Just(Mode::Observe), Just(Mode::Enforce)];
        let ip = prop_oneof![Just(None), Just(Some("2001:db8::1".parse().unwrap()))];
        (mode, ip, 1_u64..=10_000, 0.0..=1.0, 0.0..0.9).prop_map(
            |(mode, ip, target_ms, room, floor)| QuicListener {
                mode,
                target_wait: Duration::from_millis(target_ms),
                room,
                floor,
                interfaces: vec!["eth0".to_owned()],
                ..QuicListener::new("web.3", ListenAddress { ip, port: 443 })
            },
        )
    }

    proptest! {
        /// Whatever was seen and asked for: weir reads what it suggests, finds nothing odd in it, and gets the settings that
        /// were decided.
        #[test]
        fn what_is_suggested_is_a_config_that_weir_accepts(
            asked in listeners(),
            buffer_limit in 4096_u32..(8 << 20),
            seconds in prop::collection::vec(
                (0_u64..2000, 0_u64..2000, 0_u64..2000, 0_u32..200, 0_u64..2_000_000, 0_u32..=100, any::<bool>()), 120..200),
        ) {
            let seen = profile(buffer_limit, seconds);
            let told = suggestion(&asked, &seen, MINUTE, &MACHINE);
            if seen.attempts() < LEAST_CONNECTIONS {
                prop_assert!(told.missing.is_some());
                return Ok(());
            }
            let text = format!("{}\n{}", told.toml, told.tcp_toml);
            let config = weir_config::parse("suggested", &text);
            let config = config.map_err(|e| TestCaseError::fail(format!("{e:?}\n{text}")))?;
            let decided = suggest(&asked, &seen, []);
            prop_assert!(config.quic == [decided.listener], "{}", text);
            prop_assert!(config.listeners == [decided.tcp.unwrap()], "{}", text);
            prop_assert!(config.warnings.is_empty(), "{:?}", config.warnings);
            prop_assert!(text.lines().all(|line| line.len() <= super::super::WIDTH), "{}", text);
        }
    }
}
