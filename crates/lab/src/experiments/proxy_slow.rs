//! What slow readers of large bodies cost a proxy: its memory, its pipes, the kernel's queues.
//!
//! One contender after the other, each on a bed of its own: all clients ask for a body that no buffer holds, and
//! take a few bytes of it at a time. The origin sends as fast as it is let. What is stated is the most that was
//! seen at any moment, less what was held before.

use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::interrupt;
use crate::proxy::contender::{Contender, ProxyMode};
use crate::proxy::many::{Clients, Demand};
use crate::proxy::single::{self, SingleProxy};
use crate::proxy::size::Size;
use crate::proxy::sockets::SocketMemory;
use crate::run::experiment::{Entry, Experiment, Flags, Program, Turn, chosen, word};
use crate::run::results::{Facts, Parameters, Sample, Show, parameters};

/// The experiment, and its runs with more readers.
pub const ENTRIES: &[Entry] = &[
    SLOW,
    SLOW.preset(
        "proxy-slow-plateau",
        "What do 10 000 slow readers hold once nothing grows any more?",
    )
    .flags(
        "--readers 10000 --rate 4096 --seconds 230 --modes http --contenders weir",
        SLOW.quick,
    ),
    SLOW.preset("proxy-slow-plateau-tunnel", "The same with tunnels.")
        .flags(
            "--readers 10000 --rate 4096 --seconds 120 --modes tunnel --contenders weir",
            SLOW.quick,
        ),
    SLOW.preset(
        "proxy-slow-10k",
        "What do 10 000 slow readers cost weir's proxy, HAProxy and nginx in 12 s?",
    )
    .flags(
        "--readers 10000 --seconds 12 --contenders weir,haproxy,nginx",
        SLOW.quick,
    ),
];

const SLOW: Entry = Entry::new::<Args>(
    "proxy-slow",
    "What do slow readers of large bodies cost weir's proxy, HAProxy and nginx?",
)
.source("the plan: scale")
.flags(
    "--readers 2000 --seconds 5 --modes http",
    "--readers 50 --seconds 1 --modes http --contenders weir",
);

/// Longest time of reading.
const MOST_SECONDS: f64 = 600.0;
/// Distance of two moments that are kept.
const MOMENTS_EVERY: Duration = Duration::from_secs(10);
/// What is less is no growth.
const GROWTH: f64 = 1.01;
/// Distance of two reads of a reader.
const READ_EVERY: Duration = Duration::from_millis(500);

/// Arguments of `weir-lab proxy-slow`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Slow readers
    #[arg(long, default_value_t = 10_000)]
    pub readers: usize,
    /// Bytes of each body
    #[arg(long, default_value = "10M")]
    pub bytes: Size,
    /// Bytes/s that each reader takes
    #[arg(long, default_value_t = 4096)]
    pub rate: usize,
    /// Receive buffer of each reader (SO_RCVBUF; the kernel doubles it), in bytes
    #[arg(long, default_value_t = 8192)]
    pub receive_buffer: usize,
    /// How long they read, in s
    #[arg(long, default_value_t = 15.0)]
    pub seconds: f64,
    /// End before that once the memory of the process and of all TCP has not grown by 1 % for so many s
    #[arg(long, value_name = "SECONDS")]
    pub plateau: Option<f64>,
    /// Kinds of transfer, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', default_value = "http,tunnel")]
    pub modes: Vec<ProxyMode>,
    /// Proxies to compare
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "weir,copy,splice,haproxy,nginx"
    )]
    pub contenders: Vec<Contender>,
}

impl Flags for Args {
    fn experiment(self, program: &Program) -> Result<Box<dyn Experiment>> {
        if !(self.seconds > 0.0 && self.seconds <= MOST_SECONDS) {
            let what = format!("bad --seconds {}", self.seconds);
            let hint = format!("it must be above 0 and at most {MOST_SECONDS}");
            return Err(Error::usage(what, hint));
        }
        Ok(Box::new(Slow {
            args: self,
            program: program.clone(),
        }))
    }
}

