//! Hostile clients and origins around `weir proxy`: every byte and every end of many transfers.
//!
//! For each kind of traffic and each engine a proxy of its own is run in a network namespace of its
//! own. A fault is a failure of the command; the seed that it prints repeats the run's plan (sizes,
//! pieces, pauses, cuts), though not the kernel's timing.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use weir_testbed::proxy::Proxy;

use crate::error::{Context, Error, Result};
use crate::matrix::{self, Settings, Tally, Traffic};
use crate::netns::{self, Netns};
use crate::process;
use crate::program;
use crate::report::table;

/// Arguments of `weir-lab proxy-matrix`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Transfers, over all kinds of traffic and engines
    #[arg(long, default_value_t = 100_000)]
    pub transfers: u64,
    /// Seed of everything random [default: a new one, which is printed]
    #[arg(long)]
    pub seed: Option<u64>,
    /// Kinds of traffic, separated by commas
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "tcp,connect,reverse,forward"
    )]
    pub traffic: Vec<Traffic>,
    /// Engines, separated by commas
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "auto,copy,splice,sockmap"
    )]
    pub engines: Vec<String>,
    /// Clients at once
    #[arg(long, default_value_t = 128)]
    pub clients: usize,
    /// Seconds without progress after which a transfer is stuck
    #[arg(long, default_value_t = 20)]
    pub patience: u64,
    /// Threads of the proxy [default: its own]
    #[arg(long)]
    pub threads: Option<u32>,
    /// Memory for replies that the proxy keeps, in reverse and forward; half of them may be kept, and every sixth is
    /// of an object that many clients ask for
    #[arg(long, value_name = "SIZE")]
    pub cache: Option<String>,
    /// Of a thousand segments with data so many are lost on their way, and sent again. Needs nft
    #[arg(long, default_value_t = 0, value_name = "PERMILLE", value_parser = clap::value_parser!(u32).range(..=200))]
    pub loss: u32,
    /// The weir program [default: beside weir-lab, else from PATH]
    #[arg(long, value_name = "PATH")]
    pub weir: Option<PathBuf>,
    /// Print the results as JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

/// What became of one kind of traffic through one engine.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The kind of traffic.
    pub traffic: Traffic,
    /// The engine.
    pub engine: String,
    /// The proxy's memory before the first transfer, after a tenth of them, and at the end, in KiB.
    pub rss_kib: [u64; 3],
    /// The transfers.
    #[serde(flatten)]
    pub tally: Tally,
}

/// All of it.
#[derive(Debug, Clone, Serialize)]
pub struct Matrix {
    /// The seed.
    pub seed: u64,
    /// In the order in which they were run.
    pub rows: Vec<Row>,
}

impl Matrix {
    /// Faults, all together.
    pub fn faults(&self) -> u64 {
        let faults = self.rows.iter().flat_map(|row| row.tally.faults.values());
        faults.sum()
    }

    /// Transfers, all together.
    pub fn transfers(&self) -> u64 {
        self.rows.iter().map(|row| row.tally.transfers).sum()
    }

    /// The first faults of each row.
    pub fn texts(&self) -> impl Iterator<Item = String> {
        self.rows.iter().flat_map(|row| {
            let of = format!("{:?} {}", row.traffic, row.engine);
            let texts = row.tally.texts.iter();
            texts.map(move |text| format!("{of}: {text}"))
        })
    }

    /// A table for people.
    pub fn render(&self) -> String {
        let head = [
            "traffic",
            "engine",
            "transfers",
            "whole",
            "cut",
            "hits",
            "MB",
            "s",
            "RSS KiB",
            "faults",
        ];
        let rows: Vec<Vec<String>> = self.rows.iter().map(Row::cells).collect();
        let mut text = table(&head, &rows);
        for fault in self.texts() {
            text += &format!("fault: {fault}\n");
        }
        let (transfers, faults, seed) = (self.transfers(), self.faults(), self.seed);
        text + &format!("{transfers} transfers, {faults} faults, seed {seed}\n")
    }
}

