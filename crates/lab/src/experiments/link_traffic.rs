//! Queueing disciplines before a slow link, with the kernel's own TCP over an emulated link ([`crate::link`]): the traffic
//! of BHD18, Table III, through each of `weir_sim::aqm`, and beside it what the simulation says for the same arrivals.
//!
//! A round is a seed, as in [`super::sim`]. Its disciplines have a link each, at the same time: a slow link leaves the
//! machine nearly idle, and what disturbs one disturbs all. A round does not count if a link was late.

use std::collections::BTreeMap;
use std::time::Duration;

use weir_sim::aqm::Discipline;
use weir_sim::connection::Spec;
use weir_sim::{Kind, Outcome, Plan, Scenario};

use super::sim::hosts::{DRAIN_S, Hosts};
use super::sim::{BURST, Traffic, Upload, claims, groups_of, sample};
use crate::error::Result;
use crate::link::hosts::{Servers, carry_out};
use crate::link::report::Report;
use crate::link::{self, Emulated, Lanes};
use crate::run::experiment::{
    Beside, Entry, Experiment, Flags, Program, Turn, check_seconds, chosen, parsed, word,
};
use crate::run::results::{Claim, Facts, Parameters, Results, Sample, Show, parameters};

const LINK: Entry = Entry::new::<Args>(
    "link-traffic",
    "What does each queueing discipline before a slow link do to short connections of the kernel's TCP?",
)
.source("BHD18 Table III, Figures 5 to 10")
.flags(
    "--seconds 60 --rounds 6",
    "--seconds 13 --traffic real --uploads no --disciplines fifo,spa-fq",
);

/// The experiments.
pub const ENTRIES: &[Entry] = &[
    LINK,
    LINK.preset(
        "link-burst",
        "How long do connections of a burst wait for their SYN/ACK over a slow link, with the kernel's TCP?",
    )
    .source("beyond the papers")
    .flags(
        "--burst 200 --both --traffic real --uploads no --seconds 65 --rounds 6",
        "--burst 200 --both --traffic real --uploads no --seconds 45 --disciplines fq-codel,spa-fq",
    ),
];

/// A link that delivers one packet in a hundred later than this is no judge of disciplines, ms.
const LATE_MS: f64 = 1.0;
/// What a simulated connection knows and a real one does not tell.
const SIMULATED_ONLY: [&str; 3] = ["timeouts", "rtt_mean_ms", "repeat_delay_mean_ms"];
/// What the simulation's metrics begin with.
const SIMULATED: &str = "sim_";

/// Arguments of `weir-lab link-traffic`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Traffic
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "real,short,10m"
    )]
    pub traffic: Vec<Traffic>,
    /// Whether one client uploads without end
    #[arg(long, value_enum, value_delimiter = ',', default_value = "no,yes")]
    pub uploads: Vec<Upload>,
    /// Disciplines of the downlink
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "NAME",
        default_value = "fifo,codel,pie,fq-codel,spa-paper,spa,spa-fq"
    )]
    pub disciplines: Vec<Discipline>,
    /// The uplink has the downlink's discipline; without it FIFO, as in the paper
    #[arg(long)]
    pub both: bool,
    /// Time in which connections begin, s; the first ten do not count
    #[arg(long, default_value_t = 60.0)]
    pub seconds: f64,
    /// Besides, so many connections of 3 segments within 2 s, each 20 s
    #[arg(long, default_value_t = 0)]
    pub burst: u32,
    /// ECN at all hosts and in all disciplines that can mark
    #[arg(long)]
    pub ecn: bool,
}

impl Flags for Args {
    fn experiment(self, _program: &Program) -> Result<Box<dyn Experiment>> {
        check_seconds("--seconds", self.seconds)?;
        Ok(Box::new(LinkTraffic {
            args: self,
            round: Beside::default(),
        }))
    }
}

/// Samples by discipline.
type Round = BTreeMap<String, Sample>;

struct LinkTraffic {
    args: Args,
    /// By traffic, upload and round.
    round: Beside<(String, String, usize), Round>,
}

impl Args {
    /// The hosts of the simulation: those of the kernel.
    fn hosts(&self) -> Hosts {
        Hosts {
            initial_window: 10.0,
            reno: false,
            ecn: self.ecn,
            target_ms: 5,
        }
    }

    fn scenario(&self, kind: Kind, plan: Plan, discipline: Discipline) -> Scenario {
        let (down, up) = kind.rates();
        let uplink = match self.both {
            true => discipline,
            false => Discipline::Fifo,
        };
        let hosts = self.hosts();
        hosts.scenario((discipline, down), (uplink, up), plan)
    }

