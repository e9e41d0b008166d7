//! VTFM01 Table 2: policing the high class brings the low ones back.
//!
//! Client 1 of the paper is 150 greedy clients of the highest priority, clients 2 and 3 are 30 each of the
//! second and third. Unpoliced, the first starves the others. The paper polices it to (300, 300) and (200, 200)
//! of 381 connections/s; here the rates are the same shares of what this server can do. The warm-up must be longer
//! than the burst lasts: burst / (capacity - rate), 4 s for the paper's 300.

use std::time::Duration;

use serde::Serialize;

use super::{
    Common, ServerArgs, ServerKind, Share, Spread, Stage, config, greedy, strict, unpoliced,
};
use crate::error::Result;
use crate::plot::lines::{Line, Panel, Picture};
use crate::report::{self, table};

/// The paper's capacity, connections/s.
const PAPER_CAPACITY: f64 = 381.0;

/// Arguments of `weir-lab vtfm01 police-high`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Greedy clients of the three classes
    #[arg(long, value_delimiter = ',', default_value = "150,30,30")]
    pub clients: Vec<usize>,
    /// Rates and bursts of the high class in the paper's connections/s, of 381; 0: none
    #[arg(long, value_delimiter = ',', default_value = "0,300,200")]
    pub rates: Vec<f64>,
    /// Server processes
    #[arg(long, default_value_t = 20)]
    pub workers: usize,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub server: ServerArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: Common,
}

/// One point of one round.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Number of the round, from 1.
    pub round: usize,
    /// The paper's rate; 0: unpoliced.
    pub paper_rate: f64,
    /// What the classes got, the highest first.
    pub classes: Vec<Share>,
}

/// The rounds of one point.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    /// The paper's rate; 0: unpoliced.
    pub paper_rate: f64,
    /// Rate and burst here; 0: unpoliced.
    pub rate_per_s: f64,
    /// Replies/s of the classes, the highest first.
    pub replies_per_s: Vec<Spread>,
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
    /// By rate.
    pub summaries: Vec<Summary>,
    /// Every round of every point.
    pub rows: Vec<Row>,
}

/// Measures all; progress goes to stderr, one line a point.
pub fn measure(args: &Args) -> Result<Results> {
    if args.clients.len() != 3 {
        let cause = "it must be three numbers";
        return Err(crate::error::Error::usage("bad --clients", cause));
    }
    let stage = Stage::build(&args.common)?;
    let spec = args.server.spec(args.workers);
    let capacity = stage.capacity(&spec)?;
    let here = |paper_rate: f64| (paper_rate / PAPER_CAPACITY * capacity).round();
    let groups: Vec<_> = (1..=3)
        .zip(&args.clients)
        .map(|(class, &clients)| greedy(class, clients))
        .collect();
    let mut rows = Vec::new();
    for round in 1..=args.common.rounds {
        for &paper_rate in &args.rates {
            let mut classes = unpoliced(3);
            let rate = here(paper_rate);
            classes[0].rate = (rate > 0.0).then_some((rate, rate as u32));
            let shares = stage.point(&spec, Some(&config(&strict(), &classes)), &groups)?;
            let figures: Vec<String> = shares
                .iter()
                .map(|share| format!("{:.0}", share.replies_per_s))
                .collect();
            eprintln!(
                "  client 1 policed to {rate:>5}/s (0: not): {} replies/s",
                figures.join(", ")
            );
            rows.push(Row {
                round,
                paper_rate,
                classes: shares,
            });
        }
    }
    let summarize = |&paper_rate: &f64| {
        let of_class = |class: usize| {
            let rounds = rows.iter().filter(|row| row.paper_rate == paper_rate);
            Spread::of(rounds.map(|row| row.classes[class].replies_per_s))
        };
        Summary {
            paper_rate,
            rate_per_s: here(paper_rate),
            replies_per_s: (0..3).map(of_class).collect(),
        }
    };
    Ok(Results {
        machine: report::machine(),
        server: spec.describe(),
        capacity_per_s: capacity,
        summaries: args.rates.iter().map(summarize).collect(),
        rows,
    })
}

/// Runs the experiment of the command line.
pub fn run(args: &Args) -> Result<()> {
    let results = measure(args)?;
    let picture = picture(&results);
    args.common
        .tell("police-high", &results, &picture, || tables(&results))
}

fn tables(results: &Results) -> String {
    let rates = results
        .summaries
        .iter()
        .map(|summary| match summary.rate_per_s {
            0.0 => "none".to_string(),
            rate => format!("({rate}, {rate})"),
        });
    let head: Vec<String> = ["replies/s".to_string()].into_iter().chain(rates).collect();
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    let row = |class: usize| {
        let cells = results
            .summaries
            .iter()
            .map(|s| s.replies_per_s[class].cell(0));
        [format!("client {}", class + 1)]
            .into_iter()
            .chain(cells)
            .collect()
    };
    let rows: Vec<Vec<String>> = (0..3).map(row).collect();
    format!(
        "{}\n{}: {:.0} replies/s\n\n{}",
        results.machine,
        results.server,
        results.capacity_per_s,
        table(&head, &rows)
    )
}

/// Over the rate of the high class, with "none" at the right.
fn picture(results: &Results) -> Picture {
    let x = |summary: &Summary| match summary.rate_per_s {
        0.0 => results.capacity_per_s,
        rate => rate,
    };
    let lines = (0..3).map(|class| {
        let mut points: Vec<(f64, f64)> = results
            .summaries
            .iter()
            .map(|s| (x(s), s.replies_per_s[class].median))
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Line {
            name: class,
            points,
            markers: true,
            ..Line::default()
        }
    });
    Picture {
        title: "VTFM01 Table 2: policing the high class".into(),
        note: format!("{}; {}", results.machine, results.server),
        panels: vec![Panel {
            title: "Replies/s".into(),
            x_title: "Rate of client 1, connections/s (right: not policed)".into(),
            lines: lines.collect(),
            ..Panel::default()
        }],
        names: ["client 1", "client 2", "client 3"]
            .map(str::to_string)
            .to_vec(),
    }
}

/// The shortest form that shows the claim, for tests: unpoliced and the paper's 200/s.
pub fn short(weir: Option<std::path::PathBuf>) -> Args {
    Args {
        clients: vec![60, 20, 20],
        rates: vec![0.0, 200.0],
        workers: 20,
        server: ServerArgs {
            server: ServerKind::Pool,
            service_ms: 20.0,
        },
        common: Common {
            // The bucket is full at first: the burst must be over when the window begins.
            warm_up: 2.5,
            ..Common::short(Duration::from_secs(2), weir)
        },
    }
}
