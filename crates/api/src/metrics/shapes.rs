//! The metrics of shaped interfaces: their queues.

use super::{Figures, Kind, Labelled, Metric, Value, metric};
use crate::ShapeQueue;
use crate::fields::of;

/// Every metric of a queue.
pub(super) fn shapes() -> [Metric; 5] {
    [
        counter("sent_packets", |queue| queue.sent_packets),
        counter("sent_bytes", |queue| queue.sent_bytes),
        counter("dropped_packets", |queue| queue.dropped_packets),
        gauge("waiting_packets", |queue| queue.waiting_packets),
        gauge("waiting_bytes", |queue| queue.waiting_bytes),
    ]
}

impl Labelled for ShapeQueue {
    const LABELS: &'static [&'static str] = &["dev", "direction", "queue"];

    fn each(figures: &Figures, take: &mut dyn FnMut(Vec<String>, &Self)) {
        for shape in &figures.shapes {
            for queue in &shape.queues {
                let labels = [&shape.dev, &shape.direction, &queue.name];
                take(labels.map(String::clone).to_vec(), queue);
            }
        }
    }
}

/// Of the field of the same name.
fn counter(field: &str, value: fn(&ShapeQueue) -> u64) -> Metric {
    let value = move |queue: &ShapeQueue| Some(Value::Count(value(queue)));
    let source = of("ShapeQueue", field);
    metric(format!("weir_shape_{field}"), Kind::Counter, source, value)
}

/// Of the field of the same name.
fn gauge(field: &str, value: fn(&ShapeQueue) -> u64) -> Metric {
    let value = move |queue: &ShapeQueue| Some(Value::Whole(value(queue)));
    let source = of("ShapeQueue", field);
    metric(format!("weir_shape_{field}"), Kind::Gauge, source, value)
}