struct Slow {
    args: Args,
    program: Program,
}

impl Experiment for Slow {
    fn groups(&self) -> Vec<Vec<Parameters>> {
        let group = |mode: &ProxyMode| {
            let case = |contender: &Contender| {
                let (mode, readers) = (mode.name().into(), self.args.readers.to_string());
                parameters([
                    ("mode", mode),
                    ("contender", word(contender)),
                    ("readers", readers),
                ])
            };
            self.args.contenders.iter().map(case).collect()
        };
        self.args.modes.iter().map(group).collect()
    }

    fn open(&mut self, facts: &mut Facts) -> Result<()> {
        let args = &self.args;
        let load = format!(
            "{} readers of {} at {} B/s for {} s, receive buffers of {} B",
            args.readers, args.bytes, args.rate, args.seconds, args.receive_buffer
        );
        facts.insert("load".into(), load.into());
        Ok(())
    }

    fn measure(&mut self, case: &Parameters, _turn: Turn) -> Result<Sample> {
        let args = &self.args;
        let (contender, mode) = (chosen(case, "contender")?, chosen(case, "mode")?);
        single::check_memory()?;
        let mut proxy = SingleProxy::build(contender, mode, args.readers, self.program.path())?;
        let mut watch = Watch::begin(&mut proxy)?;
        let demand = Demand::Slow {
            receive_buffer: args.receive_buffer,
        };
        let clients = proxy.connect(args.readers, args.bytes.0, demand)?;
        let ended = read_slowly(args, &mut proxy, &clients, &mut watch);
        drop(clients);
        match ended {
            // A contender that fails is a result, and so is one that would take all memory.
            Err(error) if !interrupt::interrupted() => {
                watch.sample.notes.push(format!("ended by {error}"))
            }
            ended => ended?,
        }
        Ok(watch.finish(proxy.processes, args.readers))
    }

    fn show(&self) -> Show {
        Show::columns(&[
            ("mode", "{mode}"),
            ("contender", "{contender}"),
            ("readers", "{readers}"),
            ("RSS MiB", "{rss_mib|.1}"),
            ("middle > end", "{rss_middle_mib|.1} > {rss_end_mib|.1}"),
            ("plateau s", "{plateau_s|.0}"),
            ("KiB each", "{rss_kib_each|.0}"),
            ("pipes", "{pipes|n}"),
            ("proxy's queues MiB", "{queues_mib|.1}"),
            ("KiB each", "{queues_kib_each|.0}"),
            ("all TCP MiB", "{tcp_mib|.1}"),
            ("taken MB", "{taken_mb|.0}"),
        ])
    }
}

