//! VTFM01 Figures 5 and 6: three classes with equally many greedy clients each, served strictly by priority.
//!
//! The paper's result has two sides: the high class is as fast as if it were alone, and once the clients
//! outnumber the server's processes the low ones starve. `ageing` is the remedy that issue 3 adds to the paper's
//! own (policing the high class, [`super::police_high`]).

use std::time::Duration;

use serde::Serialize;

use super::{
    Common, ServerArgs, ServerKind, Share, Spread, Stage, config, greedy, line, priority, strict,
    unpoliced,
};
use crate::error::Result;
use crate::plot::lines::{Panel, Picture};
use crate::report::{self, table};

/// Arguments of `weir-lab vtfm01 priorities`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Numbers of greedy clients of each class
    #[arg(long, value_delimiter = ',', default_value = "10,20,30,40,50,60")]
    pub clients: Vec<usize>,
    /// Numbers of server processes (Figure 5, Figure 6)
    #[arg(long, value_delimiter = ',', default_value = "50,20")]
    pub workers: Vec<usize>,
    /// Orders to measure
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "fifo,strict,ageing"
    )]
    pub orders: Vec<Order>,
    /// After which a waiting connection rises a class
    #[arg(long, default_value = "250ms")]
    pub ageing: String,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub server: ServerArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: Common,
}

/// Who is accepted first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Who came first: the kernel as it is
    Fifo,
    /// The highest class
    Strict,
    /// The highest class, and who waits rises
    Ageing,
}

impl Order {
    fn name(self) -> &'static str {
        match self {
            Order::Fifo => "kernel's FIFO",
            Order::Strict => "strict priority",
            Order::Ageing => "priority with ageing",
        }
    }

    fn config(self, ageing: &str) -> Option<String> {
        match self {
            Order::Fifo => None,
            Order::Strict => Some(config(&strict(), &unpoliced(3))),
            Order::Ageing => Some(config(&priority(ageing), &unpoliced(3))),
        }
    }
}

/// One point of one round.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Number of the round, from 1.
    pub round: usize,
    /// Server processes.
    pub workers: usize,
    /// Who was accepted first.
    pub order: Order,
    /// Greedy clients of each class.
    pub clients: usize,
    /// What the classes got, the highest first.
    pub classes: [Share; 3],
    /// What as many clients of the high class get if they are alone on the unprotected server.
    pub alone: Share,
}

/// The rounds of one point.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    /// Server processes.
    pub workers: usize,
    /// Who was accepted first.
    pub order: Order,
    /// Greedy clients of each class.
    pub clients: usize,
    /// Replies/s of the classes, the highest first.
    pub replies_per_s: [Spread; 3],
    /// The high class's throughput over that of the same clients alone, round by round.
    pub of_alone: Spread,
    /// The longest that any request had waited, in ms; by class.
    pub longest_wait_ms: [Spread; 3],
}

/// All that was found.
#[derive(Debug, Clone, Serialize)]
pub struct Results {
    /// Kernel and processors.
    pub machine: String,
    /// The server, by number of processes.
    pub servers: Vec<String>,
    /// After which a waiting connection rises.
    pub ageing: String,
    /// By workers, order, clients.
    pub summaries: Vec<Summary>,
    /// Every round of every point.
    pub rows: Vec<Row>,
}

impl Results {
    /// The point with this order and most clients.
    pub fn fullest(&self, order: Order) -> Option<&Summary> {
        let of = self.summaries.iter().filter(|s| s.order == order);
        of.max_by_key(|summary| summary.clients)
    }
}

/// Measures all; progress goes to stderr, one line a point.
pub fn measure(args: &Args) -> Result<Results> {
    let stage = Stage::build(&args.common)?;
    let mut rows = Vec::new();
    for round in 1..=args.common.rounds {
        for &workers in &args.workers {
            let spec = args.server.spec(workers);
            for &clients in &args.clients {
                let alone = stage.point(&spec, None, &[greedy(1, clients)])?[0];
                for &order in &args.orders {
                    let groups = [1, 2, 3].map(|class| greedy(class, clients));
                    let config = order.config(&args.ageing);
                    let shares = stage.point(&spec, config.as_deref(), &groups)?;
                    let row = Row {
                        round,
                        workers,
                        order,
                        clients,
                        classes: [shares[0], shares[1], shares[2]],
                        alone,
                    };
                    eprintln!("{}", progress(&row));
                    rows.push(row);
                }
            }
        }
    }
    let servers = args.workers.iter();
    let servers = servers.map(|&workers| args.server.spec(workers).describe());
    Ok(Results {
        machine: report::machine(),
        servers: servers.collect(),
        ageing: args.ageing.clone(),
        summaries: summaries(args, &rows),
        rows,
    })
}

