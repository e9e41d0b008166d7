//! One measured point, and the rounds of it together.

use serde::Serialize;

use super::case::Case;
use crate::proxy::contender::Contender;

/// One contender in one case in one round.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Who.
    pub contender: Contender,
    /// What.
    #[serde(flatten)]
    pub case: Case,
    /// Replies/s.
    pub replies_per_s: f64,
    /// CPU time on the proxy's core per reply, in µs.
    pub cpu_us: f64,
    /// CPU time on all cores per reply, clients and origin included, in µs.
    pub system_us: f64,
    /// Share of the proxy's core that was busy, 0 to 1.
    pub busy: f64,
    /// Median latency, in µs.
    pub p50_us: f64,
    /// 99th percentile of the latency, in µs.
    pub p99_us: f64,
    /// TCP segments of the peers per packet behind GRO at the proxy.
    pub segments_per_packet: f64,
    /// Packets of the origin that were lost before the proxy.
    pub dropped: i64,
}

impl Row {
    /// A row without measurements.
    pub fn new(contender: Contender, case: Case) -> Row {
        Row {
            contender,
            case,
            replies_per_s: 0.0,
            cpu_us: 0.0,
            system_us: 0.0,
            busy: 0.0,
            p50_us: 0.0,
            p99_us: 0.0,
            segments_per_packet: 0.0,
            dropped: 0,
        }
    }
}

/// The rounds of one contender in one case.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    /// Who.
    pub contender: Contender,
    /// What.
    #[serde(flatten)]
    pub case: Case,
    /// Rounds.
    pub rounds: usize,
    /// Medians, number by number; of the losses the most.
    pub median: Row,
    /// Least and most CPU time per reply, in µs.
    pub cpu_range_us: (f64, f64),
    /// Least and most 99th percentile, in µs.
    pub p99_range_us: (f64, f64),
}

impl Summary {
    /// Summarizes the rounds of one point; `None` without any.
    pub fn of(rows: &[Row]) -> Option<Summary> {
        let first = rows.first()?;
        let median = |field: fn(&Row) -> f64| {
            let mut values: Vec<f64> = rows.iter().map(field).collect();
            values.sort_by(f64::total_cmp);
            let middle = values.len() / 2;
            if values.len() % 2 == 1 {
                values[middle]
            } else {
                (values[middle - 1] + values[middle]) / 2.0
            }
        };
        let range = |field: fn(&Row) -> f64| {
            let values = rows.iter().map(field);
            (
                values.clone().fold(f64::INFINITY, f64::min),
                values.fold(0.0, f64::max),
            )
        };
        Some(Summary {
            contender: first.contender,
            case: first.case,
            rounds: rows.len(),
            median: Row {
                replies_per_s: median(|row| row.replies_per_s),
                cpu_us: median(|row| row.cpu_us),
                system_us: median(|row| row.system_us),
                busy: median(|row| row.busy),
                p50_us: median(|row| row.p50_us),
                p99_us: median(|row| row.p99_us),
                segments_per_packet: median(|row| row.segments_per_packet),
                dropped: rows.iter().map(|row| row.dropped).max().unwrap_or(0),
                ..first.clone()
            },
            cpu_range_us: range(|row| row.cpu_us),
            p99_range_us: range(|row| row.p99_us),
        })
    }
}
