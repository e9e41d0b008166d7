//! The metrics of the requests that a server has and has not answered. A listener where they are not watched has none.

use super::{Kind, Metric, Source, Value, metric};
use crate::fields::of;
use crate::{Listener, Residence};

/// All of them.
pub(super) fn residence() -> [Metric; 6] {
    [
        gauge("outstanding", |seen| Some(seen.outstanding)),
        gauge("outstanding_queued", |seen| Some(seen.outstanding_queued)),
        gauge("answers_per_second", |seen| Some(seen.answers_per_second)),
        gauge_of(
            "residence_seconds",
            Source {
                of: "residence_us",
                help: "How long a request is outstanding, in seconds; absent while none comes",
            },
            |seen| seen.residence_us.map(|us| us as f64 / 1e6),
        ),
        gauge("outstanding_limit", |seen| seen.outstanding_limit),
        gauge("queue_inside", |seen| {
            Some(f64::from(u8::from(seen.queue_inside)))
        }),
    ]
}

fn gauge(name: &'static str, value: fn(&Residence) -> Option<f64>) -> Metric {
    gauge_of(name, of("Residence", name), value)
}

fn gauge_of(name: &str, source: impl Into<Source>, value: fn(&Residence) -> Option<f64>) -> Metric {
    metric(
        format!("weir_{name}"),
        Kind::Gauge,
        source,
        move |listener: &Listener| {
            listener
                .residence
                .as_ref()
                .and_then(value)
                .map(Value::Level)
        },
    )
}
