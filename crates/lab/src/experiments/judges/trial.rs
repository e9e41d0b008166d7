//! A discipline of the simulator and that of a judge, with the same arrivals. A round is a seed.
//!
//! With `queue` the arrivals depend on nothing ([`super::arrivals`]), and only the discipline differs; with `tcp` they are
//! connections, and the judge has its own TCP.

use weir_sim::aqm::{AnyQueue, Count, Discipline, Stats};
use weir_sim::connection::TcpSpec;
use weir_sim::outcome::Record;
use weir_sim::tcp::Algorithm;
use weir_sim::{Kind, Outcome, Plan};

use super::arrivals::{self, Arrival};
use super::model::{self, Departures, Figures, Numbered};
use crate::error::Result;
use crate::experiments::sim::sample;
use crate::run::experiment::{Experiment, Turn, chosen, parsed, word};
use crate::run::results::{Case, Claim, Facts, Parameters, Results, Sample, Show, parameters};
use crate::run::statistics::Spread;

/// What both sides are given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum What {
    /// Packets whose times are fixed, on 2.4 Mb/s
    Queue,
    /// The same on 10 Mb/s
    #[value(name = "queue-10m")]
    Queue10m,
    /// Connections of "Real" on 2.4 and 0.4 Mb/s
    Tcp,
}

impl What {
    /// Downlink and uplink, bit/s.
    fn rates(self) -> (u64, u64) {
        match self {
            What::Queue | What::Tcp => Kind::Real.rates(),
            What::Queue10m => Kind::TenM.rates(),
        }
    }
}

/// How far a judge's figures may be from the simulator's.
#[derive(Debug, Clone, Copy)]
struct Tolerance {
    /// Of a time, as a share of the judge's.
    time: f64,
    /// Of a share of packets.
    lost: f64,
}

/// The arrivals are fixed: what is left are clocks, rounding, hashes and random numbers.
const OF_QUEUES: Tolerance = Tolerance {
    time: 0.05,
    lost: 0.005,
};
/// Each side has a TCP of its own.
const OF_TCP: Tolerance = Tolerance {
    time: 0.25,
    lost: 0.03,
};

/// Another implementation of the disciplines.
pub trait Judge {
    /// Makes ready what all cases use.
    fn open(&mut self, facts: &mut Facts) -> Result<()>;

    /// The simulator's queue that is to do the same, for fixed arrivals.
    fn model(&self, job: Job) -> AnyQueue<Numbered> {
        model::queue(job.discipline, job.rates.0)
    }

    /// Whether its link is a shaper, which lets a packet pass when it is its turn.
    fn passes_at_once(&self) -> bool;

    /// A discipline before a link.
    fn departures(&mut self, job: Job, arrivals: &[Arrival]) -> Result<Departures>;

    /// Connections through a bottleneck.
    fn connections(&mut self, job: Job, plan: &Plan) -> Result<Outcome>;
}

/// What a judge is to do.
#[derive(Debug, Clone, Copy)]
pub struct Job {
    /// The discipline of the downlink.
    pub discipline: Discipline,
    /// Downlink and uplink, bit/s.
    pub rates: (u64, u64),
    /// Of everything random.
    pub seed: u64,
}

/// Flags of both.
#[derive(Debug, Clone, clap::Args)]
pub struct Common {
    /// What both sides are given
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "queue,queue-10m,tcp"
    )]
    pub what: Vec<What>,
    /// Time in which packets or connections come, s
    #[arg(long, default_value_t = 300.0)]
    pub seconds: f64,
}

/// The experiment with one of the judges.
#[derive(Debug)]
pub struct Trial<J> {
    /// Flags.
    pub common: Common,
    /// What both have.
    pub disciplines: Vec<Discipline>,
    /// The judge.
    pub judge: J,
}

/// Delays of the wires there and back, ms. ns-3's wire has one for both ways.
pub const RTT_MS: u64 = 94;

impl<J: Judge> Experiment for Trial<J> {
    fn groups(&self) -> Vec<Vec<Parameters>> {
        let of = |what: &What| {
            let case = |discipline: &Discipline| {
                parameters([("what", word(what)), ("discipline", discipline.to_string())])
            };
            self.disciplines.iter().map(case).collect()
        };
        self.common.what.iter().map(of).collect()
    }

    fn open(&mut self, facts: &mut Facts) -> Result<()> {
        self.judge.open(facts)
    }