fn progress(row: &Row) -> String {
    let [high, middle, low] = row.classes.map(|class| class.replies_per_s);
    format!(
        "  {:>2} processes, 3 × {:>2} clients, {:<20}: {high:>6.0} {middle:>6.0} {low:>6.0} replies/s; alone {:>6.0}",
        row.workers,
        row.clients,
        row.order.name(),
        row.alone.replies_per_s
    )
}

fn summaries(args: &Args, rows: &[Row]) -> Vec<Summary> {
    let mut summaries = Vec::new();
    for &workers in &args.workers {
        for &order in &args.orders {
            for &clients in &args.clients {
                let rounds: Vec<&Row> = rows
                    .iter()
                    .filter(|row| {
                        (row.workers, row.order, row.clients) == (workers, order, clients)
                    })
                    .collect();
                let by_class = |value: fn(&Share) -> f64| {
                    [0, 1, 2].map(|class: usize| {
                        Spread::of(rounds.iter().map(|row| value(&row.classes[class])))
                    })
                };
                let of_alone =
                    |row: &&Row| row.classes[0].replies_per_s / row.alone.replies_per_s.max(1e-9);
                summaries.push(Summary {
                    workers,
                    order,
                    clients,
                    replies_per_s: by_class(|share| share.replies_per_s),
                    of_alone: Spread::of(rounds.iter().map(of_alone)),
                    longest_wait_ms: by_class(|share| share.longest_wait_ms),
                });
            }
        }
    }
    summaries
}

/// Runs the experiment of the command line.
pub fn run(args: &Args) -> Result<()> {
    let results = measure(args)?;
    let picture = picture(args, &results);
    args.common
        .tell("priorities", &results, &picture, || tables(&results))
}

fn tables(results: &Results) -> String {
    let head = [
        "order",
        "processes",
        "clients",
        "high replies/s",
        "middle",
        "low",
        "high of alone",
        "longest wait ms: high",
        "middle",
        "low",
    ];
    let row = |summary: &Summary| {
        let [high, middle, low] = summary.replies_per_s.map(|spread| spread.cell(0));
        let waits = summary.longest_wait_ms.map(|spread| spread.cell(0));
        let mut cells = vec![
            summary.order.name().to_string(),
            summary.workers.to_string(),
            format!("3 × {}", summary.clients),
            high,
            middle,
            low,
            summary.of_alone.percent_cell(),
        ];
        cells.extend(waits);
        cells
    };
    let rows: Vec<Vec<String>> = results.summaries.iter().map(row).collect();
    let servers = results.servers.join("\n");
    format!("{}\n{servers}\n\n{}", results.machine, table(&head, &rows))
}

fn picture(args: &Args, results: &Results) -> Picture {
    let panels = args.workers.iter().flat_map(|&workers| {
        args.orders.iter().map(move |&order| {
            let lines = [0, 1, 2].map(|class: usize| {
                let of = results.summaries.iter();
                let of = of.filter(|s| (s.workers, s.order) == (workers, order));
                line(
                    class,
                    of.map(|s| (s.clients as f64, s.replies_per_s[class])),
                )
            });
            Panel {
                title: format!("{}, {workers} processes: replies/s", order.name()),
                x_title: "Greedy clients of each class".into(),
                lines: lines.to_vec(),
                ..Panel::default()
            }
        })
    });
    Picture {
        title: "VTFM01 Figures 5 and 6: three classes in the listen queue".into(),
        note: format!("{}; {}", results.machine, results.servers.join("; ")),
        panels: panels.collect(),
        names: ["high", "middle", "low"].map(str::to_string).to_vec(),
    }
}

/// The shortest form that shows the claim, for tests: 20 processes, 3 × 40 clients.
pub fn short(orders: &[Order], weir: Option<std::path::PathBuf>) -> Args {
    Args {
        clients: vec![40],
        workers: vec![20],
        orders: orders.to_vec(),
        ageing: "250ms".into(),
        server: ServerArgs {
            server: ServerKind::Pool,
            service_ms: 20.0,
        },
        common: Common::short(Duration::from_millis(1500), weir),
    }
}
