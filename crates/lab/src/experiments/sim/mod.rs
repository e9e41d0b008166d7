//! Queueing disciplines before a slow link, simulated (`weir-sim`): the traffic of BHD18, Table III, through each of
//! `weir_sim::aqm`.
//!
//! A round is a seed. All disciplines of a round carry the same arrivals, so that they are compared round by round: a
//! ratio to another discipline is of one round, and its median and confidence interval are over the rounds.
//! Connections that have not ended when the simulation does count with the time that they have had, and as unfinished.

pub mod claims;
pub mod flood;
pub mod hosts;
pub mod sample;

pub use hosts::Hosts;

use weir_sim::aqm::Discipline;
use weir_sim::traffic::Burst;
use weir_sim::{Kind, Plan};

use self::hosts::DRAIN_S;
use crate::error::Result;
use crate::run::experiment::{
    Entry, Experiment, Flags, Program, Turn, check_seconds, chosen, parsed, word,
};
use crate::run::results::{Claim, Facts, Parameters, Results, Sample, Show, parameters};

const SIM: Entry = Entry::new::<Args>(
    "sim",
    "What does each queueing discipline before a slow link do to short connections?",
)
.source("BHD18 Table III, Figures 5 to 10")
.flags(
    "--seconds 300 --rounds 12",
    "--seconds 20 --traffic real --uploads no",
);

/// The experiments.
pub const ENTRIES: &[Entry] = &[
    SIM,
    SIM.preset(
        "sim-burst",
        "How long do connections of a burst wait for their SYN/ACK, if both ends of a slow link are shaped?",
    )
    .source("beyond the papers")
    .flags(
        "--burst 200 --both --traffic real --uploads no --seconds 300 --rounds 12",
        "--burst 200 --both --traffic real --uploads no --seconds 45",
    ),
    SIM.preset(
        "sim-cake",
        "Is weir's default at least as good as FQ-CoDel and CAKE?",
    )
    .source("beyond the papers")
    .flags(
        "--disciplines fq-codel,cake,spa-fq --seconds 300 --rounds 12",
        "--disciplines fq-codel,cake,spa-fq --seconds 20 --traffic real --uploads no",
    ),
    SIM.preset(
        "sim-cake-burst",
        "Do connections of a burst wait less for their SYN/ACK than under FQ-CoDel and CAKE?",
    )
    .source("beyond the papers")
    .flags(
        "--disciplines fq-codel,cake,spa-fq --burst 200 --both --traffic real --uploads no --seconds 300 --rounds 12",
        "--disciplines fq-codel,cake,spa-fq --burst 200 --both --traffic real --uploads no --seconds 45",
    ),
    SIM.preset(
        "sim-tc",
        "Is weir's default, as the kernel's qdiscs have it, at least as good as FQ-CoDel and CAKE?",
    )
    .source("beyond the papers")
    .flags(
        "--disciplines fq-codel,cake,spa-fq-tc --seconds 300 --rounds 12",
        "--disciplines fq-codel,cake,spa-fq-tc --seconds 20 --traffic real --uploads no",
    ),
    flood::ENTRY,
];

/// Bursts, but for how many connections each has.
pub const BURST: Burst = Burst {
    each_s: 20.0,
    over_s: 2.0,
    connections: 0,
    segments: 3,
};

/// Arguments of `weir-lab sim`.
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
    /// Disciplines of the downlink [default: all but cake and spa-fq-tc]
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    pub disciplines: Vec<Discipline>,
    /// The uplink has the downlink's discipline; without it FIFO, as in the paper
    #[arg(long)]
    pub both: bool,
    /// Time in which connections begin, s
    #[arg(long, default_value_t = 300.0)]
    pub seconds: f64,
    /// Besides, so many connections of 3 segments within 2 s, each 20 s
    #[arg(long, default_value_t = 0)]
    pub burst: u32,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub hosts: Hosts,
}

/// BHD18's traffic types.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Traffic {
    /// Mean 21 segments, on 2.4 and 0.4 Mb/s
    Real,
    /// Mean 3 segments, on the same
    Short,
    /// Mean 26 segments, on 10 and 2 Mb/s
    #[value(name = "10m")]
    TenM,
}

