//! A SYN flood through the shaped link: what established downloads keep of their rate, and how long clients take to
//! connect.

use weir_sim::aqm::Discipline;
use weir_sim::outcome::Record;
use weir_sim::traffic::{LONG, Law};
use weir_sim::{Flood, Plan};

use super::hosts::Hosts;
use super::sample::{at_least, mean_ms, p95_ms};
use crate::error::Result;
use crate::run::experiment::{Entry, Experiment, Flags, Program, Turn, chosen, parsed, word};
use crate::run::results::{Claim, Facts, Parameters, Results, Sample, Show, parameters};
use crate::run::statistics::Spread;

/// The experiment.
pub const ENTRY: Entry = Entry::new::<Args>(
    "sim-flood",
    "What does a SYN flood through a shaped link leave to established and to new connections?",
)
.source("beyond the papers; BHD18 Section V asks")
.flags("--rounds 12", "--rates 10 --rounds 1");

/// The downloads have settled, the flood begins, it ends, s.
const SETTLED_S: f64 = 20.0;
const BEGINS_S: f64 = 50.0;
const ENDS_S: f64 = 80.0;
const DRAIN_S: f64 = 30.0;
/// Long downloads, and time between connections of one segment, s.
const DOWNLOADS: u32 = 4;
const BETWEEN_S: f64 = 0.1;
/// What established downloads must keep, and within what 95 % must connect, ms.
const KEPT: f64 = 0.8;
const CONNECT_MS: f64 = 300.0;

/// Arguments of `weir-lab sim-flood`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Rates of the downlink, Mb/s; the uplink has a sixth
    #[arg(long, value_delimiter = ',', default_value = "2.4,10")]
    pub rates: Vec<f64>,
    /// Sources of the flood
    #[arg(long, value_enum, value_delimiter = ',', default_value = "one,spoofed")]
    pub sources: Vec<Sources>,
    /// SYNs/s
    #[arg(long, default_value_t = 10_000.0)]
    pub flood: f64,
    /// Disciplines of the downlink
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "NAME",
        default_value = "fifo,codel,fq-codel,pie,spa-paper,spa,spa-fq"
    )]
    pub disciplines: Vec<Discipline>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub hosts: Hosts,
}

/// Where a flood seems to come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Sources {
    /// One address
    One,
    /// Another for each SYN
    Spoofed,
}

impl Flags for Args {
    fn experiment(self, _program: &Program) -> Result<Box<dyn Experiment>> {
        self.hosts.check()?;
        Ok(Box::new(SynFlood { args: self }))
    }
}

struct SynFlood {
    args: Args,
}

impl Experiment for SynFlood {
    fn groups(&self) -> Vec<Vec<Parameters>> {
        let args = &self.args;
        let of = |rate: &f64, sources: &Sources| {
            let case = |discipline: &Discipline| {
                parameters([
                    ("rate", rate.to_string()),
                    ("sources", word(sources)),
                    ("discipline", discipline.to_string()),
                ])
            };
            args.disciplines.iter().map(case).collect()
        };
        let pairs = args.rates.iter();
        let pairs = pairs.flat_map(|rate| args.sources.iter().map(move |sources| (rate, sources)));
        pairs.map(|(rate, sources)| of(rate, sources)).collect()
    }

    fn open(&mut self, facts: &mut Facts) -> Result<()> {
        facts.insert("hosts".into(), self.args.hosts.describe().into());
        facts.insert("flood_per_s".into(), self.args.flood.into());
        Ok(())
    }

    fn measure(&mut self, case: &Parameters, turn: Turn) -> Result<Sample> {
        let mbits: f64 = parsed(case, "rate")?;
        let discipline: Discipline = parsed(case, "discipline")?;
        let down = (mbits * 1e6) as u64;
        let law = Law {
            between_s: BETWEEN_S,
            exponent: 1.0,
            most: 1,
        };
        let plan = Plan {
            law,
            seconds: ENDS_S,
            upload: false,
            downloads: DOWNLOADS,
            burst: None,
        };
        let up = (Discipline::Fifo, down / 6);
        let mut scenario = self.args.hosts.scenario((discipline, down), up, plan);
        scenario.drain_s = DRAIN_S;
        scenario.marks_s = vec![SETTLED_S, BEGINS_S, ENDS_S];
        scenario.flood = Some(Flood {
            per_s: self.args.flood,
            from_s: BEGINS_S,
            to_s: ENDS_S,
            spoofed: chosen::<Sources>(case, "sources")? == Sources::Spoofed,
        });
        let outcome = weir_sim::run(&scenario, turn.seed);
        let ns = |seconds: f64| (seconds * 1e9) as u64;
        let end_ns = ns(ENDS_S + DRAIN_S);
        let during = |record: &&Record| {
            record.segments != LONG && (ns(BEGINS_S)..ns(ENDS_S)).contains(&record.start_ns)
        };
        let connects: Vec<u64> = outcome
            .records
            .iter()
            .filter(during)
            .map(|record| at_least(record.connect_ns, record.start_ns, end_ns))
            .collect();
        let [settled, begins, ends] = outcome.received_at[..] else {
            unreachable!("three marks were set");
        };
        let rate = |segments: u64, seconds: f64| segments as f64 / seconds;
        let before = rate(begins - settled, BEGINS_S - SETTLED_S);
        let mut sample = Sample::of([
            ("before_per_s", before),
            ("kept", rate(ends - begins, ENDS_S - BEGINS_S) / before),
        ]);
        let times = [
            ("connect_mean_ms", mean_ms(&connects)),
            ("connect_p95_ms", p95_ms(connects)),
        ];
        for (name, time) in times {
            sample
                .metrics
                .extend(time.map(|time| (name.to_owned(), time)));
        }
        Ok(sample)
    }

    fn claims(&self, results: &Results) -> Vec<Claim> {
        let own = ["spa", "spa-fq"];
        let cases = results.cases.iter();
        let of_own = cases.filter(|case| own.contains(&case.parameter("discipline")));
        let of = |case| {
            let kept = format!("established downloads keep at least {KEPT} of their rate");
            let kept = Claim::about(&kept, case, "kept", |kept: Spread| kept.median >= KEPT);
            let connect = format!("95 % connect within {CONNECT_MS} ms");
            let within = |p95: Spread| p95.median < CONNECT_MS;
            [kept, Claim::about(&connect, case, "connect_p95_ms", within)]
        };
        of_own.flat_map(of).collect()
    }

    fn show(&self) -> Show {
        Show::columns(&[
            ("Mb/s", "{rate}"),
            ("sources", "{sources}"),
            ("discipline", "{discipline}"),
            ("downloads keep", "{kept:cell|%}"),
            ("connect mean ms", "{connect_mean_ms:cell|n}"),
            ("connect p95 ms", "{connect_p95_ms:cell|n}"),
        ])
    }

    fn rounds(&self) -> usize {
        6
    }
}
