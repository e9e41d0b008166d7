//! The requests that a server has and has not answered, in sentences.

use std::time::Duration;

use serde_json::Value;
use weir_api::{Listener, Residence};
use weir_core::units::{about_duration, about_rate};

fn time(us: u64) -> String {
    about_duration(Duration::from_micros(us))
}

/// The port of the server behind the listener's program, if requests are looked at there.
fn upstream(listener: &Listener) -> Option<u64> {
    listener
        .settings
        .get("residence_of")
        .and_then(Value::as_u64)
}

/// What follows for clients if requests are not seen.
fn refuses_nobody(listener: &Listener) -> &'static str {
    match listener.residence_mode.as_str() {
        "" | "off" | "observe" => "",
        _ => ", so weir refuses nobody for them",
    }
}

/// That nobody listens where requests are looked at (`residence_of`).
pub fn unheard(listener: &Listener) -> Option<String> {
    let port = upstream(listener)?;
    listener.residence.filter(|seen| !seen.listening)?;
    let nobody = refuses_nobody(listener);
    Some(format!(
        "requests at port {port} cannot be seen{nobody}: nobody listens there at the moment"
    ))
}

/// `requests: 364 outstanding, 157 answered/s, each stays 2.3 s (least 52 ms)`; `None` where they are not watched.
pub fn line(listener: &Listener) -> Option<String> {
    let Residence {
        outstanding,
        outstanding_old,
        answers_per_second,
        residence_us,
        least_residence_us,
        outstanding_limit,
        blind,
        ..
    } = listener.residence?;
    if let Some(unheard) = unheard(listener) {
        return Some(unheard);
    }
    let at = upstream(listener).map_or(String::new(), |port| format!(" at port {port}"));
    if blind {
        let because =
            "most answers came much later than requests seemed to be outstanding, as with TLS 1.3";
        let nobody = refuses_nobody(listener);
        return Some(format!("requests{at}: cannot be seen{nobody}: {because}"));
    }
    let Some(residence) = residence_us else {
        return Some(format!("requests{at}: none came"));
    };
    let least = least_residence_us.map_or(String::new(), |us| format!(" (least {})", time(us)));
    let old = match outstanding_old {
        0 => String::new(),
        n => format!(", and {n} too old to be a queue"),
    };
    let limit = outstanding_limit.map_or(String::new(), |limit| {
        let refuses = match listener.mode.as_str() {
            "observe" => "would refuse",
            _ => "refuses",
        };
        format!("; weir {refuses} above {limit:.0} outstanding")
    });
    let none = refuses_none_because(listener);
    Some(format!(
        "requests{at}: {outstanding:.0} outstanding, {} answered/s, each stays {}{least}{old}{limit}{none}",
        about_rate(answers_per_second),
        time(residence),
    ))
}

/// Why none is refused though a time is set; empty: some are, or there is no time.
fn refuses_none_because(listener: &Listener) -> &'static str {
    match (listener.residence_mode.as_str(), listener.residence) {
        ("" | "off" | "observe", _) | (_, None) => "",
        (_, Some(seen)) if seen.outstanding_limit.is_some() => "",
        (_, Some(seen)) if seen.queue_inside => {
            "; weir refuses none yet: it does not know whether they queue or are worked on"
        }
        _ => "; weir refuses none: they are no queue",
    }
}

/// That clients wait inside the server; `None`: as far as is known, none do.
pub fn inside(listener: &Listener) -> Option<String> {
    let seen = listener.residence.filter(|seen| seen.queue_inside)?;
    let has = seen.outstanding - seen.outstanding_queued;
    let alone = seen.least_residence_us.map_or(String::new(), |us| {
        format!(", where {} is its least", time(us))
    });
    let at = upstream(listener).map_or(String::new(), |port| format!(" on port {port}"));
    Some(format!(
        "the queue is inside the server{at}: it has accepted {has:.0} requests and not answered them; each stays {}{alone}",
        seen.residence_us.map_or("-".to_owned(), time),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_inside_is_said_in_figures() {
        let mut listener = Listener::default();
        assert_eq!((line(&listener), inside(&listener)), (None, None));
        let mut seen = Residence::default();
        let mut say = |seen: &Residence| {
            listener.residence = Some(*seen);
            (line(&listener).unwrap(), inside(&listener))
        };
        assert_eq!(say(&seen).0, "requests: none came");
        seen = Residence {
            listening: true,
            outstanding: 364.4,
            outstanding_queued: 0.4,
            outstanding_old: 60,
            answers_per_second: 157.2,
            residence_us: Some(2_318_000),
            least_residence_us: Some(52_000),
            queue_inside: true,
            outstanding_limit: Some(40.2),
            blind: false,
        };
        let (line, inside) = say(&seen);
        assert_eq!(
            line,
            "requests: 364 outstanding, 157 answered/s, each stays 2.3 s (least 52 ms), and 60 too old to be a queue; \
             weir refuses above 40 outstanding"
        );
        assert_eq!(
            inside.unwrap(),
            "the queue is inside the server: it has accepted 364 requests and not answered them; each stays 2.3 s, \
             where 52 ms is its least"
        );
        let with = |queue_inside, limit| Listener {
            residence_mode: "250ms".into(),
            residence: Some(Residence {
                queue_inside,
                outstanding_limit: limit,
                ..seen
            }),
            ..Listener::default()
        };
        assert_eq!(refuses_none_because(&with(true, Some(40.0))), "");
        assert!(refuses_none_because(&with(true, None)).contains("does not know"));
        assert!(refuses_none_because(&with(false, None)).contains("no queue"));
        (seen.queue_inside, seen.blind) = (false, true);
        let (line, inside) = say(&seen);
        assert!(line.contains("cannot be seen"), "{line}");
        assert_eq!(inside, None);
    }
    #[test]
    fn requests_at_another_port_are_said_to_be_there_or_that_nobody_listens() {
        let mut listener = Listener {
            residence_mode: "250ms".into(),
            residence: Some(Residence::default()),
            ..Listener::default()
        };
        assert_eq!(
            unheard(&listener),
            None,
            "the listener's own says it otherwise"
        );
        listener.settings.insert("residence_of".into(), 8000.into());
        let nobody = "requests at port 8000 cannot be seen, so weir refuses nobody for them: nobody listens there at the moment";
        assert_eq!(line(&listener).as_deref(), Some(nobody));
        assert_eq!(unheard(&listener).as_deref(), Some(nobody));
        listener.residence = Some(Residence {
            listening: true,
            queue_inside: true,
            residence_us: Some(2_318_000),
            ..Residence::default()
        });
        assert_eq!(unheard(&listener), None);
        let (line, inside) = (line(&listener).unwrap(), inside(&listener).unwrap());
        assert!(
            line.starts_with("requests at port 8000: 0 outstanding"),
            "{line}"
        );
        assert!(
            inside.starts_with("the queue is inside the server on port 8000: it has"),
            "{inside}"
        );
    }
}
