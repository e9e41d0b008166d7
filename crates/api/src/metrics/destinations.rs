//! The metrics of TIME-WAIT: of destinations' connections, of listeners', and of those whose application asks.

use super::{Figures, Kind, Labelled, Metric, Value, metric};
use crate::fields::of;
use crate::{Destination, Listener, TimeWait};

/// Every metric of a destination.
pub(super) fn destinations() -> Vec<Metric> {
    FIGURES
        .iter()
        .map(|figure| figure.metric("weir_timewait", |one: &Destination| &one.timewait))
        .collect()
}

/// Those of a listener's connections.
pub(super) fn of_listeners() -> Vec<Metric> {
    // Of a record that a listener has swapped there is none.
    let its_own = FIGURES.iter().filter(|figure| figure.field != "swapped");
    its_own
        .map(|figure| figure.metric("weir_listener_timewait", |one: &Listener| &one.timewait))
        .collect()
}

/// Those of connections that only their application has negotiate.
pub(super) fn of_asked() -> Vec<Metric> {
    let its_own = FIGURES.iter().filter(|figure| figure.field != "swapped");
    its_own
        .map(|figure| figure.metric("weir_asked_timewait", |one: &TimeWait| one))
        .collect()
}

/// A field of [`TimeWait`].
struct Figure {
    field: &'static str,
    kind: Kind,
    value: fn(&TimeWait) -> u64,
}

const FIGURES: &[Figure] = &[
    gauge("held", |timewait| timewait.held),
    counter("avoided", |timewait| timewait.avoided),
    counter("held_by_peer", |timewait| timewait.held_by_peer),
    counter("swapped", |timewait| timewait.swapped),
    counter("reused", |timewait| timewait.reused),
    counter("refused", |timewait| timewait.refused),
    counter("fallback", |timewait| timewait.fallback),
    gauge("bytes", |timewait| timewait.bytes),
];

const fn counter(field: &'static str, value: fn(&TimeWait) -> u64) -> Figure {
    let kind = Kind::Counter;
    Figure { field, kind, value }
}

const fn gauge(field: &'static str, value: fn(&TimeWait) -> u64) -> Figure {
    let kind = Kind::Gauge;
    Figure { field, kind, value }
}

impl Figure {
    fn metric<T: Labelled>(&self, prefix: &str, of_one: fn(&T) -> &TimeWait) -> Metric {
        let Figure { field, kind, value } = *self;
        let sample = move |one: &T| {
            let figure = value(of_one(one));
            Some(match kind {
                Kind::Counter => Value::Count(figure),
                _ => Value::Whole(figure),
            })
        };
        metric(
            format!("{prefix}_{field}"),
            kind,
            of("TimeWait", field),
            sample,
        )
    }
}

impl Labelled for TimeWait {
    const LABELS: &'static [&'static str] = &[];

    fn each(figures: &Figures, take: &mut dyn FnMut(Vec<String>, &Self)) {
        if let Some(asked) = &figures.timewait_asked {
            take(Vec::new(), asked);
        }
    }
}

impl Labelled for Destination {
    const LABELS: &'static [&'static str] = &["destination"];

    fn each(figures: &Figures, take: &mut dyn FnMut(Vec<String>, &Self)) {
        for destination in &figures.destinations {
            take(vec![destination.name.clone()], destination);
        }
    }
}
