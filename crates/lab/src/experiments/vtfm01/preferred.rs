//! VTFM01 Figures 1 and 3: a preferred client that replays a trace, beside greedy ones.
//!
//! Figure 1 has it suffer the more of them there are, Figure 3 shows what policing the greedy ones gives back
//! to it. Here both are one sweep over the number of greedy clients with three protections (none, the greedy
//! class policed, priority alone), and one over the rate of policing.
//!
//! The trace asks for a quarter of what the server can do, as in the paper at its best (100 of 381 requests/s),
//! over few connections: a slow server is asked less, as by people.

use std::time::Duration;

use serde::Serialize;

use super::{
    ClassConfig, Common, FIFO, PORT, ServerArgs, Share, Spread, Stage, address, config, greedy,
    line, strict, target, unpoliced,
};
use crate::closed_loop::{Demand, Group, Trace};
use crate::error::Result;
use crate::plot::lines::{Panel, Picture};
use crate::report::{self, ms, table};
use crate::server::Spec;

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
    pub common: Common,
}

/// What protects the preferred client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protection {
    /// Nothing: the kernel as it is
    None,
    /// The greedy class is policed, the listen queue is the kernel's
    Policing,
    /// The preferred class has priority, nothing is policed
    Priority,
}

impl Protection {
    fn name(self) -> &'static str {
        match self {
            Protection::None => "unprotected",
            Protection::Policing => "greedy class policed",
            Protection::Priority => "priority alone",
        }
    }

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

/// One point of one round.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Number of the round, from 1.
    pub round: usize,
    /// What protected.
    pub protection: Protection,
    /// Greedy clients.
    pub clients: usize,
    /// Rate of policing over capacity; `None` without.
    pub police: Option<f64>,
    /// What the preferred client got.
    pub preferred: Share,
    /// What the greedy ones got.
    pub greedy: Share,
    /// The preferred client's throughput over its unloaded one of the same round.
    pub of_unloaded: f64,
}

/// The rounds of one point.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    /// What protected.
    pub protection: Protection,
    /// Greedy clients.
    pub clients: usize,
    /// Rate of policing over capacity; `None` without.
    pub police: Option<f64>,
    /// The preferred client's, in 1000 bytes/s.
    pub kbytes_per_s: Spread,
    /// Over its unloaded throughput, round by round.
    pub of_unloaded: Spread,
    /// Its median response time, in ms.
    pub p50_ms: Spread,
    /// The greedy ones' replies/s.
    pub greedy_replies_per_s: Spread,
}

/// All that was found.
#[derive(Debug, Clone, Serialize)]
pub struct Results {
    /// Kernel and processors.
    pub machine: String,
    /// The server.
    pub server: String,
    /// Its replies/s without protection.
    pub capacity_per_s: f64,
    /// Requests/s of the trace.
    pub trace_per_s: f64,
    /// Rate of policing beside the numbers of clients, over the capacity.
    pub police: f64,
    /// Seed of the trace.
    pub seed: u64,
    /// By protection, then police rate, then clients.
    pub summaries: Vec<Summary>,
    /// Every round of every point.
    pub rows: Vec<Row>,
}

impl Results {
    /// The least share of its unloaded throughput that the preferred client kept, by medians; of policing, at
    /// the rate that is the same for all numbers of clients.
    pub fn least_kept(&self, protection: Protection) -> f64 {
        self.by_clients(protection)
            .map(|s| s.of_unloaded.median)
            .fold(f64::INFINITY, f64::min)
    }

    fn by_clients(&self, protection: Protection) -> impl Iterator<Item = &Summary> {
        let at_rate = |s: &&Summary| s.police.is_none_or(|rate| rate == self.police);
        let of = self.summaries.iter();
        of.filter(move |s| s.protection == protection)
            .filter(at_rate)
    }
}

/// A point to measure.
type Place = (Protection, usize, Option<f64>);