    /// All disciplines, each over a link of its own, and simulated.
    fn carry_out(&self, traffic: Traffic, upload: Upload, seed: u64) -> Result<Round> {
        let kind = Kind::from(traffic);
        let plan = Plan {
            upload: upload == Upload::Yes,
            burst: (self.burst > 0).then_some(weir_sim::traffic::Burst {
                connections: self.burst,
                ..BURST
            }),
            ..Plan::of(kind, self.seconds)
        };
        let connections = &plan.connections(seed);
        let scenarios = self.disciplines.iter();
        let scenarios: Vec<Scenario> = scenarios
            .map(|discipline| self.scenario(kind, plan, *discipline))
            .collect();
        let real: Result<Vec<Sample>> = std::thread::scope(|scope| {
            let threads: Vec<_> = scenarios
                .iter()
                .map(|scenario| scope.spawn(move || over_link(scenario, connections, seed)))
                .collect();
            let samples = threads.into_iter().map(|thread| match thread.join() {
                Ok(sample) => sample,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            samples.collect()
        });
        let simulated = scenarios.iter().map(|scenario| {
            let outcome = weir_sim::run(scenario, seed);
            sample::of(&outcome, self.seconds + DRAIN_S)
        });
        let names = self.disciplines.iter().map(Discipline::to_string);
        let case = |name: &String| parameters([("discipline", name.clone())]);
        let mut simulated: Vec<_> = names
            .clone()
            .map(|name| case(&name))
            .zip(simulated)
            .collect();
        claims::add_ratios(&mut simulated);
        let with_simulated = |(mut sample, (_, simulated)): (Sample, (Parameters, Sample))| {
            let simulated = simulated.metrics.into_iter();
            let named = simulated.map(|(name, value)| (format!("{SIMULATED}{name}"), value));
            sample.metrics.extend(named);
            sample
        };
        let samples = real?.into_iter().zip(simulated).map(with_simulated);
        Ok(names.zip(samples).collect())
    }
}

/// The connections over an emulated link.
fn over_link(scenario: &Scenario, connections: &[Spec], seed: u64) -> Result<Sample> {
    let link = Emulated::start(link::Spec {
        down: scenario.down,
        up: scenario.up,
        lanes: Lanes::Shared,
        ecn: scenario.tcp.ecn,
        seed,
    })?;
    let servers = Servers::start(&link)?;
    let seconds = scenario.plan.seconds + scenario.drain_s;
    let records = carry_out(&link, connections, Duration::from_secs_f64(seconds))?;
    let report = link.stop()?;
    drop(servers);
    Ok(sample_of(records, &report, seconds))
}

fn sample_of(records: Vec<weir_sim::outcome::Record>, report: &Report, seconds: f64) -> Sample {
    let both = [&report.down, &report.up];
    let outcome = Outcome {
        records,
        queues: both.map(|direction| direction.stats),
        dropped_syns: both.map(|direction| direction.dropped_syns),
        received_at: Vec::new(),
    };
    let mut sample = sample::of(&outcome, seconds);
    sample
        .metrics
        .retain(|name, _| !SIMULATED_ONLY.contains(&name.as_str()));
    let late_ms = report.down.late.p99_ms.max(report.up.late.p99_ms);
    sample.add([
        ("queue_delay_mean_ms", report.down.queue_delay.mean_ms),
        ("late_p99_ms", late_ms),
    ]);
    sample.flaw = (late_ms > LATE_MS)
        .then(|| format!("the link delivered one packet in a hundred over {late_ms:.1} ms late"));
    sample
}

impl Experiment for LinkTraffic {
    fn groups(&self) -> Vec<Vec<Parameters>> {
        let args = &self.args;
        let disciplines: Vec<_> = args.disciplines.iter().map(Discipline::to_string).collect();
        groups_of(&args.traffic, &args.uploads, "discipline", &disciplines)
    }

    fn open(&mut self, facts: &mut Facts) -> Result<()> {
        let ecn = if self.args.ecn { ", ECN" } else { "" };
        facts.insert("hosts".into(), format!("the kernel's CUBIC{ecn}").into());
        facts.insert(
            "simulated_hosts".into(),
            self.args.hosts().describe().into(),
        );
        let uplink = if self.args.both {
            "as the downlink"
        } else {
            "fifo"
        };
        facts.insert("uplink".into(), uplink.into());
        Ok(())
    }

    fn measure(&mut self, case: &Parameters, turn: Turn) -> Result<Sample> {
        let (traffic, upload) = (chosen(case, "traffic")?, chosen(case, "upload")?);
        let discipline: Discipline = parsed(case, "discipline")?;
        let key = (word(&traffic), word(&upload), turn.round);
        let args = &self.args;
        let round = self
            .round
            .get(key, || args.carry_out(traffic, upload, turn.seed))?;
        Ok(round[discipline.name()].clone())
    }

    fn compare(&self, round: &mut [(Parameters, Sample)]) {
        claims::add_ratios(round);
    }

    fn claims(&self, results: &Results) -> Vec<Claim> {
        match self.args.burst {
            0 => claims::of_traffic(results),
            _ => claims::of_bursts(results),
        }
    }

    fn show(&self) -> Show {
        let mut columns = vec![
            ("traffic", "{traffic}"),
            ("upload", "{upload}"),
            ("discipline", "{discipline}"),
            ("connect ms", "{connect_mean_ms|n}"),
            ("sim", "{sim_connect_mean_ms|n}"),
            ("1 segment", "{segments_1_ms|n}"),
            ("sim", "{sim_segments_1_ms|n}"),
            ("2–3", "{segments_2_3_ms|n}"),
            ("sim", "{sim_segments_2_3_ms|n}"),
            ("4–10", "{segments_4_10_ms|n}"),
            ("sim", "{sim_segments_4_10_ms|n}"),
            ("11–50", "{segments_11_50_ms|n}"),
            ("sim", "{sim_segments_11_50_ms|n}"),
            ("p95 ms", "{response_p95_ms|n}"),
            ("sim", "{sim_response_p95_ms|n}"),
            ("SYNs dropped", "{syns_dropped|n}"),
            ("sim", "{sim_syns_dropped|n}"),
            ("lost", "{lost|%1}"),
            ("sim", "{sim_lost|%1}"),
        ];
        if self.args.burst > 0 {
            columns.push(("connect of the burst: mean", "{burst_connect_mean_ms|n}"));
            columns.push(("sim", "{sim_burst_connect_mean_ms|n}"));
            columns.push(("p95", "{burst_connect_p95_ms|n}"));
            columns.push(("sim", "{sim_burst_connect_p95_ms|n}"));
        }
        Show::columns(&columns)
    }

    fn rounds(&self) -> usize {
        6
    }
}
