//! weir's default beside the kernel's FQ-CoDel and CAKE, all in the kernel, with the kernel's TCP.

use std::path::{Path, PathBuf};
use std::process::Command;

use weir_sim::aqm::Discipline;
use weir_sim::traffic::Burst;
use weir_sim::{Kind, Plan};

use super::hosts::{self, Hosts};
use super::qdiscs::{below_htb, limit, note_kernel, run_in};
use crate::error::Result;
use crate::experiments::judges::trial::DRAIN_S;
use crate::experiments::sim::{BURST, Traffic, Upload, groups_of, sample};
use crate::netns::Netns;
use crate::program;
use crate::run::experiment::{
    Entry, Experiment, Flags, Program, Turn, check_seconds, chosen, word,
};
use crate::run::results::{Case, Claim, Facts, Parameters, Results, Sample, Show};
use crate::run::statistics::Spread;

/// The experiment.
pub const ENTRY: Entry = Entry::new::<Args>(
    "shape-contest",
    "In the kernel, is weir's default at least as good as FQ-CoDel and CAKE?",
)
.source("BHD18 Table III; CAKE is newer than the paper")
.flags(
    "--seconds 60 --rounds 6",
    "--traffic real --uploads no --contenders fq-codel --seconds 10 --rounds 1",
);

/// Arguments of `weir-lab shape-contest`.
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
    /// What shapes the downlink
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "fq-codel,cake,spa-fq-tc,spa-fq-bpf"
    )]
    pub contenders: Vec<Contender>,
    /// The uplink is shaped in the same way; without it it has a FIFO, as in the paper
    #[arg(long)]
    pub both: bool,
    /// Time in which connections begin, s
    #[arg(long, default_value_t = 60.0)]
    pub seconds: f64,
    /// Besides, so many connections of 3 segments within 2 s, each 20 s
    #[arg(long, default_value_t = 0)]
    pub burst: u32,
}

/// What shapes a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Contender {
    /// The kernel's fq_codel behind HTB
    FqCodel,
    /// The kernel's cake, as it is by default
    Cake,
    /// The kernel's dualpi2 behind HTB, as it is by default; from Linux 6.17 on, and not in Debian's
    Dualpi2,
    /// `weir shape` with --backend tc
    SpaFqTc,
    /// `weir shape` with --backend bpf
    SpaFqBpf,
}

impl Contender {
    fn shape(self, netns: &Netns, device: &str, bits_per_s: u64, weir: &Path) -> Result<()> {
        let backend = match self {
            Contender::FqCodel => return limit(netns, device, bits_per_s, Discipline::FqCodel),
            Contender::Cake => return limit(netns, device, bits_per_s, Discipline::Cake),
            Contender::Dualpi2 => return below_htb(netns, device, bits_per_s, "dualpi2"),
            Contender::SpaFqTc => "tc",
            Contender::SpaFqBpf => "bpf",
        };
        let rate = bits_per_s / 1000;
        let words = format!("shape install --dev {device} --rate {rate}kbit --backend {backend}");
        run_in(netns, Command::new(weir), &words).map(drop)
    }
}

impl Flags for Args {
    fn experiment(self, program: &Program) -> Result<Box<dyn Experiment>> {
        check_seconds("--seconds", self.seconds)?;
        let weir = program.path().map(Path::to_owned);
        Ok(Box::new(Contest { args: self, weir }))
    }
}

struct Contest {
    args: Args,
    /// `weir`, if not the one found by [`program::find`].
    weir: Option<PathBuf>,
}

/// With whom weir's are compared, and in what.
const OTHERS: [&str; 3] = ["fq-codel", "cake", "dualpi2"];
const METRICS: [&str; 8] = [
    "segments_1_ms",
    "segments_2_3_ms",
    "segments_4_10_ms",
    "segments_11_50_ms",
    "segments_51_ms",
    "response_p95_ms",
    "burst_connect_mean_ms",
    "burst_connect_p95_ms",
];

fn ratio_name(metric: &str, other: &str) -> String {
    format!("{}_of_{other}", metric.trim_end_matches("_ms"))
}

