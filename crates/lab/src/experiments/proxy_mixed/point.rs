//! What is measured: one side is there all the time and is watched, of the other more and more is added.

use serde::Serialize;

use crate::experiments::proxy_bench::{Size, Spread};
use crate::proxy::contender::Contender;

/// What requests are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// Served from the cache.
    Hits,
    /// Passed through to the origin.
    Passed,
}

impl Side {
    /// Both, in the order of RR02's Figures 18 and 19.
    pub const WATCHED: [Side; 2] = [Side::Passed, Side::Hits];

    /// The one that is added while this one is watched.
    pub fn other(self) -> Side {
        match self {
            Side::Hits => Side::Passed,
            Side::Passed => Side::Hits,
        }
    }

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Side::Hits => "hits",
            Side::Passed => "passed",
        }
    }
}

/// When clients ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Pace {
    /// As soon as they have their reply, as RR02's; amounts are clients.
    Closed,
    /// At a rate that takes a share of the proxy's core; amounts are shares, 0 to 1.
    Paced,
}

impl Pace {
    /// Its name in tables and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Pace::Closed => "closed",
            Pace::Paced => "paced",
        }
    }

    /// An amount, for people.
    pub fn amount(self, amount: f64) -> String {
        match self {
            Pace::Closed => format!("{amount:.0}"),
            Pace::Paced => format!("{:.0} %", amount * 100.0),
        }
    }
}

/// One line of a figure: what is watched, and how the other side is added.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Line {
    /// Whose latency is looked at.
    pub watched: Side,
    /// How both sides ask.
    pub pace: Pace,
    /// Bytes of each body, on both sides.
    #[serde(rename = "bytes")]
    pub size: Size,
    /// Who.
    pub contender: Contender,
}

/// One window.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Row {
    /// How much of the other side was added; the unit is the pace's.
    pub added: f64,
    /// Median latency of the watched side, in µs.
    pub p50_us: f64,
    /// Its mean, in µs.
    pub mean_us: f64,
    /// Its 99th percentile, in µs.
    pub p99_us: f64,
    /// Replies/s of the watched side.
    pub watched_per_s: f64,
    /// Replies/s of the other side.
    pub added_per_s: f64,
    /// Share of the proxy's core that was busy, 0 to 1.
    pub busy: f64,
    /// Share of the lab's core that was busy, 0 to 1.
    pub lab_busy: f64,
    /// Packets of the origin that were lost before the proxy.
    pub dropped: i64,
}

/// The rounds of one amount on a line.
#[derive(Debug, Clone, Serialize)]
pub struct Step {
    /// How much of the other side was added; the unit is the pace's.
    pub added: f64,
    /// Median latency of the watched side, in µs.
    pub p50_us: Spread,
    /// Its 99th percentile, in µs.
    pub p99_us: Spread,
    /// By how much the median latency has grown against nothing added, in µs; within each round.
    pub growth_us: Spread,
    /// The same as a factor.
    pub growth: Spread,
    /// Share of the proxy's core that was busy.
    pub busy: Spread,
    /// Share of the lab's core that was busy.
    pub lab_busy: Spread,
    /// The rounds, in order.
    pub rounds: Vec<Row>,
}

/// A line, measured.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    /// Which.
    #[serde(flatten)]
    pub line: Line,
    /// By amount; the first has nothing added.
    pub steps: Vec<Step>,
}

impl Summary {
    /// `rounds` has one list of rows for each round, by amount, all of the same length and beginning with
    /// nothing added.
    pub fn of(line: Line, rounds: &[Vec<Row>]) -> Summary {
        let amounts = rounds.first().map_or(0, Vec::len);
        Summary {
            line,
            steps: (0..amounts).map(|place| step(place, rounds)).collect(),
        }
    }
}

fn step(place: usize, rounds: &[Vec<Row>]) -> Step {
    let spread = |value: &dyn Fn(&Row, &Row) -> f64| {
        Spread::of(rounds.iter().map(|rows| value(&rows[place], &rows[0])))
    };
    Step {
        added: rounds[0][place].added,
        p50_us: spread(&|row, _| row.p50_us),
        p99_us: spread(&|row, _| row.p99_us),
        growth_us: spread(&|row, alone| row.p50_us - alone.p50_us),
        growth: spread(&|row, alone| row.p50_us / alone.p50_us),
        busy: spread(&|row, _| row.busy),
        lab_busy: spread(&|row, _| row.lab_busy),
        rounds: rounds.iter().map(|rows| rows[place]).collect(),
    }
}

#[cfg(test)]
impl Row {
    /// One of which only the latency counts.
    pub fn of(added: f64, p50_us: f64) -> Row {
        Row {
            added,
            p50_us,
            mean_us: p50_us,
            p99_us: p50_us,
            watched_per_s: 0.0,
            added_per_s: 0.0,
            busy: 0.0,
            lab_busy: 0.0,
            dropped: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_taken_within_a_round() {
        let line = Line {
            watched: Side::Hits,
            pace: Pace::Closed,
            size: Size(1024),
            contender: Contender::Weir,
        };
        // The machine is three times slower in the second round.
        let rounds = [
            vec![Row::of(0.0, 100.0), Row::of(40.0, 150.0)],
            vec![Row::of(0.0, 300.0), Row::of(40.0, 450.0)],
        ];
        let summary = Summary::of(line, &rounds);
        let added = &summary.steps[1];
        assert_eq!((added.growth.low, added.growth.high), (1.5, 1.5));
        assert_eq!(added.growth_us.median, 100.0);
        assert_eq!(summary.steps[0].growth.median, 1.0);
    }
}