    fn measure(&mut self, case: &Parameters, turn: Turn) -> Result<Sample> {
        let what = chosen::<What>(case, "what")?;
        let job = Job {
            discipline: parsed(case, "discipline")?,
            rates: what.rates(),
            seed: turn.seed,
        };
        let (own, judge) = match what {
            What::Queue | What::Queue10m => self.queue(job)?,
            What::Tcp => self.tcp(job)?,
        };
        let off = |own: f64, judge: f64| own / judge - 1.0;
        Ok(Sample::of([
            ("delay_mean_ms", own.delay_mean_ms),
            ("judge_delay_mean_ms", judge.delay_mean_ms),
            ("delay_off", off(own.delay_mean_ms, judge.delay_mean_ms)),
            ("lost", own.lost),
            ("judge_lost", judge.lost),
            ("lost_off", own.lost - judge.lost),
            ("response_p95_ms", own.response_p95_ms),
            ("judge_response_p95_ms", judge.response_p95_ms),
            (
                "response_off",
                off(own.response_p95_ms, judge.response_p95_ms),
            ),
        ]))
    }

    fn claims(&self, results: &Results) -> Vec<Claim> {
        results.cases.iter().flat_map(claims_of).collect()
    }

    fn show(&self) -> Show {
        Show::columns(&[
            ("what", "{what}"),
            ("discipline", "{discipline}"),
            ("delay: weir, ms", "{delay_mean_ms|.1}"),
            ("judge", "{judge_delay_mean_ms|.1}"),
            ("off", "{delay_off|%1}"),
            ("lost: weir", "{lost|%1}"),
            ("judge", "{judge_lost|%1}"),
            ("response, p95: weir, ms", "{response_p95_ms|n}"),
            ("judge", "{judge_response_p95_ms|n}"),
            ("off", "{response_off|%1}"),
        ])
    }
}

impl<J: Judge> Trial<J> {
    fn queue(&mut self, job: Job) -> Result<(Figures, Figures)> {
        let (rate, _) = job.rates;
        let arrivals = arrivals::of_link(rate, self.common.seconds, job.seed);
        let own = model::departures(&arrivals, self.judge.model(job), rate, job.seed);
        let judge = self.judge.departures(job, &arrivals)?;
        Ok((
            model::figures(&arrivals, &own),
            model::figures(&arrivals, &judge),
        ))
    }

    /// Here the delay is the servers' smoothed round-trip time at the end, and the response that of a connection.
    fn tcp(&mut self, job: Job) -> Result<(Figures, Figures)> {
        let plan = Plan::of(Kind::Real, self.common.seconds);
        let judge = self.judge.connections(job, &plan)?;
        let own = weir_sim::run(&scenario(job, plan, self.judge.passes_at_once()), job.seed);
        let of = |outcome| {
            let sample = sample::of(outcome, plan.seconds + DRAIN_S);
            Figures {
                delay_mean_ms: sample.get("last_rtt_mean_ms"),
                lost: sample.get("lost"),
                response_p95_ms: sample.get("response_p95_ms"),
            }
        };
        Ok((of(&own), of(&judge)))
    }
}

/// Connections may end so long after the last one has begun, s.
pub const DRAIN_S: f64 = 60.0;

/// Of a judge, whose downlink has sent and dropped so many packets.
pub fn outcome(records: Vec<Record>, sent: u64, dropped: u64) -> Outcome {
    let packets = |packets| Count { packets, bytes: 0 };
    let down = Stats {
        received: packets(sent + dropped),
        sent: packets(sent),
        dropped_full: dropped,
        ..Stats::default()
    };
    Outcome {
        records,
        queues: [down, Stats::default()],
        dropped_syns: [0; 2],
        received_at: Vec::new(),
    }
}

fn scenario(job: Job, plan: Plan, passes_at_once: bool) -> weir_sim::Scenario {
    let link = |discipline, bits_per_s: u64| weir_sim::LinkSpec {
        discipline,
        setup: weir_sim::aqm::Setup::of_ip(bits_per_s / 8),
        delay_ns: RTT_MS * 1_000_000 / 2,
        loss: weir_sim::Loss::default(),
        passes_at_once,
    };
    weir_sim::Scenario {
        down: link(job.discipline, job.rates.0),
        up: link(Discipline::Fifo, job.rates.1),
        tcp: TcpSpec {
            algorithm: Algorithm::Cubic,
            initial_window: 10.0,
            ecn: false,
        },
        plan,
        flood: None,
        drain_s: DRAIN_S,
        marks_s: Vec::new(),
    }
}

fn claims_of(case: &Case) -> [Claim; 3] {
    let tolerance = match case.parameter("what") {
        "tcp" => OF_TCP,
        _ => OF_QUEUES,
    };
    let within = |limit: f64| move |off: Spread| off.median.abs() <= limit;
    let (time, lost) = (tolerance.time * 100.0, tolerance.lost * 100.0);
    [
        Claim::about(
            &format!("mean delay within {time} % of the judge's"),
            case,
            "delay_off",
            within(tolerance.time),
        ),
        Claim::about(
            &format!("loss within {lost} percentage points of the judge's"),
            case,
            "lost_off",
            within(tolerance.lost),
        ),
        Claim::about(
            &format!("p95 of the response within {time} % of the judge's"),
            case,
            "response_off",
            within(tolerance.time),
        ),
    ]
}