fn places(args: &Args) -> Vec<Place> {
    let mut places = Vec::new();
    for &clients in &args.clients {
        for &protection in &args.protections {
            let police = (protection == Protection::Policing).then_some(args.police);
            places.push((protection, clients, police));
        }
    }
    let most = args.clients.iter().copied().max().unwrap_or(0);
    if args.protections.contains(&Protection::Policing) {
        let others = args
            .police_rates
            .iter()
            .filter(|rate| **rate != args.police);
        places.extend(others.map(|&rate| (Protection::Policing, most, Some(rate))));
    }
    places
}

/// Measures all; progress goes to stderr, one line a point.
pub fn measure(args: &Args) -> Result<Results> {
    let stage = Stage::build(&args.common)?;
    let spec = args.server.spec(args.workers);
    let capacity = stage.capacity(&spec)?;
    let trace_per_s = capacity * TRACE_SHARE;
    eprintln!(
        "weir-lab: {}: {capacity:.0} replies/s; the trace asks for {trace_per_s:.0}/s",
        spec.describe()
    );
    let places = places(args);
    let mut rows: Vec<Row> = Vec::new();
    for round in 1..=args.common.rounds {
        let seed = args.common.seed + round as u64 - 1;
        let length = stage.warm_up + stage.window;
        let trace = Trace::synthetic(trace_per_s, length, seed);
        let unloaded = point(&stage, &spec, &trace, (Protection::None, 0, None), capacity)?.0;
        for &place in &places {
            let (preferred, greedy) = point(&stage, &spec, &trace, place, capacity)?;
            let (protection, clients, police) = place;
            let row = Row {
                round,
                protection,
                clients,
                police,
                preferred,
                greedy,
                of_unloaded: preferred.kbytes_per_s / unloaded.kbytes_per_s.max(1e-9),
            };
            eprintln!("{}", progress(&row));
            rows.push(row);
        }
    }
    Ok(Results {
        machine: report::machine(),
        server: spec.describe(),
        capacity_per_s: capacity,
        trace_per_s,
        police: args.police,
        seed: args.common.seed,
        summaries: places
            .iter()
            .map(|place| summarize(*place, &rows))
            .collect(),
        rows,
    })
}

fn point(
    stage: &Stage,
    spec: &Spec,
    trace: &Trace,
    (protection, clients, police): Place,
    capacity: f64,
) -> Result<(Share, Share)> {
    let preferred = Group {
        source: address(PREFERRED),
        target: target(PORT),
        demand: Demand::Replay {
            trace: trace.clone(),
            connections: CONNECTIONS,
        },
    };
    let groups = [preferred, greedy(GREEDY, clients)];
    let config = protection.config(police.unwrap_or(0.0) * capacity);
    let shares = stage.point(spec, config.as_deref(), &groups)?;
    Ok((shares[0], shares[1]))
}

fn progress(row: &Row) -> String {
    let police = row
        .police
        .map_or(String::new(), |rate| format!(" at {rate}"));
    format!(
        "  {:<28} {:>3} greedy: preferred {:>6.0} KB/s ({:>3.0} %), p50 {:>7} ms; greedy {:>6.0} replies/s",
        format!("{}{police}", row.protection.name()),
        row.clients,
        row.preferred.kbytes_per_s,
        row.of_unloaded * 100.0,
        ms(row.preferred.response.p50_ms),
        row.greedy.replies_per_s,
    )
}

fn summarize((protection, clients, police): Place, rows: &[Row]) -> Summary {
    let rounds: Vec<&Row> = rows
        .iter()
        .filter(|row| (row.protection, row.clients, row.police) == (protection, clients, police))
        .collect();
    let spread = |value: fn(&Row) -> f64| Spread::of(rounds.iter().map(|row| value(row)));
    Summary {
        protection,
        clients,
        police,
        kbytes_per_s: spread(|row| row.preferred.kbytes_per_s),
        of_unloaded: spread(|row| row.of_unloaded),
        p50_ms: spread(|row| row.preferred.response.p50_ms),
        greedy_replies_per_s: spread(|row| row.greedy.replies_per_s),
    }
}