impl Row {
    fn cells(&self) -> Vec<String> {
        let tally = &self.tally;
        let faults = tally
            .faults
            .iter()
            .map(|(kind, count)| format!("{count} {kind:?}"));
        let faults: Vec<String> = faults.collect();
        let rss = self.rss_kib.map(|kib| kib.to_string());
        vec![
            format!("{:?}", self.traffic).to_lowercase(),
            self.engine.clone(),
            tally.transfers.to_string(),
            tally.whole.to_string(),
            tally.cut.to_string(),
            tally.hits.to_string(),
            (tally.bytes / 1_000_000).to_string(),
            format!("{:.1}", tally.seconds),
            rss.join(" > "),
            match faults.is_empty() {
                true => "0".into(),
                false => faults.join(", "),
            },
        ]
    }
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    netns::sweep_stale();
    let matrix = measure(args)?;
    match args.json {
        true => println!(
            "{}",
            serde_json::to_string_pretty(&matrix).context("no JSON")?
        ),
        false => print!("{}", matrix.render()),
    }
    match matrix.faults() {
        0 => Ok(()),
        faults => Err(
            Error::failed("the proxy is at fault", format!("{faults} times"))
                .hint(format!("repeat it with --seed {}", matrix.seed)),
        ),
    }
}

/// Runs every kind of traffic through every engine.
pub fn measure(args: &Args) -> Result<Matrix> {
    let weir = match &args.weir {
        Some(path) => path.clone(),
        None => program::find("weir")?,
    };
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
    if !args.json {
        eprintln!("seed {seed}");
    }
    let netns = Netns::create("matrix")?;
    // As on a network: segments that are smaller than the buffers.
    netns.ip(&["link", "set", "lo", "mtu", "1500"])?;
    // Ends that leave in order leave TIME-WAIT behind; a run makes more connections than ports.
    netns.set_sysctl("net.ipv4.ip_local_port_range", "1025 65535")?;
    netns.set_sysctl("net.ipv4.tcp_tw_reuse", "1")?;
    if args.loss > 0 {
        netns.lose(args.loss)?;
    }
    let cases = (args.traffic.len() * args.engines.len()).max(1) as u64;
    let share = args.transfers.div_ceil(cases);
    let mut rows = Vec::new();
    for traffic in &args.traffic {
        for engine in &args.engines {
            let settings = Settings {
                traffic: *traffic,
                seed: seed.wrapping_add(rows.len() as u64),
                transfers: share,
                clients: args.clients,
                patience: Duration::from_secs(args.patience),
                lossy: args.loss > 0,
            };
            rows.push(netns.run(|| case(&settings, engine, args, &weir))?);
        }
    }
    Ok(Matrix { seed, rows })
}

/// A tenth of the transfers lets the proxy reach its size; it must not grow from there.
fn case(settings: &Settings, engine: &str, args: &Args, weir: &Path) -> Result<Row> {
    let listener = || TcpListener::bind("0.0.0.0:0").context("the origin cannot listen");
    let first = listener()?;
    let port = first.local_addr().context("the origin is nowhere")?.port();
    let mode = match settings.traffic {
        Traffic::Tcp => "tcp",
        Traffic::Reverse => "reverse",
        Traffic::Connect | Traffic::Forward => "forward",
    };
    let mut arguments = vec![
        "--mode".into(),
        mode.into(),
        "--engine".into(),
        engine.into(),
    ];
    // So many that none waits for a place, and that descriptors are enough for.
    arguments.extend(["--max-clients".into(), (8 * args.clients).to_string()]);
    if mode != "forward" {
        arguments.extend(["--backend".into(), format!("127.0.0.1:{port}")]);
    }
    if let Some(threads) = args.threads {
        arguments.extend(["--threads".into(), threads.to_string()]);
    }
    let is_http = matches!(settings.traffic, Traffic::Reverse | Traffic::Forward);
    if let Some(size) = args.cache.as_ref().filter(|_| is_http) {
        arguments.extend(["--cache".into(), size.clone()]);
    }
    let subject = Proxy::start(weir, &arguments)?;
    let before = process::rss_kib(subject.pid())?;
    let second = first.try_clone().context("cannot listen twice")?;
    let tenth = Settings {
        transfers: settings.transfers.div_ceil(10),
        seed: !settings.seed,
        ..settings.clone()
    };
    let rest = Settings {
        transfers: settings.transfers - tenth.transfers,
        ..settings.clone()
    };
    let mut tally = matrix::run(&tenth, &subject, first)?;
    let warm = process::rss_kib(subject.pid())?;
    tally.add(matrix::run(&rest, &subject, second)?);
    let after = process::rss_kib(subject.pid())?;
    Ok(Row {
        traffic: settings.traffic,
        engine: engine.to_owned(),
        rss_kib: [before, warm, after],
        tally,
    })
}
