//! The metrics of the guard: listeners and classes.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use weir_core::quic::QUIC_VERDICTS;
use weir_core::units::parse_duration;
use weir_core::verdict::{ADMITS, Kind as VerdictKind, VERDICTS, VerdictInfo, refusals};

use super::destinations::{destinations, of_asked, of_listeners};
use super::process::process;
use super::quic::quic;
use super::residence::residence;
use super::shapes::shapes;
use super::{Figures, Kind, Labelled, Metric, Source, Value, metric};
use crate::fields::of;
use crate::{Class, Listener};

/// Every metric of the guard.
pub fn guard() -> &'static [Metric] {
    static METRICS: LazyLock<Vec<Metric>> = LazyLock::new(|| {
        let verdicts = VERDICTS.iter().map(verdict);
        let of_classes = |row: &&'static VerdictInfo| {
            row.name.starts_with("syn_") || row.name.starts_with("queue_")
        };
        let of_classes = VERDICTS.iter().filter(of_classes);
        let class_verdicts = of_classes.map(|row| class_verdict(row.name, row.text));
        let quic_verdicts = QUIC_VERDICTS.iter();
        let quic_verdicts = quic_verdicts.map(|row| class_verdict(row.name, row.text));
        let class_verdicts = class_verdicts.chain(quic_verdicts);
        verdicts
            .chain(sums())
            .chain(listeners())
            .chain(residence())
            .chain(quic())
            .chain(class_verdicts)
            .chain(classes())
            .chain(of_listeners())
            .chain(destinations())
            .chain(of_asked())
            .chain(shapes())
            .chain(process("weir_"))
            .collect()
    });
    &METRICS
}

fn listeners() -> [Metric; 13] {
    [
        gauge("in_force", |l| f64::from(u8::from(l.in_force))),
        gauge("listening", |l| f64::from(u8::from(l.listening))),
        metric(
            "weir_listener_info",
            Kind::Gauge,
            Source {
                of: "mode",
                help: "1, with the address of the listener and its mode: enforce or observe",
            },
            |_: &ListenerInfo| Some(Value::Whole(1)),
        ),
        metric(
            "weir_target_wait_seconds",
            Kind::Gauge,
            Source {
                of: "target_wait",
                help: "The wait that is kept, in seconds: target_wait, or kept_wait_us where that is longer; beside a controller with a target_wait, the controller's. Absent where no wait decides",
            },
            |l: &Listener| target_wait(l).map(|wait| Value::Level(wait.as_secs_f64())),
        ),
        counted("offered", |l| l.offered),
        counted("would_refuse", |l| l.would_refuse),
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

/// What a listener is, as labels.
struct ListenerInfo;

impl Labelled for ListenerInfo {
    const LABELS: &'static [&'static str] = &["listener", "address", "mode"];

    fn each(figures: &Figures, take: &mut dyn FnMut(Vec<String>, &Self)) {
        for Listener {
            name,
            address,
            mode,
            ..
        } in &figures.listeners
        {
            let labels = [name, address, mode].map(Clone::clone);
            take(labels.into(), &ListenerInfo);
        }
    }
}

/// The wait that is kept at a listener: the target in force, as far as the report has it. Else that over which the listener
/// itself refuses: `target_wait`, or more where one service takes longer. `None` where the wait does not decide
/// (`admit = "queue"`, `establish = "default"`).
pub fn target_wait(listener: &Listener) -> Option<Duration> {
    if let Some(us) = listener.target_in_force_us {
        return Some(Duration::from_micros(us));
    }
    let word = |key: &str| listener.settings.get(key)?.as_str();
    let decides = word("admit") == Some("wait") && word("establish") != Some("default");
    let target = word("target_wait").filter(|_| decides)?;
    let kept = Duration::from_micros(listener.kept_wait_us.unwrap_or(0));
    Some(parse_duration(target).ok()?.max(kept))
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

/// The verdicts of listeners and classes in two sums, so that queries need not know each verdict.
fn sums() -> impl Iterator<Item = Metric> {
    let admitted = Source {
        of: "admitted",
        help: "Connections that were let in: the sum of the verdicts after which the server gets the connection",
    };
    let refused = Source {
        of: "refused",
        help: "Connections that were turned away before the server served them, or would be (mode = observe): the sum of such verdicts",
    };
    let admits: Vec<&str> = ADMITS.iter().map(|verdict| verdict.info().name).collect();
    let refuses: Vec<&str> = refusals().map(|row| row.name).collect();
    let sums = [
        (admitted, admits, VerdictKind::Pass),
        (refused, refuses, VerdictKind::Refuse),
    ];
    let metrics = |(source, verdicts, kind): (Source, Vec<&'static str>, VerdictKind)| {
        // A class has connections over QUIC too.
        let quic = QUIC_VERDICTS.iter().filter(|row| row.kind == kind);
        let of_class = verdicts.iter().copied().chain(quic.map(|row| row.name));
        let of_class: Vec<&str> = of_class.collect();
        [
            metric(
                format!("weir_{}", source.of),
                Kind::Counter,
                source,
                move |l: &Listener| Some(Value::Count(sum(&l.counters, &verdicts))),
            ),
            metric(
                format!("weir_class_{}", source.of),
                Kind::Counter,
                source,
                move |class: &Class| Some(Value::Count(sum(&class.counters, &of_class))),
            ),
        ]
    };
    sums.into_iter().flat_map(metrics)
}

fn sum(counters: &BTreeMap<String, u64>, verdicts: &[&str]) -> u64 {
    let counts = verdicts.iter().filter_map(|name| counters.get(*name));
    counts.sum()
}

fn verdict(row: &'static VerdictInfo) -> Metric {
    let value = |l: &Listener| l.counters.get(row.name).copied().unwrap_or(0);
    let name = format!("weir_{}", row.name);
    metric(name, Kind::Counter, row, move |l| {
        Some(Value::Count(value(l)))
    })
}

fn class_verdict(name: &'static str, text: &'static str) -> Metric {
    let value = |class: &Class| class.counters.get(name).copied().unwrap_or(0);
    let source = Source {
        of: name,
        help: text,
    };
    metric(
        format!("weir_class_{name}"),
        Kind::Counter,
        source,
        move |class| Some(Value::Count(value(class))),
    )
}

/// Of the listener's field of the same name.
fn counter(field: &str, value: fn(&Listener) -> u64) -> Metric {
    let source = of("Listener", field);
    let value = move |l: &Listener| Some(Value::Count(value(l)));
    metric(format!("weir_{field}"), Kind::Counter, source, value)
}

/// The same of a field that not every listener has.
fn counted(field: &str, value: fn(&Listener) -> Option<u64>) -> Metric {
    let source = of("Listener", field);
    let value = move |l: &Listener| value(l).map(Value::Count);
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