/// Runs the experiment of the command line.
pub fn run(args: &Args) -> Result<()> {
    let results = measure(args)?;
    let picture = picture(&results);
    args.common
        .tell("preferred", &results, &picture, || tables(&results))
}

fn tables(results: &Results) -> String {
    let head = [
        "protection",
        "police/capacity",
        "greedy clients",
        "preferred KB/s",
        "of unloaded",
        "p50 ms",
        "greedy replies/s",
    ];
    let row = |summary: &Summary| {
        vec![
            summary.protection.name().to_string(),
            summary.police.map_or("-".into(), |rate| rate.to_string()),
            summary.clients.to_string(),
            summary.kbytes_per_s.cell(0),
            summary.of_unloaded.percent_cell(),
            summary.p50_ms.cell(1),
            summary.greedy_replies_per_s.cell(0),
        ]
    };
    let rows: Vec<Vec<String>> = results.summaries.iter().map(row).collect();
    format!(
        "{}\n{}: {:.0} replies/s; trace {:.0} requests/s, seed {}\n\n{}",
        results.machine,
        results.server,
        results.capacity_per_s,
        results.trace_per_s,
        results.seed,
        table(&head, &rows)
    )
}

fn picture(results: &Results) -> Picture {
    let all = [Protection::None, Protection::Policing, Protection::Priority];
    let measured = |protection: &Protection| results.by_clients(*protection).next().is_some();
    let protections: Vec<Protection> = all.into_iter().filter(measured).collect();
    let policing = protections.iter().position(|p| *p == Protection::Policing);
    let most = results
        .summaries
        .iter()
        .map(|s| s.clients)
        .max()
        .unwrap_or(0);
    let by_clients = protections.iter().enumerate().map(|(name, &protection)| {
        let of = results.by_clients(protection);
        line(name, of.map(|s| (s.clients as f64, s.kbytes_per_s)))
    });
    let mut by_rate: Vec<(f64, Spread)> = results
        .summaries
        .iter()
        .filter(|s| s.clients == most)
        .filter_map(|s| Some((s.police? * results.capacity_per_s, s.kbytes_per_s)))
        .collect();
    by_rate.sort_by(|a, b| a.0.total_cmp(&b.0));
    let unloaded = results.summaries.iter().find(|s| s.clients == 0);
    let marks = || {
        let mark = unloaded.map(|s| (s.kbytes_per_s.median, "unloaded".to_string()));
        mark.into_iter().collect()
    };
    Picture {
        title: "VTFM01 Figures 1 and 3: a preferred client among greedy ones".into(),
        note: format!(
            "{}; {}; trace of {:.0} requests/s",
            results.machine, results.server, results.trace_per_s
        ),
        panels: vec![
            Panel {
                title: "Preferred client, KB/s".into(),
                x_title: "Greedy clients".into(),
                lines: by_clients.collect(),
                marks: marks(),
                ..Panel::default()
            },
            Panel {
                title: format!("Preferred client, KB/s, beside {most} greedy ones"),
                x_title: "Rate to which the greedy class is policed, connections/s".into(),
                lines: vec![line(policing.unwrap_or(0), by_rate.into_iter())],
                marks: marks(),
                ..Panel::default()
            },
        ],
        names: protections.iter().map(|p| p.name().to_string()).collect(),
    }
}

/// The shortest form that shows the claim, for tests: unloaded, and beside 100 greedy clients.
pub fn short(protections: &[Protection], weir: Option<std::path::PathBuf>) -> Args {
    Args {
        clients: vec![100],
        police: 0.5,
        police_rates: Vec::new(),
        protections: protections.to_vec(),
        workers: 10,
        server: ServerArgs {
            server: super::ServerKind::Pool,
            service_ms: 10.0,
        },
        common: Common::short(Duration::from_millis(1500), weir),
    }
}