fn is_own(parameters: &Parameters) -> bool {
    parameters["contender"].starts_with("spa")
}

/// That it is at least as good as each other.
fn claims_of(case: &Case) -> Vec<Claim> {
    let mut claims = Vec::new();
    for metric in METRICS {
        for other in OTHERS {
            let claim = format!("{} is at most {other}'s", metric.trim_end_matches("_ms"));
            let holds = |ratio: Spread| ratio.median <= 1.0;
            claims.push(Claim::about(
                &claim,
                case,
                &ratio_name(metric, other),
                holds,
            ));
        }
    }
    claims.retain(|claim| claim.value.is_some());
    claims
}

impl Experiment for Contest {
    fn groups(&self) -> Vec<Vec<Parameters>> {
        let args = &self.args;
        let contenders: Vec<_> = args.contenders.iter().map(word).collect();
        groups_of(&args.traffic, &args.uploads, "contender", &contenders)
    }

    fn open(&mut self, facts: &mut Facts) -> Result<()> {
        note_kernel(facts)
    }

    fn measure(&mut self, case: &Parameters, turn: Turn) -> Result<Sample> {
        let kind = Kind::from(chosen::<Traffic>(case, "traffic")?);
        let contender = chosen::<Contender>(case, "contender")?;
        let plan = Plan {
            upload: chosen::<Upload>(case, "upload")? == Upload::Yes,
            burst: (self.args.burst > 0).then_some(Burst {
                connections: self.args.burst,
                ..BURST
            }),
            ..Plan::of(kind, self.args.seconds)
        };
        let hosts = Hosts::new()?;
        let (down, up) = kind.rates();
        let weir = match &self.weir {
            Some(path) => path.clone(),
            None => program::find("weir")?,
        };
        contender.shape(&hosts.router, hosts::DOWN, down, &weir)?;
        match self.args.both {
            true => contender.shape(&hosts.router, hosts::UP, up, &weir)?,
            false => limit(&hosts.router, hosts::UP, up, Discipline::Fifo)?,
        }
        let seconds = plan.seconds + DRAIN_S;
        let outcome = hosts.run(&plan.connections(turn.seed), seconds)?;
        Ok(sample::of(&outcome, seconds))
    }

    fn compare(&self, round: &mut [(Parameters, Sample)]) {
        let all = round.to_vec();
        for (case, sample) in round.iter_mut().filter(|(case, _)| is_own(case)) {
            for other in OTHERS {
                let mut wanted = case.clone();
                wanted.insert("contender".into(), other.into());
                let Some((_, beside)) = all.iter().find(|(case, _)| *case == wanted) else {
                    continue;
                };
                for metric in METRICS {
                    let ratio = sample.get(metric) / beside.get(metric);
                    if ratio.is_finite() {
                        sample.metrics.insert(ratio_name(metric, other), ratio);
                    }
                }
            }
        }
    }

    fn claims(&self, results: &Results) -> Vec<Claim> {
        let own = results.cases.iter().filter(|case| is_own(&case.parameters));
        own.flat_map(claims_of).collect()
    }

    fn show(&self) -> Show {
        let mut columns = vec![
            ("traffic", "{traffic}"),
            ("upload", "{upload}"),
            ("contender", "{contender}"),
            ("connect ms", "{connect_mean_ms|n}"),
            ("1 segment", "{segments_1_ms|n}"),
            ("2–3", "{segments_2_3_ms|n}"),
            ("4–10", "{segments_4_10_ms|n}"),
            ("11–50", "{segments_11_50_ms|n}"),
            ("51+", "{segments_51_ms|n}"),
            ("p95 ms", "{response_p95_ms|n}"),
            ("lost", "{lost|%1}"),
        ];
        if self.args.burst > 0 {
            columns.push(("connect of the burst: mean", "{burst_connect_mean_ms|n}"));
            columns.push(("p95", "{burst_connect_p95_ms|n}"));
        }
        Show::columns(&columns)
    }
}