/// Whether there is a reverse upload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Upload {
    /// There is none
    No,
    /// One client sends without end
    Yes,
}

impl From<Traffic> for Kind {
    fn from(traffic: Traffic) -> Kind {
        match traffic {
            Traffic::Real => Kind::Real,
            Traffic::Short => Kind::Short,
            Traffic::TenM => Kind::TenM,
        }
    }
}

impl Flags for Args {
    fn experiment(mut self, _program: &Program) -> Result<Box<dyn Experiment>> {
        check_seconds("--seconds", self.seconds)?;
        self.hosts.check()?;
        if self.disciplines.is_empty() {
            self.disciplines = Discipline::ALL.to_vec();
            let others = [Discipline::Cake, Discipline::SpaFqTc];
            self.disciplines.retain(|one| !others.contains(one));
        }
        Ok(Box::new(Sim { args: self }))
    }
}

/// A group for each traffic with and without an upload: a case for each value of the parameter `name`.
pub fn groups_of(
    traffic: &[Traffic],
    uploads: &[Upload],
    name: &str,
    values: &[String],
) -> Vec<Vec<Parameters>> {
    let of = |traffic: &Traffic, upload: &Upload| {
        let case = |value: &String| {
            parameters([
                ("traffic", word(traffic)),
                ("upload", word(upload)),
                (name, value.clone()),
            ])
        };
        values.iter().map(case).collect()
    };
    let pairs = traffic
        .iter()
        .flat_map(|traffic| uploads.iter().map(move |upload| (traffic, upload)));
    pairs.map(|(traffic, upload)| of(traffic, upload)).collect()
}

struct Sim {
    args: Args,
}

impl Experiment for Sim {
    fn groups(&self) -> Vec<Vec<Parameters>> {
        let args = &self.args;
        let disciplines: Vec<_> = args.disciplines.iter().map(Discipline::to_string).collect();
        groups_of(&args.traffic, &args.uploads, "discipline", &disciplines)
    }

    fn open(&mut self, facts: &mut Facts) -> Result<()> {
        facts.insert("hosts".into(), self.args.hosts.describe().into());
        let uplink = if self.args.both {
            "as the downlink"
        } else {
            "fifo"
        };
        facts.insert("uplink".into(), uplink.into());
        Ok(())
    }

    fn measure(&mut self, case: &Parameters, turn: Turn) -> Result<Sample> {
        let kind = Kind::from(chosen::<Traffic>(case, "traffic")?);
        let discipline: Discipline = parsed(case, "discipline")?;
        let (down, up) = kind.rates();
        let plan = Plan {
            upload: chosen::<Upload>(case, "upload")? == Upload::Yes,
            burst: (self.args.burst > 0).then_some(Burst {
                connections: self.args.burst,
                ..BURST
            }),
            ..Plan::of(kind, self.args.seconds)
        };
        let uplink = match self.args.both {
            true => discipline,
            false => Discipline::Fifo,
        };
        let scenario = self
            .args
            .hosts
            .scenario((discipline, down), (uplink, up), plan);
        let outcome = weir_sim::run(&scenario, turn.seed);
        Ok(sample::of(&outcome, self.args.seconds + DRAIN_S))
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
            ("1 segment", "{segments_1_ms|n}"),
            ("2–3", "{segments_2_3_ms|n}"),
            ("4–10", "{segments_4_10_ms|n}"),
            ("11–50", "{segments_11_50_ms|n}"),
            ("51+", "{segments_51_ms|n}"),
            ("p95 ms", "{response_p95_ms|n}"),
            ("SYN sent again", "{syn_repeated|%1}"),
            ("lost", "{lost|%1}"),
        ];
        if self.args.burst > 0 {
            columns.push(("connect of the burst: mean", "{burst_connect_mean_ms|n}"));
            columns.push(("p95", "{burst_connect_p95_ms|n}"));
        }
        Show::columns(&columns)
    }

    fn rounds(&self) -> usize {
        6
    }
}
