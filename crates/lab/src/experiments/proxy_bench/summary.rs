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
    /// Of it the part in the proxy's own code, in µs. The kernel counts it in steps of 10 ms: rounds are averaged.
    pub user_us: f64,
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
            user_us: 0.0,
            system_us: 0.0,
            busy: 0.0,
            p50_us: 0.0,
            p99_us: 0.0,
            segments_per_packet: 0.0,
            dropped: 0,
        }
    }
}

/// Median and quartiles of some values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    /// A quarter of the values is at most this.
    pub low: f64,
    /// The median.
    pub median: f64,
    /// A quarter of the values is at least this.
    pub high: f64,
}

impl Spread {
    /// Of at least one value.
    pub fn of(values: impl Iterator<Item = f64>) -> Spread {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let place = share * (values.len() - 1) as f64;
            let (below, above) = (
                values[place.floor() as usize],
                values[place.ceil() as usize],
            );
            below + (above - below) * place.fract()
        };
        Spread {
            low: at(0.25),
            median: at(0.5),
            high: at(0.75),
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
    /// Medians, number by number; of the time in the proxy's own code the mean, of the losses the most.
    pub median: Row,
    /// CPU time on the proxy's core per reply, in µs.
    pub cpu_us: Spread,
    /// The rounds, in order.
    pub rounds: Vec<Row>,
}

impl Summary {
    /// Summarizes the rounds of one point; `None` without any.
    pub fn of(rounds: &[Row]) -> Option<Summary> {
        let first = rounds.first()?;
        let spread = |field: fn(&Row) -> f64| Spread::of(rounds.iter().map(field));
        let median = |field| spread(field).median;
        let user_us: f64 = rounds.iter().map(|row| row.user_us).sum();
        Some(Summary {
            contender: first.contender,
            case: first.case,
            median: Row {
                replies_per_s: median(|row| row.replies_per_s),
                cpu_us: median(|row| row.cpu_us),
                user_us: user_us / rounds.len() as f64,
                system_us: median(|row| row.system_us),
                busy: median(|row| row.busy),
                p50_us: median(|row| row.p50_us),
                p99_us: median(|row| row.p99_us),
                segments_per_packet: median(|row| row.segments_per_packet),
                dropped: rounds.iter().map(|row| row.dropped).max().unwrap_or(0),
                ..first.clone()
            },
            cpu_us: spread(|row| row.cpu_us),
            rounds: rounds.to_vec(),
        })
    }

    /// This one's value over another's of the same case, compared round by round: within a round the two were
    /// measured one right after the other.
    pub fn ratio(&self, other: &Summary, value: impl Fn(&Row) -> f64) -> Spread {
        let pairs = self.rounds.iter().zip(&other.rounds);
        Spread::of(pairs.map(|(own, others)| value(own) / value(others)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::proxy_bench::case::{Kind, Size};

    fn summary(contender: Contender, cpu_us: [f64; 3]) -> Summary {
        let case = Case {
            kind: Kind::Get,
            size: Size(1024),
            clients: 40,
        };
        let row = |cpu_us| Row {
            cpu_us,
            ..Row::new(contender, case)
        };
        Summary::of(&cpu_us.map(row)).unwrap()
    }

    #[test]
    fn a_machine_that_slows_down_does_not_change_ratios() {
        let weir = summary(Contender::Weir, [5.0, 10.0, 20.0]);
        let nginx = summary(Contender::Nginx, [10.0, 20.0, 40.0]);
        let half = Spread {
            low: 0.5,
            median: 0.5,
            high: 0.5,
        };
        assert_eq!(weir.ratio(&nginx, |row| row.cpu_us), half);
    }
}
