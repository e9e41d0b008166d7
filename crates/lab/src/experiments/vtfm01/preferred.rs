//! VTFM01 Figures 1 and 3: a preferred client that replays a trace, beside greedy ones.
//!
//! Figure 1 has it suffer the more of them there are, Figure 3 shows what policing the greedy ones gives back
//! to it. Here both are one sweep over the number of greedy clients with three protections (none, the greedy
//! class policed, priority alone), and one over the rate of policing.
//!
//! The trace asks for a quarter of what the server can do, as in the paper at its best (100 of 381 requests/s),
//! over few connections: a slow server is asked less, as by people.

use super::closed::{
    ClassConfig, ClosedLoop, FIFO, PORT, ServerArgs, WindowArgs, address, config, greedy, strict,
    target, unpoliced,
};
use crate::closed_loop::{Demand, Group, Outcome, Trace};
use crate::error::Result;
use crate::run::experiment::{
    Beside, Entry, Experiment, Flags, Program, Turn, chosen, parsed, word,
};
use crate::run::results::{
    Case, Claim, Facts, Panel, Parameters, Picture, Results, Sample, Show, parameters,
};

/// The experiment.
pub const ENTRIES: &[Entry] = &[Entry::new::<Args>(
    "vtfm01-preferred",
    "What does a preferred client keep among greedy ones?",
)
.source("VTFM01 Figures 1 and 3")
.flags(
    "--protections none,policing,priority --clients 0,250 --police-rates 0.2,0.8 --rounds 2",
    "--protections none,priority --clients 20 --seconds 0.5 --warm-up 0.3",
)];

/// The trace's rate over the server's capacity.
const TRACE_SHARE: f64 = 0.25;
/// Connections of the preferred client at the same time, at most.
const CONNECTIONS: usize = 8;
/// SYNs (VTFM01 Section 3.1).
const BURST: u32 = 100;
const PREFERRED: u8 = 1;
const GREEDY: u8 = 2;

/// Arguments of `weir-lab vtfm01 preferred`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Numbers of greedy clients
    #[arg(long, value_delimiter = ',', default_value = "0,25,50,100,150,200,250")]
    pub clients: Vec<usize>,
    /// Rate of policing beside the numbers of clients, as a share of the server's capacity
    #[arg(long, default_value_t = 0.5)]
    pub police: f64,
    /// Rates of policing beside most clients, as shares of the server's capacity (Figure 3)
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "0.07,0.2,0.35,0.5,0.65,0.8,1.0"
    )]
    pub police_rates: Vec<f64>,
    /// Protections to measure
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "none,policing,priority"
    )]
    pub protections: Vec<Protection>,
    /// Server processes
    #[arg(long, default_value_t = 10)]
    pub workers: usize,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub server: ServerArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub window: WindowArgs,
}

/// What protects the preferred client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Protection {
    /// Nothing: the kernel as it is
    None,
    /// The greedy class is policed, the listen queue is the kernel's
    Policing,
    /// The preferred class has priority, nothing is policed
    Priority,
}

impl Protection {
    fn config(self, rate_per_s: f64) -> Option<String> {
        match self {
            Protection::None => None,
            Protection::Priority => Some(config(&strict(), &unpoliced(2))),
            Protection::Policing => {
                let policed = ClassConfig {
                    class: GREEDY,
                    rate: Some((rate_per_s.round().max(1.0), BURST)),
                };
                Some(config(FIFO, &[unpoliced(1).remove(0), policed]))
            }
        }
    }
}

impl Flags for Args {
    fn experiment(self, program: &Program) -> Result<Box<dyn Experiment>> {
        self.window.check()?;
        Ok(Box::new(Preferred {
            args: self,
            program: program.clone(),
            opened: None,
            unloaded: Beside::default(),
        }))
    }
}

struct Preferred {
    args: Args,
    program: Program,
    /// With the capacity.
    opened: Option<(ClosedLoop, f64)>,
    /// The preferred client alone, KB/s, by round.
    unloaded: Beside<usize, f64>,
}

impl Preferred {
    fn case(&self, protection: Protection, clients: usize, police: Option<f64>) -> Parameters {
        parameters([
            ("protection", word(&protection)),
            ("clients", clients.to_string()),
            (
                "police",
                police.map_or("none".into(), |rate| rate.to_string()),
            ),
        ])
    }
}

