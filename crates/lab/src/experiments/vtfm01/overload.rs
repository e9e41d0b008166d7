//! The high class in an overloaded listen queue (FINDINGS, section 2): a server of one worker with 1 ms of work
//! for each connection, and a closed loop of 100 low, 10 middle and 2 high clients.
//!
//! Three ways, in turns: the kernel's FIFO; weir's `queue = "priority"`; a fourth on demand, `weir exec
//! --order exact`; and class listeners, the best that a
//! server can do that was written for it: a listening socket for each class, of which the worker always takes
//! the highest that has a connection.

use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use super::{Common, PORT, Share, Spread, Stage, address, config, strict, target, unpoliced};
use crate::closed_loop::{Demand, Group};
use crate::error::{Context, Result};
use crate::plot::lines::{Line, Panel, Picture};
use crate::program;
use crate::report::{self, table};
use crate::server::pool::Occupation;
use crate::server::{FILE_BYTES, Program, Spec};

/// Clients of the high, the middle and the low class.
const CLIENTS: [usize; 3] = [2, 10, 100];
const SERVICE_US: u32 = 1000;

/// Arguments of `weir-lab vtfm01 overload`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Ways to measure
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "fifo,priority,class-listeners"
    )]
    pub ways: Vec<Way>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: Common,
}

/// Ways to order the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// The kernel alone
    Fifo,
    /// weir's `queue = "priority"`
    Priority,
    /// A server started with `weir exec --order exact`
    Exec,
    /// A listening socket for each class
    ClassListeners,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::Fifo => "kernel's FIFO",
            Way::Priority => "weir, priority",
            Way::Exec => "weir exec, exact",
            Way::ClassListeners => "class listeners",
        }
    }
}

/// One point of one round.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Number of the round, from 1.
    pub round: usize,
    /// Who ordered.
    pub way: Way,
    /// What the classes got, the highest first.
    pub classes: Vec<Share>,
    /// All replies/s, which are the server's accepts/s.
    pub accepts_per_s: f64,
}

/// The rounds of one way.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    /// Who ordered.
    pub way: Way,
    /// Median response time by class, in ms, the highest first.
    pub p50_ms: Vec<Spread>,
    /// Replies/s by class.
    pub replies_per_s: Vec<Spread>,
    /// The high class's median response time over that with class listeners of the same round.
    pub high_p50_of_class_listeners: Spread,
    /// Accepts/s over the kernel's of the same round.
    pub accepts_of_fifo: Spread,
}

/// All that was found.
#[derive(Debug, Clone, Serialize)]
pub struct Results {
    /// Kernel and processors.
    pub machine: String,
    /// The server.
    pub server: String,
    /// In the order of the ways.
    pub summaries: Vec<Summary>,
    /// Every round.
    pub rows: Vec<Row>,
}

impl Results {
    /// Of weir's priority.
    pub fn priority(&self) -> Option<&Summary> {
        self.summaries
            .iter()
            .find(|summary| summary.way == Way::Priority)
    }
}

fn spec(listeners: u16) -> Spec {
    Spec {
        program: Program::Pool {
            workers: 1,
            service_us: SERVICE_US,
            occupation: Occupation::Spin,
            body_bytes: FILE_BYTES,
            listeners,
        },
        port: PORT,
        backlog: super::BACKLOG,
    }
}

/// The same server with its accept() calls answered. The folder has the config file.
fn spec_under_exec(weir: Option<&Path>, folder: &Path) -> Result<Spec> {
    let file = folder.join("weir.toml");
    let text = config(&strict(), &unpoliced(3));
    std::fs::write(&file, text).context(format!("cannot write {}", file.display()))?;
    let weir = weir.map_or_else(|| program::find("weir"), |path| Ok(path.to_path_buf()))?;
    let lab = program::find("weir-lab")?;
    let plain = spec(1);
    let command = format!(
        "exec {} exec --order exact --config {} -- {} pool --occupation spin --record /dev/null \
         --port {} --backlog {} --workers 1 --service-us {SERVICE_US} --body-bytes {FILE_BYTES} \
         --listeners 1",
        weir.display(),
        file.display(),
        lab.display(),
        plain.port,
        plain.backlog,
    );
    Ok(Spec {
        program: Program::Command(command),
        ..plain
    })
}

fn groups(way: Way) -> Vec<Group> {
    let group = |(class, clients): (u8, usize)| Group {
        source: address(class),
        target: target(match way {
            Way::ClassListeners => PORT + u16::from(class) - 1,
            _ => PORT,
        }),
        demand: Demand::Greedy { clients },
    };
    (1..).zip(CLIENTS).map(group).collect()
}

