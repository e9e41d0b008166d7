//! Hostile clients and origins around `weir proxy`: every byte and every end of many transfers.
//!
//! For each kind of traffic and each engine a proxy of its own is run in a network namespace of its
//! own. A fault is a failure of the command; the seed that it prints repeats the run's plan (sizes,
//! pieces, pauses, cuts), though not the kernel's timing.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use weir_testbed::proxy::Proxy;

use crate::error::{Context, Error, Result};
use crate::matrix::{self, Settings, Tally, Traffic};
use crate::netns::{self, Netns};
use crate::process;
use crate::program;
use crate::run::experiment::{Entry, Experiment, Flags, Program, Turn, chosen, parsed, word};
use crate::run::results::{Case, Claim, Facts, Parameters, Results, Sample, Show, parameters};

const MATRIX: Entry = Entry::new::<Args>(
    "proxy-matrix",
    "Does every byte and every end travel, whatever hostile clients and origins around weir's proxy do?",
)
.source("RR02")
.flags("--transfers 1000000 --clients 192", "--transfers 400 --clients 32")
.test();

/// The experiment, and its runs with a cache and with lost segments.
pub const ENTRIES: &[Entry] = &[
    MATRIX,
    MATRIX
        .preset(
            "proxy-matrix-cache",
            "The same with replies from the cache.",
        )
        .flags(
            "--traffic reverse,forward --transfers 100000 --clients 192 --cache 64MiB",
            "--traffic reverse,forward --transfers 400 --clients 32 --cache 64MiB",
        ),
    MATRIX
        .preset(
            "proxy-matrix-lossy",
            "The same with a fiftieth of the data segments lost.",
        )
        .flags(
            "--loss 20 --transfers 32000 --clients 160",
            "--loss 20 --transfers 200 --clients 32",
        ),
    MATRIX
        .preset(
            "proxy-matrix-lossy-sockmap",
            "The same in tunnels of engine sockmap, with a tenth of the data segments lost.",
        )
        .flags(
            "--loss 100 --engines sockmap --traffic tcp --transfers 60000 --clients 192",
            "--loss 100 --engines sockmap --traffic tcp --transfers 200 --clients 32",
        ),
];

/// Arguments of `weir-lab proxy-matrix`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Transfers, over all kinds of traffic and engines
    #[arg(long, default_value_t = 100_000)]
    pub transfers: u64,
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
}

impl Flags for Args {
    fn experiment(self, program: &Program) -> Result<Box<dyn Experiment>> {
        if self.traffic.is_empty() || self.engines.is_empty() {
            return Err(Error::usage(
                "bad --traffic or --engines",
                "one is needed at least",
            ));
        }
        Ok(Box::new(Matrix {
            args: self,
            weir: program.weir.clone().unwrap_or_default(),
            netns: None,
        }))
    }
}

struct Matrix {
    args: Args,
    weir: PathBuf,
    netns: Option<Netns>,
}

impl Experiment for Matrix {
    fn groups(&self) -> Vec<Vec<Parameters>> {
        let of = |traffic: &Traffic| {
            let case = |engine: &String| {
                parameters([("traffic", word(traffic)), ("engine", engine.clone())])
            };
            self.args.engines.iter().map(case).collect()
        };
        self.args.traffic.iter().map(of).collect()
    }

    /// A new one each time, so that every run tries something else.
    fn seed(&self) -> u64 {
        fastrand::u64(..1 << 32)
    }

    fn open(&mut self, _facts: &mut Facts) -> Result<()> {
        netns::sweep_stale();
        if self.weir.as_os_str().is_empty() {
            self.weir = program::find("weir")?;
        }
        let netns = Netns::create("matrix")?;
        // As on a network: segments that are smaller than the buffers.
        netns.ip(&["link", "set", "lo", "mtu", "1500"])?;
        // Ends that leave in order leave TIME-WAIT behind; a run makes more connections than ports.
        netns.set_sysctl("net.ipv4.ip_local_port_range", "1025 65535")?;
        netns.set_sysctl("net.ipv4.tcp_tw_reuse", "1")?;
        if self.args.loss > 0 {
            netns.lose(self.args.loss)?;
        }
        self.netns = Some(netns);
        Ok(())
    }

    fn measure(&mut self, case: &Parameters, turn: Turn) -> Result<Sample> {
        let args = &self.args;
        let all = self.groups().concat();
        let index = all.iter().position(|one| one == case).unwrap_or(0);
        let settings = Settings {
            traffic: chosen(case, "traffic")?,
            seed: turn.seed.wrapping_add(index as u64),
            transfers: args.transfers.div_ceil(all.len() as u64),
            clients: args.clients,
            patience: Duration::from_secs(args.patience),
            lossy: args.loss > 0,
        };
        let engine: String = parsed(case, "engine")?;
        let netns = self.netns.as_ref().expect("opened first");
        netns.run(|| transfers(&settings, &engine, args, &self.weir))
    }

    fn claims(&self, results: &Results) -> Vec<Claim> {
        let claim = "no byte is changed, no end is wrong, nothing stands still or is left behind";
        let about =
            |case: &Case| Claim::about(claim, case, "faults", |faults| faults.range.1 == 0.0);
        results.cases.iter().map(about).collect()
    }

    fn show(&self) -> Show {
        Show::columns(&[
            ("traffic", "{traffic}"),
            ("engine", "{engine}"),
            ("transfers", "{transfers|n}"),
            ("whole", "{whole|n}"),
            ("cut", "{cut|n}"),
            ("hits", "{hits|n}"),
            ("MB", "{bytes|/1000000|.0}"),
            ("s", "{seconds|.1}"),
            (
                "RSS KiB",
                "{rss_before_kib|.0} > {rss_warm_kib|.0} > {rss_after_kib|.0}",
            ),
            ("faults", "{faults|n}"),
        ])
    }
}

/// A tenth of the transfers lets the proxy reach its size; it must not grow from there.
fn transfers(settings: &Settings, engine: &str, args: &Args, weir: &Path) -> Result<Sample> {
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
    match mode {
        "forward" => arguments.extend(["--connect-port".into(), port.to_string()]),
        _ => arguments.extend(["--backend".into(), format!("127.0.0.1:{port}")]),
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
    Ok(sample(&tally, [before, warm, after]))
}

/// `rss_kib`: the proxy's memory before the first transfer, after a tenth of them, and at the end.
fn sample(tally: &Tally, rss_kib: [u64; 3]) -> Sample {
    let faults: u64 = tally.faults.values().sum();
    let mut sample = Sample::of([
        ("transfers", tally.transfers as f64),
        ("whole", tally.whole as f64),
        ("cut", tally.cut as f64),
        ("hits", tally.hits as f64),
        ("bytes", tally.bytes as f64),
        ("seconds", tally.seconds),
        ("rss_before_kib", rss_kib[0] as f64),
        ("rss_warm_kib", rss_kib[1] as f64),
        ("rss_after_kib", rss_kib[2] as f64),
        ("faults", faults as f64),
    ]);
    let kinds = tally.faults.iter();
    sample.notes = kinds
        .map(|(kind, count)| format!("{count} faults: {kind:?}"))
        .collect();
    sample.notes.extend(tally.texts.iter().cloned());
    sample
}
