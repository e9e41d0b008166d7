//! The metrics of the guard: listeners and classes.

use std::sync::LazyLock;

use weir_core::verdict::{VERDICTS, VerdictInfo};

use super::destinations::{destinations, of_listeners};
use super::shapes::shapes;
use super::{Figures, Kind, Labelled, Metric, Source, Value, log_lost, metric};
use crate::fields::of;
use crate::{Class, Listener};

/// Every metric of the guard.
pub fn guard() -> &'static [Metric] {
    static METRICS: LazyLock<Vec<Metric>> = LazyLock::new(|| {
        let verdicts = VERDICTS.iter().map(verdict);
        let of_classes = |row: &&'static VerdictInfo| {
            row.name.starts_with("syn_") || row.name.starts_with("queue_")
        };
        let class_verdicts = VERDICTS.iter().filter(of_classes).map(class_verdict);
        verdicts
            .chain(listeners())
            .chain(class_verdicts)
            .chain(classes())
            .chain(of_listeners())
            .chain(destinations())
            .chain(shapes())
            .chain([log_lost("weir_")])
            .collect()
    });
    &METRICS
}

fn listeners() -> [Metric; 8] {
    [
        gauge("in_force", |l| f64::from(u8::from(l.in_force))),
        counter("released", |l| l.released),
        counter("overtook", |l| l.overtook),
        gauge("parked", |l| l.parked.into()),
        gauge("queue_length", |l| l.queue_length.into()),
        gauge("queue_limit", |l| l.queue_limit.into()),
        gauge("half_open", |l| l.half_open.into()),
        metric(
            "weir_wait_seconds",
            Kind::Gauge,
            Source {
                of: "wait_us",
                help: "The estimated wait for accept(), in seconds; 0 while not known",
            },
            |l: &Listener| Some(Value::Level(l.wait_us.unwrap_or(0) as f64 / 1e6)),
        ),
    ]
}

/// A class without a limit, or without a queue, has no such sample.
fn classes() -> [Metric; 3] {
    [
        class_gauge("waiting", |class| class.waiting.map(f64::from)),
        class_gauge("rate", |class| class.rate),
        class_gauge("controlled_rate", |class| class.controlled_rate),
    ]
}

impl Labelled for Listener {
    const LABELS: &'static [&'static str] = &["listener"];

    fn each(figures: &Figures, take: &mut dyn FnMut(Vec<String>, &Self)) {
        for listener in &figures.listeners {
            take(vec![listener.name.clone()], listener);
        }
    }
}

impl Labelled for Class {
    const LABELS: &'static [&'static str] = &["class", "listener"];

    /// A class of all listeners has no label for one.
    fn each(figures: &Figures, take: &mut dyn FnMut(Vec<String>, &Self)) {
        for class in &figures.classes {
            let listener = class
                .settings
                .get("listener")
                .and_then(|name| name.as_str());
            let listener = listener.unwrap_or_default().to_owned();
            take(vec![class.name.clone(), listener], class);
        }
    }
}

impl From<&'static VerdictInfo> for Source {
    fn from(row: &'static VerdictInfo) -> Source {
        Source {
            of: row.name,
            help: row.text,
        }
    }
}

fn verdict(row: &'static VerdictInfo) -> Metric {
    let value = |l: &Listener| l.counters.get(row.name).copied().unwrap_or(0);
    let name = format!("weir_{}", row.name);
    metric(name, Kind::Counter, row, move |l| {
        Some(Value::Count(value(l)))
    })
}

fn class_verdict(row: &'static VerdictInfo) -> Metric {
    let value = |class: &Class| class.counters.get(row.name).copied().unwrap_or(0);
    let name = format!("weir_class_{}", row.name);
    metric(name, Kind::Counter, row, move |c| {
        Some(Value::Count(value(c)))
    })
}

/// Of the listener's field of the same name.
fn counter(field: &str, value: fn(&Listener) -> u64) -> Metric {
    let source = of("Listener", field);
    let value = move |l: &Listener| Some(Value::Count(value(l)));
    metric(format!("weir_{field}"), Kind::Counter, source, value)
}

/// Of the listener's field of the same name.
fn gauge(field: &str, value: fn(&Listener) -> f64) -> Metric {
    let source = of("Listener", field);
    let value = move |l: &Listener| Some(Value::Level(value(l)));
    metric(format!("weir_{field}"), Kind::Gauge, source, value)
}

/// Of the class's field of the same name.
fn class_gauge(field: &str, value: fn(&Class) -> Option<f64>) -> Metric {
    let source = of("Class", field);
    let value = move |class: &Class| value(class).map(Value::Level);
    metric(format!("weir_class_{field}"), Kind::Gauge, source, value)
}
