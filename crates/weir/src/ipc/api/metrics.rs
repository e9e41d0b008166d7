//! `GET /v1/metrics`: queues, verdicts and classes as OpenMetrics text.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::{EncodeLabelSet, text::encode};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use weir_core::verdict::VERDICTS;

use crate::show::report::{ClassReport, ListenerReport};

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfListener {
    listener: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfClass {
    class: String,
}

/// A figure: its name, its HELP, and its value.
type Figure<Of, Value> = (&'static str, &'static str, fn(&Of) -> Value);
type Count = Counter<u64, AtomicU64>;
type Level = Gauge<f64, AtomicU64>;

/// Every figure, by the names of `weir status` and `weir explain`. `log_lost` are the process's lines.
pub fn text(listeners: &[ListenerReport], classes: &[ClassReport], log_lost: u64) -> String {
    let mut registry = Registry::with_prefix("weir");
    for row in &VERDICTS {
        let family = Family::<OfListener, Count>::default();
        for listener in listeners {
            let value = listener.counters.get(row.name).copied().unwrap_or(0);
            family.get_or_create(&of_listener(listener)).inc_by(value);
        }
        registry.register(row.name, row.text, family);
    }
    let ever: [Figure<ListenerReport, u64>; 2] = [
        (
            "released",
            "parked connections that went to the server (queue = priority)",
            |l| l.released,
        ),
        (
            "overtook",
            "connections that went to the server before one that had come earlier",
            |l| l.overtook,
        ),
    ];
    for (name, help, value) in ever {
        let family = Family::<OfListener, Count>::default();
        for listener in listeners {
            let count = family.get_or_create(&of_listener(listener));
            count.inc_by(value(listener));
        }
        registry.register(name, help, family);
    }
    let queues: [Figure<ListenerReport, f64>; 5] = [
        (
            "parked",
            "connections that wait before the server's own queue (queue = priority)",
            |l| l.parked.into(),
        ),
        ("queue_length", "connections that wait for accept()", |l| {
            l.queue_length.into()
        }),
        ("queue_limit", "places in the listen queues", |l| {
            l.queue_limit.into()
        }),
        ("half_open", "handshakes under way", |l| l.half_open.into()),
        ("wait_seconds", "estimated wait for accept()", |l| {
            l.wait_us.unwrap_or(0) as f64 / 1e6
        }),
    ];
    for (name, help, value) in queues {
        let family = Family::<OfListener, Level>::default();
        for listener in listeners {
            family
                .get_or_create(&of_listener(listener))
                .set(value(listener));
        }
        registry.register(name, help, family);
    }
    add_classes(&mut registry, classes);
    add_log(&mut registry, log_lost);
    let mut text = String::new();
    encode(&mut text, &registry).expect("a string takes every metric");
    text
}

fn of_listener(listener: &ListenerReport) -> OfListener {
    OfListener {
        listener: listener.name.clone(),
    }
}

/// Adds what the process has lost of its log.
pub fn add_log(registry: &mut Registry, lost: u64) {
    let count = Count::default();
    count.inc_by(lost);
    let help =
        "lines of weir's log that were lost: whoever reads its standard error did not in time";
    registry.register("log_lost", help, count);
}

fn add_classes(registry: &mut Registry, classes: &[ClassReport]) {
    let of = |class: &ClassReport| OfClass {
        class: class.name.clone(),
    };
    let of_classes = |name: &str| name.starts_with("syn_") || name.starts_with("queue_");
    for row in VERDICTS.iter().filter(|row| of_classes(row.name)) {
        let family = Family::<OfClass, Count>::default();
        for class in classes {
            let value = class.counters.get(row.name).copied().unwrap_or(0);
            family.get_or_create(&of(class)).inc_by(value);
        }
        registry.register(format!("class_{}", row.name), row.text, family);
    }
    let figures: [Figure<ClassReport, Option<f64>>; 3] = [
        (
            "class_waiting",
            "connections that wait before a server's own queue (queue = priority)",
            |c| c.waiting.map(f64::from),
        ),
        (
            "class_rate",
            "connections/s that may come by the operator",
            |c| c.rate,
        ),
        (
            "class_controlled_rate",
            "connections/s that may come by the controller",
            |c| c.controlled_rate,
        ),
    ];
    for (name, help, value) in figures {
        let family = Family::<OfClass, Level>::default();
        for class in classes {
            // A class without a limit, or without a queue, has no such figure.
            if let Some(value) = value(class) {
                family.get_or_create(&of(class)).set(value);
            }
        }
        registry.register(name, help, family);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verdict_and_each_rate_is_a_metric() {
        let web = ListenerReport {
            name: "web".into(),
            counters: [("syn_admitted".to_owned(), 7)].into(),
            queue_length: 3,
            wait_us: Some(20_000),
            ..ListenerReport::default()
        };
        let other = ClassReport {
            name: "other".into(),
            controlled_rate: Some(1200.0),
            waiting: Some(4),
            counters: [("queue_reset_full".to_owned(), 2)].into(),
            ..ClassReport::default()
        };
        let text = text(&[web], &[other], 9);
        for line in [
            "weir_syn_admitted_total{listener=\"web\"} 7",
            "weir_queue_length{listener=\"web\"} 3.0",
            "weir_wait_seconds{listener=\"web\"} 0.02",
            "weir_class_waiting{class=\"other\"} 4.0",
            "weir_class_queue_reset_full_total{class=\"other\"} 2",
            "weir_class_controlled_rate{class=\"other\"} 1200.0",
            "weir_log_lost_total 9",
            "# EOF",
        ] {
            assert!(text.lines().any(|own| own == line), "{line}\n{text}");
        }
        assert!(!text.contains("weir_class_rate{"), "no limit is no figure");
    }
}
