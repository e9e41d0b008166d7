//! How each kind of event is made.

use std::collections::BTreeMap;
use std::time::Duration;

use weir_api::{Decision, Episode, Event, Refusal, Reload};
use weir_core::overload;
use weir_core::refusals::{self, Protocol, Seen};
use weir_core::units::about_duration;
use weir_proxy::HealthChange;

use crate::daemon::session::SightChange;
use crate::failure::Failure;
use crate::show::describe::percent;

/// An event of which there is a sentence only.
pub fn plain(kind: &str, severity: &str, text: impl Into<String>) -> Event {
    Event {
        kind: kind.to_owned(),
        severity: severity.to_owned(),
        text: text.into(),
        ..Event::default()
    }
}

/// An episode of this cause begins, lasts or has ended at a listener. `held` are the classes that the controller has held.
pub fn episode(
    listener: &str,
    cause: overload::Cause,
    change: &overload::Change,
    queue_limit: u32,
    held: &BTreeMap<String, f64>,
    text: &str,
) -> Event {
    let kind = match cause {
        overload::Cause::Overload => "overload",
        overload::Cause::OverRate => "over_rate",
        overload::Cause::SynFlood => "syn_flood",
    };
    let (state, episode) = match change {
        overload::Change::Begins(episode) => ("begins", episode),
        overload::Change::Lasts(episode) => ("lasts", episode),
        overload::Change::Ends(episode) => ("ends", episode),
    };
    let severity = match change {
        overload::Change::Ends(_) => "info",
        _ => "warn",
    };
    let held = match cause {
        overload::Cause::Overload => held.clone(),
        _ => BTreeMap::new(),
    };
    Event {
        listener: Some(listener.to_owned()),
        episode: Some(Episode {
            state: state.to_owned(),
            duration_ms: episode.time().as_millis() as u64,
            turned_away: episode.turned_away,
            let_in: episode.let_in,
            peak_wait_us: micros(episode.peak_wait),
            peak_queue_length: episode.peak_queue,
            queue_limit,
            peak_half_open: episode.peak_half_open,
            held,
            ..Episode::default()
        }),
        ..plain(kind, severity, text)
    }
}

/// An overload of a QUIC listener begins, lasts or has ended. `peak_buffer` is the largest share of a receive buffer, 0 to 1.
pub fn quic_episode(
    listener: &str,
    change: &overload::Change,
    peak_buffer: f64,
    text: &str,
) -> Event {
    let none = BTreeMap::new();
    let mut event = episode(listener, overload::Cause::Overload, change, 0, &none, text);
    if let Some(episode) = &mut event.episode {
        // What waits for an answer.
        episode.peak_pending = Some(std::mem::take(&mut episode.peak_queue_length));
        episode.peak_buffer = Some((peak_buffer * 1000.0).round() / 1000.0);
    }
    Event {
        protocol: protocol(Protocol::Quic),
        ..event
    }
}

/// TCP needs no word.
fn protocol(protocol: Protocol) -> Option<String> {
    (protocol == Protocol::Quic).then(|| "quic".to_owned())
}

/// The controller holds a class now, or no longer, as `text` says. `None`: it holds the class at another rate, which is no
/// event.
pub fn decision(decision: &Decision, text: &str) -> Option<Event> {
    let kind = match (decision.from, decision.to) {
        (None, Some(_)) => "class_held",
        (Some(_), None) => "class_released",
        _ => return None,
    };
    Some(Event {
        at_unix_ms: decision.at_unix_ms,
        class: Some(decision.class.clone()),
        observed: decision.observed,
        decision: Some(decision.clone()),
        ..plain(kind, "info", text)
    })
}

/// A proxy's backend is down, or up again.
pub fn backend(change: &HealthChange) -> Event {
    let (kind, severity) = match change.is_up {
        true => ("backend_up", "info"),
        false => ("backend_down", "warn"),
    };
    Event {
        proxy: Some(change.proxy.clone()),
        backend: Some(change.backend.clone()),
        ..plain(kind, severity, change.text.clone())
    }
}

