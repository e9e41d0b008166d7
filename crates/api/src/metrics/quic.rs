//! The metrics of QUIC listeners.

use weir_core::quic::{QUIC_VERDICTS, QuicVerdictInfo};

use super::{Figures, Kind, Labelled, Metric, Source, Value, metric};
use crate::fields::of;
use crate::{Quic, QuicSocket};

/// Every metric of a QUIC listener.
pub(super) fn quic() -> impl Iterator<Item = Metric> {
    QUIC_VERDICTS.iter().map(verdict).chain(figures())
}

/// Of all sockets of a listener.
fn figures() -> [Metric; 8] {
    [
        estimate("offered", |quic| quic.offered),
        estimate("would_refuse", |quic| quic.would_refuse),
        metric(
            "weir_quic_in_force",
            Kind::Gauge,
            of("Quic", "in_force"),
            |quic: &Quic| Some(Value::Level(f64::from(u8::from(quic.in_force)))),
        ),
        gauge(
            "pending",
            "pending",
            "Connection attempts that weir has let in and that the server has not answered, over all sockets",
            |sockets| sum(sockets, |socket| socket.pending),
        ),
        gauge(
            "wait_seconds",
            "wait_us",
            "How long an attempt that comes now waits for the server's answer, in seconds: the longest of the sockets; 0 while not known",
            |sockets| {
                let waits = sockets.iter().filter_map(|socket| socket.wait_us);
                waits.max().unwrap_or(0) as f64 / 1e6
            },
        ),
        gauge(
            "buffer_bytes",
            "buffer",
            "Bytes in the receive buffers when the last attempt came, over all sockets",
            |sockets| sum(sockets, |socket| socket.buffer),
        ),
        gauge(
            "buffer_limit_bytes",
            "buffer_limit",
            "How many bytes the receive buffers may have, over all sockets",
            |sockets| sum(sockets, |socket| socket.buffer_limit),
        ),
        gauge(
            "standing",
            "standing",
            "Sockets whose wait has stood over target_wait: weir refuses attempts there that would wait longer, or would in observe mode",
            |sockets| sum(sockets, |socket| u32::from(socket.standing)),
        ),
    ]
}

fn sum(sockets: &[QuicSocket], figure: fn(&QuicSocket) -> u32) -> f64 {
    sockets.iter().map(|socket| f64::from(figure(socket))).sum()
}

impl Labelled for Quic {
    const LABELS: &'static [&'static str] = &["quic"];

    fn each(figures: &Figures, take: &mut dyn FnMut(Vec<String>, &Self)) {
        for quic in &figures.quic {
            take(vec![quic.name.clone()], quic);
        }
    }
}

/// `weir_quic_vn_wait` of the verdict `quic_vn_wait`.
fn verdict(row: &'static QuicVerdictInfo) -> Metric {
    let source = Source {
        of: row.name,
        help: row.text,
    };
    metric(
        format!("weir_{}", row.name),
        Kind::Counter,
        source,
        move |quic: &Quic| {
            let count = quic.counters.get(row.name).copied();
            Some(Value::Count(count.unwrap_or(0)))
        },
    )
}

/// Of a listener that is only observed.
fn estimate(name: &'static str, value: fn(&Quic) -> Option<u64>) -> Metric {
    metric(
        format!("weir_quic_{name}"),
        Kind::Counter,
        of("Quic", name),
        move |quic: &Quic| value(quic).map(Value::Count),
    )
}

/// Of a field of the sockets.
fn gauge(
    name: &str,
    field: &'static str,
    help: &'static str,
    value: fn(&[QuicSocket]) -> f64,
) -> Metric {
    let source = Source { of: field, help };
    metric(
        format!("weir_quic_{name}"),
        Kind::Gauge,
        source,
        move |quic: &Quic| Some(Value::Level(value(&quic.sockets))),
    )
}