/// Measures all ways in turns; progress goes to stderr.
pub fn measure(args: &Args) -> Result<Results> {
    let stage = Stage::build(&args.common)?;
    let folder = tempfile::TempDir::with_prefix("weir-lab-exec-")
        .context("cannot create a directory for weir exec")?;
    let mut rows: Vec<Row> = Vec::new();
    for round in 1..=args.common.rounds {
        for &way in &args.ways {
            let listeners = if way == Way::ClassListeners { 3 } else { 1 };
            let config = (way == Way::Priority).then(|| config(&strict(), &unpoliced(3)));
            let spec = match way {
                Way::Exec => spec_under_exec(args.common.weir.as_deref(), folder.path())?,
                _ => spec(listeners),
            };
            let classes = stage.point(&spec, config.as_deref(), &groups(way))?;
            let row = Row {
                round,
                way,
                accepts_per_s: classes.iter().map(|class| class.replies_per_s).sum(),
                classes,
            };
            eprintln!(
                "  {:<16} {:>5.0} accepts/s, p50 {:>7.2} {:>7.2} {:>7.2} ms",
                way.name(),
                row.accepts_per_s,
                row.classes[0].response.p50_ms,
                row.classes[1].response.p50_ms,
                row.classes[2].response.p50_ms
            );
            rows.push(row);
        }
    }
    Ok(Results {
        machine: report::machine(),
        server: spec(1).describe(),
        summaries: args.ways.iter().map(|&way| summarize(way, &rows)).collect(),
        rows,
    })
}

fn summarize(way: Way, rows: &[Row]) -> Summary {
    let of_way = |way: Way| rows.iter().filter(move |row| row.way == way);
    let by_class = |value: fn(&Share) -> f64| {
        let of_class =
            |class: usize| Spread::of(of_way(way).map(move |row| value(&row.classes[class])));
        (0..CLIENTS.len()).map(of_class).collect()
    };
    // The rounds of all ways are as many, in the same order.
    let beside = |other: Way, value: fn(&Row) -> f64| {
        let pairs = of_way(way).zip(of_way(other));
        Spread::of(pairs.map(|(row, other)| value(row) / value(other).max(1e-9)))
    };
    Summary {
        way,
        p50_ms: by_class(|share| share.response.p50_ms),
        replies_per_s: by_class(|share| share.replies_per_s),
        high_p50_of_class_listeners: beside(Way::ClassListeners, |row| {
            row.classes[0].response.p50_ms
        }),
        accepts_of_fifo: beside(Way::Fifo, |row| row.accepts_per_s),
    }
}

/// Runs the experiment of the command line.
pub fn run(args: &Args) -> Result<()> {
    let results = measure(args)?;
    let picture = picture(&results);
    args.common
        .tell("overload", &results, &picture, || tables(&results))
}

fn tables(results: &Results) -> String {
    let head = [
        "queue",
        "high p50 ms",
        "middle p50 ms",
        "low p50 ms",
        "high p50 / class listeners",
        "accepts/s / FIFO",
        "low replies/s",
    ];
    let row = |summary: &Summary| {
        let mut cells = vec![summary.way.name().to_string()];
        cells.extend(summary.p50_ms.iter().map(|spread| spread.cell(2)));
        cells.push(summary.high_p50_of_class_listeners.cell(2));
        cells.push(summary.accepts_of_fifo.cell(2));
        cells.push(summary.replies_per_s[2].cell(0));
        cells
    };
    let rows: Vec<Vec<String>> = results.summaries.iter().map(row).collect();
    format!(
        "{}\n{}\n\n{}",
        results.machine,
        results.server,
        table(&head, &rows)
    )
}

/// Median response times, round by round.
fn picture(results: &Results) -> Picture {
    let ways = results.summaries.iter().map(|summary| summary.way);
    let panel = |class: usize, title: &str| {
        let line = |(name, way): (usize, Way)| {
            let rows = results.rows.iter().filter(|row| row.way == way);
            let points = rows.map(|row| (row.round as f64, row.classes[class].response.p50_ms));
            Line {
                name,
                points: points.collect(),
                markers: true,
                ..Line::default()
            }
        };
        Panel {
            title: format!("{title}: median response time, ms"),
            x_title: "Round".into(),
            lines: ways.clone().enumerate().map(line).collect(),
            logarithmic: true,
            ..Panel::default()
        }
    };
    Picture {
        title: "2 high, 10 middle and 100 low clients at a server of 1 ms".into(),
        note: format!("{}; {}", results.machine, results.server),
        panels: vec![panel(0, "High class"), panel(2, "Low class")],
        names: ways.map(|way| way.name().to_string()).collect(),
    }
}

/// One round, for tests.
pub fn short(weir: Option<std::path::PathBuf>) -> Args {
    Args {
        ways: vec![Way::Fifo, Way::Priority, Way::ClassListeners],
        common: Common::short(Duration::from_millis(1500), weir),
    }
}
