//! What idle connections cost a proxy: memory, descriptors, CPU time.
//!
//! One contender after the other, each on a bed of its own: all clients connect, have one exchange, and stay.
//! Then nothing is asked for a while. In the end each has another exchange, so that every connection that was
//! counted is known to have lived. A process may hold 20 000 descriptors on the test machines, so there are
//! several of each contender, of one thread each, which share the port.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::error::{Error, Result};
use crate::proxy::contender::{Contender, Mode};
use crate::proxy::crowd::Appetite;
use crate::proxy::stage::{self, Snapshot, Stage};
use crate::report;

/// Arguments of `weir-lab proxy-idle`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Tunnels of mode tcp; 0 leaves them out
    #[arg(long, default_value_t = 50_000)]
    pub tunnels: usize,
    /// Connections that are kept between two requests, in mode reverse; 0 leaves them out
    #[arg(long, default_value_t = 10_000)]
    pub kept: usize,
    /// Proxies to compare
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "weir,haproxy,nginx"
    )]
    pub contenders: Vec<Contender>,
    /// Bytes of a reply
    #[arg(long, default_value_t = 1024)]
    pub bytes: usize,
    /// How long nothing is asked, in s
    #[arg(long, default_value_t = 3.0)]
    pub seconds: f64,
    /// How long they rest before that, in s: timers of their first exchange fire once more
    #[arg(long, default_value_t = 6.0)]
    pub settle: f64,
    /// The weir program [default: beside weir-lab, else from PATH]
    #[arg(long, value_name = "PATH")]
    pub weir: Option<PathBuf>,
    /// Folder for results.json
    #[arg(long, default_value = "out/proxy-idle", value_name = "DIR")]
    pub out: PathBuf,
    /// Print the results as JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

/// One contender with its idle connections.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Who.
    pub contender: Contender,
    /// What was idle.
    pub mode: Mode,
    /// How many.
    pub connections: usize,
    /// The contender's processes.
    pub processes: usize,
    /// Before the first connection.
    pub before: Snapshot,
    /// With all of them, idle.
    pub idle: Snapshot,
    /// CPU time of all processes while nothing was asked, in µs.
    pub cpu_us: f64,
    /// How often one of their threads ran in that time.
    pub switches: u64,
    /// That time, in s.
    pub seconds: f64,
    /// How long all clients took to connect and to have their first exchange, in s.
    pub gathering_s: f64,
}

impl Row {
    /// Resident memory that a connection added, in bytes.
    pub fn rss_each(&self) -> f64 {
        let rss = |snapshot: &Snapshot| snapshot.holdings.rss_kib as f64 * 1024.0;
        (rss(&self.idle) - rss(&self.before)) / self.connections as f64
    }

    /// All resident memory of the processes, divided by the connections, in bytes.
    pub fn rss_share(&self) -> f64 {
        self.idle.holdings.rss_kib as f64 * 1024.0 / self.connections as f64
    }

    /// Descriptors that a connection added.
    pub fn descriptors_each(&self) -> f64 {
        let added = self.idle.holdings.descriptors - self.before.holdings.descriptors;
        added as f64 / self.connections as f64
    }

    /// Share of one CPU that all processes took while idle, 0 to 1.
    pub fn cpu_share(&self) -> f64 {
        self.cpu_us / 1e6 / self.seconds
    }
}

/// All that was found.
#[derive(Debug, Clone, Serialize)]
pub struct Results {
    /// Kernel and processors.
    pub machine: String,
    /// In the order in which they were measured.
    pub rows: Vec<Row>,
}

impl Results {
    /// weir's memory a connection over that of the better of the others; `None` without them.
    pub fn rss_ratio(&self, mode: Mode) -> Option<f64> {
        let of_mode = || self.rows.iter().filter(|row| row.mode == mode);
        let weir = of_mode().find(|row| row.contender == Contender::Weir)?;
        let others =
            of_mode().filter(|row| matches!(row.contender, Contender::Haproxy | Contender::Nginx));
        let least = others.map(Row::rss_each).min_by(f64::total_cmp)?;
        Some(weir.rss_each() / least)
    }

    /// A table for people.
    pub fn render(&self) -> String {
        let head = [
            "mode",
            "contender",
            "count",
            "processes",
            "RSS B each",
            "RSS B, all",
            "fds each",
            "CPU %",
            "switches/s",
            "connected in s",
        ];
        let rows: Vec<Vec<String>> = self.rows.iter().map(cells).collect();
        let mut text = format!("{}\n\n{}", self.machine, report::table(&head, &rows));
        for mode in [Mode::Tunnel, Mode::Http] {
            if let Some(ratio) = self.rss_ratio(mode) {
                let mode = mode.name();
                text += &format!("{mode}: weir's memory is {ratio:.2} of the better one's\n");
            }
        }
        text
    }
}

fn cells(row: &Row) -> Vec<String> {
    vec![
        row.mode.name().into(),
        row.contender.name().into(),
        row.connections.to_string(),
        row.processes.to_string(),
        format!("{:.0}", row.rss_each()),
        format!("{:.0}", row.rss_share()),
        format!("{:.3}", row.descriptors_each()),
        format!("{:.4}", row.cpu_share() * 100.0),
        format!("{:.1}", row.switches as f64 / row.seconds),
        format!("{:.1}", row.gathering_s),
    ]
}

/// Measures all; progress goes to stderr.
pub fn measure(args: &Args) -> Result<Results> {
    let rest = args.settle + args.seconds;
    if !(args.seconds > 0.0 && args.settle >= 0.0 && rest <= 50.0) {
        let what = format!("bad --seconds {} or --settle {}", args.seconds, args.settle);
        let cause = "it must be above 0 and at most 50, for proxies close idle connections";
        return Err(Error::usage(what, cause));
    }
    let mut rows = Vec::new();
    for (mode, count) in [(Mode::Tunnel, args.tunnels), (Mode::Http, args.kept)] {
        for &contender in args.contenders.iter().filter(|_| count > 0) {
            let row = measure_one(args, contender, mode, count)?;
            eprintln!("  {}", cells(&row).join("  "));
            rows.push(row);
        }
    }
    Ok(Results {
        machine: report::machine(),
        rows,
    })
}

fn measure_one(args: &Args, contender: Contender, mode: Mode, count: usize) -> Result<Row> {
    stage::check_memory()?;
    let mut stage = Stage::build(contender, mode, count, args.weir.as_deref())?;
    let before = stage.snapshot()?;
    let begun = Instant::now();
    let crowd = stage.gather(count, args.bytes, Appetite::Hungry)?;
    let gathering_s = begun.elapsed().as_secs_f64();
    let idle = stage.snapshot()?;
    std::thread::sleep(Duration::from_secs_f64(args.settle));
    let (begun, used) = (Instant::now(), stage.running.usage()?);
    std::thread::sleep(Duration::from_secs_f64(args.seconds));
    let used = stage.running.usage()?.since(&used);
    let seconds = begun.elapsed().as_secs_f64();
    crowd.ask()?;
    stage::check_memory()?;
    Ok(Row {
        contender,
        mode,
        connections: count,
        processes: stage.processes,
        before,
        idle,
        cpu_us: used.cpu.as_secs_f64() * 1e6,
        switches: used.switches,
        seconds,
        gathering_s,
    })
}

/// Runs the experiment of the command line: a table or JSON on stdout, a file in --out.
pub fn run(args: &Args) -> Result<()> {
    let results = measure(args)?;
    let json = report::write_json(&results, &args.out)?;
    report::show(&json, args.json, || results.render());
    Ok(())
}
