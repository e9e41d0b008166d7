//! What an emulated link has counted.

use hdrhistogram::Histogram;
use serde::Serialize;
use weir_core::units::format_bit_rate;
use weir_sim::aqm::Stats;

use crate::show::table::table;

/// Both directions.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Report {
    /// How long it carried packets, s.
    pub seconds: f64,
    /// To the near side.
    pub down: Direction,
    /// To the far side.
    pub up: Direction,
}

/// One direction. Packets are counted with their IP headers; the link has no others.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Direction {
    /// Of its queue.
    pub discipline: String,
    /// Rate, bit/s.
    pub rate_bits_per_s: u64,
    /// Delay of the wire, ms.
    pub delay_ms: f64,
    /// Packets that came to its queue.
    pub received_packets: u64,
    /// Bytes of them.
    pub received_bytes: u64,
    /// Packets that left the queue.
    pub sent_packets: u64,
    /// Bytes of them.
    pub sent_bytes: u64,
    /// Packets dropped for want of room.
    pub dropped_full: u64,
    /// Packets dropped by a probability.
    pub dropped_early: u64,
    /// Packets dropped for their delay.
    pub dropped_delay: u64,
    /// SYNs and SYN/ACKs among those three.
    pub dropped_syns: u64,
    /// Packets marked instead of dropped.
    pub marked: u64,
    /// Packets that went to the high queue.
    pub high: u64,
    /// Control segments that did not, because a rate was used up.
    pub demoted: u64,
    /// Packets that wait in the queue.
    pub waiting_packets: u64,
    /// Packets that the wire lost.
    pub lost: u64,
    /// Packets that are on the wire: they have been sent and have not arrived.
    pub on_the_wire: u64,
    /// Packets that arrived.
    pub delivered: u64,
    /// Packets that the kernel did not take when they arrived.
    pub refused: u64,
    /// Time that packets have waited in the queue.
    pub queue_delay: Times,
    /// How much later than they were due packets arrived, because the link was not woken in time.
    pub late: Times,
    /// What the queue has counted, as the simulation has it.
    #[serde(skip)]
    pub stats: Stats,
}

/// A distribution of times, ms.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Times {
    /// Mean.
    pub mean_ms: f64,
    /// Median.
    pub p50_ms: f64,
    /// 95th percentile.
    pub p95_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// The longest.
    pub max_ms: f64,
}

impl Times {
    /// Of times in ns; all 0 of none.
    pub fn of(histogram: &Histogram<u64>) -> Times {
        let at = |share| histogram.value_at_quantile(share) as f64 / 1e6;
        Times {
            mean_ms: histogram.mean() / 1e6,
            p50_ms: at(0.5),
            p95_ms: at(0.95),
            p99_ms: at(0.99),
            max_ms: histogram.max() as f64 / 1e6,
        }
    }
}

impl Direction {
    /// Packets that the queue dropped.
    pub fn dropped(&self) -> u64 {
        self.dropped_full + self.dropped_early + self.dropped_delay
    }
}

impl Report {
    /// For people.
    pub fn text(&self) -> String {
        let head = [
            "",
            "rate",
            "discipline",
            "packets",
            "sent",
            "dropped",
            "of them SYN",
            "marked",
            "lost on the wire",
            "queue delay: mean ms",
            "p95",
            "p99",
            "late: p99 ms",
        ];
        let row = |name: &str, direction: &Direction| {
            let ms = |time: f64| format!("{time:.1}");
            vec![
                name.to_owned(),
                format_bit_rate(direction.rate_bits_per_s),
                direction.discipline.clone(),
                direction.received_packets.to_string(),
                direction.sent_packets.to_string(),
                direction.dropped().to_string(),
                direction.dropped_syns.to_string(),
                direction.marked.to_string(),
                direction.lost.to_string(),
                ms(direction.queue_delay.mean_ms),
                ms(direction.queue_delay.p95_ms),
                ms(direction.queue_delay.p99_ms),
                format!("{:.2}", direction.late.p99_ms),
            ]
        };
        let rows = [row("down", &self.down), row("up", &self.up)];
        format!(
            "{:.1} s\n{}",
            self.seconds,
            table(&head.map(str::to_owned), &rows)
        )
    }
}