impl Experiment for Preferred {
    fn groups(&self) -> Vec<Vec<Parameters>> {
        let args = &self.args;
        let police = |protection| (protection == Protection::Policing).then_some(args.police);
        let group = |&clients: &usize| {
            let cases = args.protections.iter();
            cases
                .map(|&protection| self.case(protection, clients, police(protection)))
                .collect()
        };
        let mut groups: Vec<Vec<Parameters>> = args.clients.iter().map(group).collect();
        let most = args.clients.iter().copied().max().unwrap_or(0);
        if args.protections.contains(&Protection::Policing) {
            let others = args
                .police_rates
                .iter()
                .filter(|rate| **rate != args.police);
            groups.extend(
                others.map(|&rate| vec![self.case(Protection::Policing, most, Some(rate))]),
            );
        }
        groups
    }

    fn open(&mut self, facts: &mut Facts) -> Result<()> {
        let bed = ClosedLoop::build(&self.args.window, &self.program)?;
        let capacity = bed.capacity(facts, &self.args.server.spec(self.args.workers))?;
        facts.insert("trace_per_s".into(), (capacity * TRACE_SHARE).into());
        self.opened = Some((bed, capacity));
        Ok(())
    }

    fn measure(&mut self, case: &Parameters, turn: Turn) -> Result<Sample> {
        let (bed, capacity) = self.opened.as_ref().expect("opened first");
        let spec = self.args.server.spec(self.args.workers);
        let trace = Trace::synthetic(capacity * TRACE_SHARE, bed.warm_up + bed.window, turn.seed);
        let measure = |protection: Protection, clients, police: f64| -> Result<Vec<Outcome>> {
            let preferred = Group {
                source: address(PREFERRED),
                target: target(PORT),
                demand: Demand::Replay {
                    trace: trace.clone(),
                    connections: CONNECTIONS,
                },
            };
            let groups = [preferred, greedy(GREEDY, clients)];
            bed.clients(
                &spec,
                protection.config(police * capacity).as_deref(),
                &groups,
            )
        };
        let kbytes_per_s =
            |outcome: &Outcome| outcome.bytes as f64 / 1e3 / bed.window.as_secs_f64();
        let unloaded = self.unloaded.get(turn.round, || {
            Ok(kbytes_per_s(&measure(Protection::None, 0, 0.0)?[0]))
        })?;
        let police = parsed(case, "police").unwrap_or(0.0);
        let outcomes = measure(
            chosen(case, "protection")?,
            parsed(case, "clients")?,
            police,
        )?;
        let mut sample = Sample::of([(
            "of_unloaded",
            kbytes_per_s(&outcomes[0]) / unloaded.max(1e-9),
        )]);
        bed.add(&mut sample, "preferred", &outcomes[0]);
        bed.add(&mut sample, "greedy", &outcomes[1]);
        Ok(sample)
    }

    fn claims(&self, results: &Results) -> Vec<Claim> {
        let police = self.args.police.to_string();
        let is_protected = |case: &&Case| {
            let protection = case.parameter("protection");
            protection == "priority"
                || protection == "policing" && case.parameter("police") == police
        };
        // weir's own limit: VTFM01 Figure 3 shows a direction. The trace is the same in each round, so 15 % is for the machine.
        let claim = "a protected client keeps 85 % of its throughput alone";
        let about = |case| Claim::about(claim, case, "of_unloaded", |share| share.median > 0.85);
        results
            .cases
            .iter()
            .filter(is_protected)
            .map(about)
            .collect()
    }

    fn show(&self) -> Show {
        let panel = |title: &str, x: &str, x_title: &str| Panel {
            title: title.into(),
            x_title: x_title.into(),
            x: x.into(),
            y: vec![("preferred_kbytes_per_s".into(), String::new())],
            lines: vec!["protection".into()],
            ..Panel::default()
        };
        let by_rate = Panel {
            only: parameters([("protection", "policing".into())]),
            ..panel(
                "Preferred client, KB/s",
                "police",
                "Rate to which the greedy class is policed, of the capacity",
            )
        };
        Show::columns(&[
            ("protection", "{protection}"),
            ("police/capacity", "{police}"),
            ("greedy clients", "{clients}"),
            ("preferred KB/s", "{preferred_kbytes_per_s:cell|n}"),
            ("of unloaded", "{of_unloaded:cell|%}"),
            ("p50 ms", "{preferred_p50_ms:cell|.1}"),
            ("greedy replies/s", "{greedy_replies_per_s:cell|n}"),
        ])
        .picture(Picture {
            name: "preferred".into(),
            title: "VTFM01 Figures 1 and 3: a preferred client among greedy ones".into(),
            panels: vec![
                panel("Preferred client, KB/s", "clients", "Greedy clients"),
                by_rate,
            ],
        })
    }
}