/// Lets the readers take a few bytes at a time, and watches what is held meanwhile.
fn read_slowly(
    args: &Args,
    proxy: &mut SingleProxy,
    clients: &Clients,
    watch: &mut Watch,
) -> Result<()> {
    let begun = Instant::now();
    let time = Duration::from_secs_f64(args.seconds);
    let most = (args.rate as f64 * READ_EVERY.as_secs_f64()) as usize;
    let mut reads = 0;
    while begun.elapsed() < time {
        interrupt::check()?;
        watch.taken_bytes += clients.take(most)?;
        watch.look(proxy, begun)?;
        if begun.elapsed() < time / 2 {
            watch.rss_middle_kib = watch.rss_end_kib;
        }
        if watch.stands_still_for(begun, args.plateau) {
            break;
        }
        reads += 1;
        let due = begun + READ_EVERY * reads;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    Ok(())
}

/// The most that was held.
struct Watch {
    rss_kib_before: u64,
    pipes_before: usize,
    /// What the process and all TCP held when either last grew, and when that was.
    grown: (u64, u64, Duration),
    rss_kib: u64,
    rss_end_kib: u64,
    rss_middle_kib: u64,
    pipes: usize,
    sockets: SocketMemory,
    taken_bytes: u64,
    /// Least memory that the machine had left.
    available_bytes: u64,
    sample: Sample,
}

impl Watch {
    fn begin(proxy: &mut SingleProxy) -> Result<Watch> {
        let before = proxy.snapshot()?;
        Ok(Watch {
            rss_kib_before: before.holdings.rss_kib,
            pipes_before: before.holdings.pipes,
            grown: (0, 0, Duration::ZERO),
            rss_kib: 0,
            rss_end_kib: 0,
            rss_middle_kib: 0,
            pipes: 0,
            sockets: SocketMemory::default(),
            taken_bytes: 0,
            available_bytes: single::check_memory()?,
            sample: Sample::default(),
        })
    }

    fn look(&mut self, proxy: &mut SingleProxy, begun: Instant) -> Result<()> {
        self.available_bytes = self.available_bytes.min(single::check_memory()?);
        let now = proxy.snapshot()?;
        let pipes = now.holdings.pipes.saturating_sub(self.pipes_before) / 2;
        self.pipes = self.pipes.max(pipes);
        self.rss_end_kib = now.holdings.rss_kib.saturating_sub(self.rss_kib_before);
        self.rss_kib = self.rss_kib.max(self.rss_end_kib);
        self.sockets = self.sockets.max(&now.sockets);
        let at = begun.elapsed();
        let moments = self.sample.series.get("at_s").map_or(0, Vec::len);
        if at >= MOMENTS_EVERY * moments as u32 {
            for (name, value) in [
                ("at_s", at.as_secs_f64().round()),
                ("rss_mib", mib(self.rss_end_kib * 1024)),
                ("pipes", pipes as f64),
                ("queues_mib", mib(now.sockets.proxy_bytes())),
                ("tcp_mib", mib(now.sockets.machine_bytes)),
            ] {
                self.sample
                    .series
                    .entry(name.into())
                    .or_default()
                    .push(value);
            }
        }
        let (rss_kib, machine_bytes, _) = self.grown;
        let has_grown = |now: u64, then: u64| now as f64 > then as f64 * GROWTH;
        if has_grown(self.rss_kib, rss_kib) || has_grown(self.sockets.machine_bytes, machine_bytes)
        {
            self.grown = (self.rss_kib, self.sockets.machine_bytes, at);
        }
        Ok(())
    }

    /// Whether nothing has grown for the time of `--plateau`.
    fn stands_still_for(&mut self, begun: Instant, plateau: Option<f64>) -> bool {
        let (.., grown_at) = self.grown;
        let still = begun.elapsed().saturating_sub(grown_at).as_secs_f64();
        let stands = plateau.is_some_and(|plateau| still >= plateau);
        if stands {
            self.sample.add([("plateau_s", grown_at.as_secs_f64())]);
        }
        stands
    }

    fn finish(self, processes: usize, readers: usize) -> Sample {
        let mut sample = self.sample;
        let queues = self.sockets.proxy_bytes();
        let each = |bytes: u64| bytes as f64 / 1024.0 / readers as f64;
        sample.add([
            ("processes", processes as f64),
            ("rss_mib", mib(self.rss_kib * 1024)),
            ("rss_end_mib", mib(self.rss_end_kib * 1024)),
            ("rss_middle_mib", mib(self.rss_middle_kib * 1024)),
            ("rss_kib_each", each(self.rss_kib * 1024)),
            ("pipes", self.pipes as f64),
            ("queues_mib", mib(queues)),
            ("queues_kib_each", each(queues)),
            ("tcp_mib", mib(self.sockets.machine_bytes)),
            ("taken_mb", self.taken_bytes as f64 / 1e6),
            ("available_mib", mib(self.available_bytes)),
        ]);
        sample
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