/// Somebody has changed a class while the process runs.
pub fn class_changed(class: &str, text: impl Into<String>) -> Event {
    Event {
        class: Some(class.to_owned()),
        ..plain("class_changed", "info", text)
    }
}

/// A listener is not in force any more, or is again.
pub fn sight(change: &SightChange) -> Event {
    let (kind, severity) = match change.in_force {
        true => ("in_force", "info"),
        false => ("not_in_force", "error"),
    };
    Event {
        listener: Some(change.listener.clone()),
        ..plain(kind, severity, change.text.clone())
    }
}

/// What came of a reload.
pub fn reload_outcome(mut reload: Reload, failure: Option<&Failure>, stays: &str) -> Event {
    if let Some(failure) = failure {
        reload.errors.clone_from(&failure.causes);
    }
    let file = reload.config.as_deref().unwrap_or("no config file");
    let first = reload.errors.first().map(|cause| cause.message.as_str());
    let (kind, severity, text) = match (first, reload.not_in_force.len()) {
        (Some(message), _) => {
            let text = format!("reload failed, the running {stays} in force: {message}");
            ("reload_failed", "error", text)
        }
        (None, 0) => ("reload", "info", format!("{file} is in force")),
        (None, n) => {
            let text = format!("{file} is in force, but for {n} of its listeners");
            ("reload", "error", text)
        }
    };
    Event {
        reload: Some(reload),
        ..plain(kind, severity, text)
    }
}

/// A sampled refusal, which happened then.
pub fn refusal(refusal: &refusals::Refusal, at_unix_ms: u64) -> Event {
    Event {
        at_unix_ms,
        listener: Some(refusal.listener.to_string()),
        protocol: protocol(refusal.reason.protocol()),
        class: refusal.class.as_deref().map(str::to_owned),
        observed: refusal.observe,
        refusal: Some(refusal_report(refusal)),
        ..plain("refusal", "info", refusal_line(refusal))
    }
}

/// Sampled refusals that were no events, because there were too many.
pub fn left_out(n: u64) -> Event {
    let text =
        format!("{n} sampled refusals are no events: there are too many (`weir why` knows more)");
    Event {
        left_out: Some(n),
        ..plain("left_out", "info", text)
    }
}

/// A sampled refusal as the schema has it.
pub fn refusal_report(refusal: &refusals::Refusal) -> Refusal {
    let report = Refusal {
        source: refusal.source.ip().to_canonical().to_string(),
        source_port: refusal.source.port(),
        destination: refusal.destination.to_string(),
        verdict: refusal.reason.name().to_owned(),
        ..Refusal::default()
    };
    match refusal.seen {
        Seen::Nothing => report,
        Seen::Queue {
            length,
            half_open,
            limit,
            wait,
        } => Refusal {
            queue_length: Some(length),
            queue_limit: Some(limit),
            half_open: Some(half_open),
            wait_us: Some(micros(wait)),
            ..report
        },
        Seen::Quic {
            pending,
            wait,
            buffer,
            buffer_limit,
        } => Refusal {
            pending: Some(pending),
            wait_us: wait.map(micros),
            buffer: Some(buffer),
            buffer_limit: Some(buffer_limit),
            ..report
        },
    }
}

