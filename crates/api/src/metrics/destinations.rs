//! The metrics of destinations: TIME-WAIT of their connections.

use super::{Figures, Kind, Labelled, Metric, Value, metric};
use crate::fields::of;
use crate::{Destination, TimeWait};

/// Every metric of a destination.
pub(super) fn destinations() -> [Metric; 6] {
    [
        gauge("held", |timewait| timewait.held),
        counter("swapped", |timewait| timewait.swapped),
        counter("reused", |timewait| timewait.reused),
        counter("refused", |timewait| timewait.refused),
        counter("fallback", |timewait| timewait.fallback),
        gauge("bytes", |timewait| timewait.bytes),
    ]
}

impl Labelled for Destination {
    const LABELS: &'static [&'static str] = &["destination"];

    fn each(figures: &Figures, take: &mut dyn FnMut(Vec<String>, &Self)) {
        for destination in &figures.destinations {
            take(vec![destination.name.clone()], destination);
        }
    }
}

/// Of the field of the same name.
fn counter(field: &str, value: fn(&TimeWait) -> u64) -> Metric {
    let value = move |one: &Destination| Some(Value::Count(value(&one.timewait)));
    let source = of("TimeWait", field);
    metric(
        format!("weir_timewait_{field}"),
        Kind::Counter,
        source,
        value,
    )
}

/// Of the field of the same name.
fn gauge(field: &str, value: fn(&TimeWait) -> u64) -> Metric {
    let value = move |one: &Destination| Some(Value::Whole(value(&one.timewait)));
    let source = of("TimeWait", field);
    metric(format!("weir_timewait_{field}"), Kind::Gauge, source, value)
}
