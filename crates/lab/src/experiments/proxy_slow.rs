//! What slow readers of large bodies cost a proxy: its memory, its pipes, the kernel's queues.
//!
//! One contender after the other, each on a bed of its own: all clients ask for a body that no buffer holds, and
//! take a few bytes of it at a time. The origin sends as fast as it is let. What is stated is the most that was
//! seen at any moment.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::proxy_bench::Size;
use crate::error::{Error, Result};
use crate::interrupt;
use crate::proxy::contender::{Contender, Mode};
use crate::proxy::crowd::{Appetite, Crowd};
use crate::proxy::sockets::SocketMemory;
use crate::proxy::stage::{self, Stage};
use crate::report;

/// Longest time of reading.
const MOST_SECONDS: f64 = 600.0;
/// Distance of two moments that are kept.
const MOMENTS_EVERY: Duration = Duration::from_secs(10);
/// What is less is no growth.
const GROWTH: f64 = 1.01;
/// Distance of two sips of a reader.
const SIP_EVERY: Duration = Duration::from_millis(500);

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
    pub modes: Vec<Mode>,
    /// Proxies to compare
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "weir,copy,splice,haproxy,nginx"
    )]
    pub contenders: Vec<Contender>,
    /// The weir program [default: beside weir-lab, else from PATH]
    #[arg(long, value_name = "PATH")]
    pub weir: Option<PathBuf>,
    /// Folder for results.json
    #[arg(long, default_value = "out/proxy-slow", value_name = "DIR")]
    pub out: PathBuf,
    /// Print the results as JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

/// One contender with its slow readers. What is held is the most at any moment, less what was held before.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Who.
    pub contender: Contender,
    /// How the bodies went through it.
    pub mode: Mode,
    /// How many readers.
    pub readers: usize,
    /// The contender's processes.
    pub processes: usize,
    /// Resident memory of all of them, in KiB.
    pub rss_kib: u64,
    /// The same at the end, in KiB: what grows is larger then than in the middle.
    pub rss_end_kib: u64,
    /// The same in the middle, in KiB.
    pub rss_middle_kib: u64,
    /// What was held, from 10 s to 10 s.
    pub course: Vec<Moment>,
    /// When it had stopped growing, in s; `None` if it had not.
    pub plateau_s: Option<f64>,
    /// Pipes, which hold at most 256 KiB each.
    pub pipes: usize,
    /// TCP's queues.
    #[serde(flatten)]
    pub sockets: SocketMemory,
    /// Bytes of bodies that the readers took.
    pub taken_bytes: u64,
    /// Least memory that the machine had left, in bytes.
    pub available_bytes: u64,
    /// What ended it early, if anything did.
    pub ended_by: Option<String>,
}

/// What was held at one moment.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Moment {
    /// Since the readers began, in s.
    pub at_s: f64,
    /// Resident memory of the contender, in KiB.
    pub rss_kib: u64,
    /// Its pipes.
    pub pipes: usize,
    /// The queues of its sockets, in bytes.
    pub proxy_bytes: u64,
    /// All TCP of the machine, in bytes.
    pub machine_bytes: u64,
}

/// All that was found.
#[derive(Debug, Clone, Serialize)]
pub struct Results {
    /// Kernel and processors.
    pub machine: String,
    /// What the readers did.
    pub load: String,
    /// In the order in which they were measured.
    pub rows: Vec<Row>,
}

impl Results {
    /// A table for people.
    pub fn render(&self) -> String {
        let head = [
            "mode",
            "contender",
            "readers",
            "RSS MiB",
            "middle > end",
            "plateau s",
            "B each",
            "pipes",
            "proxy's queues MiB",
            "KiB each",
            "all TCP MiB",
            "taken MB",
            "",
        ];
        let rows: Vec<Vec<String>> = self.rows.iter().map(cells).collect();
        let table = report::table(&head, &rows);
        format!("{}\n{}\n\n{table}", self.machine, self.load)
    }
}

fn cells(row: &Row) -> Vec<String> {
    let mib = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
    let queues = row.sockets.proxy_bytes();
    let readers = row.readers as f64;
    vec![
        row.mode.name().into(),
        row.contender.name().into(),
        row.readers.to_string(),
        mib(row.rss_kib * 1024),
        format!(
            "{} > {}",
            mib(row.rss_middle_kib * 1024),
            mib(row.rss_end_kib * 1024)
        ),
        row.plateau_s.map_or("-".into(), |s| format!("{s:.0}")),
        format!("{:.0}", row.rss_kib as f64 * 1024.0 / readers),
        row.pipes.to_string(),
        mib(queues),
        format!("{:.0}", queues as f64 / 1024.0 / readers),
        mib(row.sockets.machine_bytes),
        (row.taken_bytes / 1_000_000).to_string(),
        row.ended_by.clone().unwrap_or_default(),
    ]
}

