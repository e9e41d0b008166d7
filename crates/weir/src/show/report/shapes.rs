//! Shaped interfaces as people read them.

use weir_api::{Shape, ShapeQueue};
use weir_core::units::format_bit_rate;

use crate::show::table::{Align, indent, table};

/// A paragraph for each; empty if there is none.
pub fn shapes_text(shapes: &[Shape]) -> String {
    shapes.iter().map(text).collect::<Vec<_>>().join("\n")
}

fn text(shape: &Shape) -> String {
    let head = [
        ("queue", Align::Left),
        ("qdisc", Align::Left),
        ("sent", Align::Right),
        ("bytes", Align::Right),
        ("dropped", Align::Right),
        ("waiting", Align::Right),
    ];
    let row = |queue: &ShapeQueue| {
        vec![
            queue.name.clone(),
            queue.qdisc.clone(),
            queue.sent_packets.to_string(),
            queue.sent_bytes.to_string(),
            queue.dropped_packets.to_string(),
            queue.waiting_packets.to_string(),
        ]
    };
    let rows: Vec<_> = shape.queues.iter().map(row).collect();
    // What it sends is the usual case.
    let direction = match shape.direction.as_str() {
        "ingress" => " ingress",
        _ => "",
    };
    format!(
        "{}{direction}: {} at {}, by {}\n{}",
        shape.dev,
        shape.discipline,
        format_bit_rate(shape.rate_bits_per_s),
        shape.backend,
        indent(&table(&head, &rows))
    )
}