/// `web: 10.0.0.2:40000 > 10.0.0.1:80 syn_reset_full, class gold, queue 511/511, half-open 3, wait 12 ms`;
/// of a class over its rate, which is refused before its queue is looked at, only up to the class;
/// `h3 (QUIC): 10.0.0.2:40000 > 10.0.0.1:443 quic_vn_wait, pending 12, buffer 1 %, wait 35 ms`.
pub fn refusal_line(refusal: &refusals::Refusal) -> String {
    let quic = match refusal.reason.protocol() {
        Protocol::Tcp => "",
        Protocol::Quic => " (QUIC)",
    };
    let mut line = format!(
        "{}{quic}: {} > {} {}",
        refusal.listener,
        refusal.source,
        refusal.destination,
        refusal.reason.name(),
    );
    if refusal.observe {
        line += " (observed only)";
    }
    if let Some(class) = &refusal.class {
        line += &format!(", class {class}");
    }
    line += &match refusal.seen {
        Seen::Nothing => String::new(),
        Seen::Queue {
            length,
            half_open,
            limit,
            wait,
        } => format!(
            ", queue {length}/{limit}, half-open {half_open}, wait {}",
            about_duration(wait)
        ),
        Seen::Quic {
            pending,
            wait,
            buffer,
            buffer_limit,
        } => format!(
            ", pending {pending}, buffer {}, wait {}",
            percent(f64::from(buffer) / f64::from(buffer_limit.max(1))),
            wait.map_or_else(|| "?".to_owned(), about_duration),
        ),
    };
    line
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use weir_core::quic::QuicVerdict;
    use weir_core::verdict::Verdict;

    use super::*;

    #[test]
    fn what_a_rate_refuses_says_nothing_of_the_queue() {
        let mut one = refusals::Refusal {
            at: Duration::ZERO,
            listener: "web".into(),
            class: Some("gold".into()),
            reason: Verdict::SynResetFull.into(),
            source: "10.0.0.2:40000".parse().unwrap(),
            destination: "10.0.0.1:80".parse().unwrap(),
            seen: Seen::Queue {
                length: 511,
                half_open: 3,
                limit: 511,
                wait: Duration::from_millis(12),
            },
            observe: false,
        };
        assert_eq!(
            refusal_line(&one),
            "web: 10.0.0.2:40000 > 10.0.0.1:80 syn_reset_full, class gold, queue 511/511, half-open 3, wait 12 ms"
        );
        assert_eq!(refusal(&one, 1).refusal.unwrap().wait_us, Some(12_000));
        one.seen = one.seen.at(Verdict::SynResetHeld);
        one.reason = Verdict::SynResetHeld.into();
        assert_eq!(
            refusal_line(&one),
            "web: 10.0.0.2:40000 > 10.0.0.1:80 syn_reset_held, class gold"
        );
        assert_eq!(refusal(&one, 1).refusal.unwrap().queue_length, None);
    }

    #[test]
    fn a_refused_quic_attempt_says_that_it_is_one_and_what_was_seen() {
        let mut one = refusals::Refusal {
            at: Duration::ZERO,
            listener: "h3".into(),
            class: None,
            reason: QuicVerdict::QuicVnWait.into(),
            source: "10.0.0.2:40000".parse().unwrap(),
            destination: "10.0.0.1:443".parse().unwrap(),
            seen: Seen::Quic {
                pending: 12,
                wait: Some(Duration::from_millis(35)),
                buffer: 3000,
                buffer_limit: 212_992,
            },
            observe: true,
        };
        assert_eq!(
            refusal_line(&one),
            "h3 (QUIC): 10.0.0.2:40000 > 10.0.0.1:443 quic_vn_wait (observed only), pending 12, buffer 1 %, wait 35 ms"
        );
        let event = refusal(&one, 1);
        assert_eq!(event.protocol.as_deref(), Some("quic"));
        assert_eq!(event.refusal.unwrap().pending, Some(12));
        one.reason = Verdict::SynResetFull.into();
        assert_eq!(refusal(&one, 1).protocol, None);
    }

    #[test]
    fn a_class_that_is_held_at_another_rate_is_no_event() {
        let of = |from, to| Decision {
            from,
            to,
            ..Decision::default()
        };
        let kind = |from, to| decision(&of(from, to), "…").map(|event| event.kind);
        assert_eq!(kind(None, Some(5.0)).as_deref(), Some("class_held"));
        assert_eq!(kind(Some(5.0), None).as_deref(), Some("class_released"));
        assert_eq!(kind(Some(5.0), Some(6.0)), None);
    }
}