/// Measures all; progress goes to stderr.
pub fn measure(args: &Args) -> Result<Results> {
    if !(args.seconds > 0.0 && args.seconds <= MOST_SECONDS) {
        let what = format!("bad --seconds {}", args.seconds);
        let hint = format!("it must be above 0 and at most {MOST_SECONDS}");
        return Err(Error::usage(what, hint));
    }
    let mut rows = Vec::new();
    for &mode in &args.modes {
        for &contender in &args.contenders {
            let row = measure_one(args, contender, mode)?;
            eprintln!("  {}", cells(&row).join("  "));
            rows.push(row);
        }
    }
    Ok(Results {
        machine: report::machine(),
        load: format!(
            "{} readers of {} at {} B/s for {} s, receive buffers of {} B",
            args.readers, args.bytes, args.rate, args.seconds, args.receive_buffer
        ),
        rows,
    })
}

fn measure_one(args: &Args, contender: Contender, mode: Mode) -> Result<Row> {
    stage::check_memory()?;
    let mut stage = Stage::build(contender, mode, args.readers, args.weir.as_deref())?;
    let mut watch = Watch::begin(&mut stage, args.readers, mode)?;
    let appetite = Appetite::Slow {
        receive_buffer: args.receive_buffer,
    };
    let crowd = stage.gather(args.readers, args.bytes.0, appetite)?;
    let ended = read_slowly(args, &mut stage, &crowd, &mut watch);
    drop(crowd);
    match ended {
        // A contender that fails is a result, and so is one that would take all memory.
        Err(error) if !interrupt::interrupted() => watch.row.ended_by = Some(error.to_string()),
        ended => ended?,
    }
    Ok(watch.row)
}

/// Lets the readers sip, and watches what is held meanwhile.
fn read_slowly(args: &Args, stage: &mut Stage, crowd: &Crowd, watch: &mut Watch) -> Result<()> {
    let begun = Instant::now();
    let time = Duration::from_secs_f64(args.seconds);
    let sip = (args.rate as f64 * SIP_EVERY.as_secs_f64()) as usize;
    let mut sips = 0;
    while begun.elapsed() < time {
        interrupt::check()?;
        watch.row.taken_bytes += crowd.sip(sip)?;
        watch.look(stage, begun)?;
        if begun.elapsed() < time / 2 {
            watch.row.rss_middle_kib = watch.row.rss_end_kib;
        }
        if watch.stands_still_for(begun, args.plateau) {
            break;
        }
        sips += 1;
        let due = begun + SIP_EVERY * sips;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    Ok(())
}

/// The most that was held.
struct Watch {
    rss_kib_before: u64,
    /// What the process and all TCP held when either last grew, and when that was.
    grown: (u64, u64, Duration),
    pipes_before: usize,
    row: Row,
}

impl Watch {
    fn begin(stage: &mut Stage, readers: usize, mode: Mode) -> Result<Watch> {
        let before = stage.snapshot()?;
        Ok(Watch {
            rss_kib_before: before.holdings.rss_kib,
            grown: (0, 0, Duration::ZERO),
            pipes_before: before.holdings.pipes,
            row: Row {
                contender: stage.running.contender,
                mode,
                readers,
                processes: stage.processes,
                rss_kib: 0,
                rss_end_kib: 0,
                rss_middle_kib: 0,
                course: Vec::new(),
                plateau_s: None,
                pipes: 0,
                sockets: SocketMemory::default(),
                taken_bytes: 0,
                available_bytes: stage::check_memory()?,
                ended_by: None,
            },
        })
    }

    fn look(&mut self, stage: &mut Stage, begun: Instant) -> Result<()> {
        let row = &mut self.row;
        row.available_bytes = row.available_bytes.min(stage::check_memory()?);
        let now = stage.snapshot()?;
        let ends = now.holdings.pipes.saturating_sub(self.pipes_before);
        row.pipes = row.pipes.max(ends / 2);
        row.rss_end_kib = now.holdings.rss_kib.saturating_sub(self.rss_kib_before);
        row.rss_kib = row.rss_kib.max(row.rss_end_kib);
        row.sockets = row.sockets.max(&now.sockets);
        let at = begun.elapsed();
        if at >= MOMENTS_EVERY * row.course.len() as u32 {
            row.course.push(Moment {
                at_s: at.as_secs_f64(),
                rss_kib: row.rss_end_kib,
                pipes: ends / 2,
                proxy_bytes: now.sockets.proxy_bytes(),
                machine_bytes: now.sockets.machine_bytes,
            });
        }
        let (rss_kib, machine_bytes, _) = self.grown;
        let has_grown = |now: u64, then: u64| now as f64 > then as f64 * GROWTH;
        if has_grown(row.rss_kib, rss_kib) || has_grown(row.sockets.machine_bytes, machine_bytes) {
            self.grown = (row.rss_kib, row.sockets.machine_bytes, at);
        }
        Ok(())
    }

    /// Whether nothing has grown for the time of `--plateau`.
    fn stands_still_for(&mut self, begun: Instant, plateau: Option<f64>) -> bool {
        let (.., grown_at) = self.grown;
        let still = (begun.elapsed().saturating_sub(grown_at)).as_secs_f64();
        let stands = plateau.is_some_and(|plateau| still >= plateau);
        if stands {
            self.row.plateau_s = Some(grown_at.as_secs_f64());
        }
        stands
    }
}

/// Runs the experiment of the command line: a table or JSON on stdout, a file in --out.
pub fn run(args: &Args) -> Result<()> {
    let results = measure(args)?;
    let json = report::write_json(&results, &args.out)?;
    report::show(&json, args.json, || results.render());
    Ok(())
}
