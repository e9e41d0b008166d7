//! The rate that policing admits, over the rate asked for, from 1/s to 100 000/s; and bursts.
//!
//! Raw SYNs go over the bed's wire, each from another four-tuple, to a port where nobody listens: the kernel
//! answers each admitted SYN with a RST, and its counter Tcp.OutRsts says how many there were. So the count
//! is the kernel's and not weir's, and no admitted connection costs more than that.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::{Common, PORT, Stage};
use crate::bed::SERVER_V4;
use crate::client::packet::{Endpoint, MAX_FRAME_BYTES, Segment, compose, flag};
use crate::client::tuples;
use crate::cpu;
use crate::error::{Context, Error, Result};
use crate::interrupt;
use crate::plot::lines::{Line, Panel, Picture};
use crate::report::{self, count, table};
use crate::weir::Weir;

/// SYNs are offered at this multiple of the rate, and at [`LEAST_OFFERED_PER_S`] at least, so that bursts are used
/// up soon.
const OFFERED: f64 = 1.5;
const LEAST_OFFERED_PER_S: f64 = 2000.0;
/// Least burst of the classes whose rate is measured: weir's default.
const LEAST_BURST: f64 = 10.0;
/// Of the classes whose burst is measured: so low that nothing is added meanwhile.
const RATE_OF_BURSTS: f64 = 1.0;
/// SYNs sent at once over the burst.
const BURST_OFFERED: u32 = 3;
/// SYNs sent between two looks at what comes back.
const PER_TURN: u64 = 64;

/// Arguments of `weir-lab vtfm01 accuracy`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Rates of policing, connections/s
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1,10,100,1000,10000,100000"
    )]
    pub rates: Vec<f64>,
    /// Bursts, connections
    #[arg(long, value_delimiter = ',', default_value = "1,10,100,1000")]
    pub bursts: Vec<u32>,
    /// Burst of the classes whose rate is measured, in s of the rate. A machine that is kept from sending or
    /// receiving for longer loses what the bucket would have let through
    #[arg(long, default_value_t = 0.1)]
    pub burst_seconds: f64,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: Common,
}

/// A rate.
#[derive(Debug, Clone, Serialize)]
pub struct RateRow {
    /// Asked for, connections/s.
    pub rate_per_s: f64,
    /// SYNs offered per second.
    pub offered_per_s: f64,
    /// From the first SYN to the last, in s.
    pub seconds: f64,
    /// SYNs that the kernel got to see.
    pub admitted: i64,
    /// What the bucket allows in this time: burst and rate × seconds.
    pub expected: f64,
    /// (admitted − expected) / (rate × seconds).
    pub error: f64,
}

/// A burst.
#[derive(Debug, Clone, Serialize)]
pub struct BurstRow {
    /// Asked for, connections.
    pub burst: u32,
    /// SYNs sent at once.
    pub offered: u64,
    /// From the first to the last, in s.
    pub seconds: f64,
    /// SYNs that the kernel got to see.
    pub admitted: i64,
}

/// All that was found.
#[derive(Debug, Clone, Serialize)]
pub struct Results {
    /// Kernel and processors.
    pub machine: String,
    /// By rate.
    pub rates: Vec<RateRow>,
    /// By burst.
    pub bursts: Vec<BurstRow>,
}

/// Measures all; progress goes to stderr.
pub fn measure(args: &Args) -> Result<Results> {
    let stage = Stage::build(&args.common)?;
    let mut sender = Sender::default();
    let mut rates = Vec::new();
    for &rate_per_s in &args.rates {
        let row = rate(&stage, &mut sender, rate_per_s, args.burst_seconds)?;
        eprintln!(
            "  rate {:>7}/s: {:>9} admitted of {:>9.1} ({:+.2} %)",
            count(rate_per_s),
            row.admitted,
            row.expected,
            row.error * 100.0
        );
        rates.push(row);
    }
    let mut bursts = Vec::new();
    for &burst in &args.bursts {
        let row = one_burst(&stage, &mut sender, burst)?;
        eprintln!("  burst {burst:>6}: {:>6} admitted", row.admitted);
        bursts.push(row);
    }
    Ok(Results {
        machine: report::machine(),
        rates,
        bursts,
    })
}

fn rate(
    stage: &Stage,
    sender: &mut Sender,
    rate_per_s: f64,
    burst_seconds: f64,
) -> Result<RateRow> {
    let offered_per_s = (rate_per_s * OFFERED).max(LEAST_OFFERED_PER_S);
    let syns = (offered_per_s * stage.window.as_secs_f64()) as u64;
    let burst = (rate_per_s * burst_seconds).max(LEAST_BURST) as u32;
    let (admitted, took) = offer(
        stage,
        sender,
        (rate_per_s, burst),
        syns,
        Some(offered_per_s),
    )?;
    let seconds = took.as_secs_f64();
    let allowed = rate_per_s * seconds;
    let expected = f64::from(burst) + allowed;
    Ok(RateRow {
        rate_per_s,
        offered_per_s: syns as f64 / seconds,
        seconds,
        admitted,
        expected,
        // In whole connections: half a connection more or less is no error.
        error: (admitted as f64 - expected.floor()) / allowed,
    })
}

fn one_burst(stage: &Stage, sender: &mut Sender, burst: u32) -> Result<BurstRow> {
    let offered = u64::from(burst * BURST_OFFERED);
    let (admitted, took) = offer(stage, sender, (RATE_OF_BURSTS, burst), offered, None)?;
    Ok(BurstRow {
        burst,
        offered,
        seconds: took.as_secs_f64(),
        admitted,
    })
}

/// Offers SYNs to a fresh weir that polices them to (rate, burst): at a rate, or all at once. Returns how
/// many the kernel answered, and the time from the first to the last.
fn offer(
    stage: &Stage,
    sender: &mut Sender,
    (rate, burst): (f64, u32),
    syns: u64,
    offered_per_s: Option<f64>,
) -> Result<(i64, Duration)> {
    let config = format!(
        "[[listener]]\nname = \"web\"\naddress = \"0.0.0.0:{PORT}\"\nestablish = \"default\"\n\n\
         [[class]]\nname = \"all\"\nlistener = \"web\"\nfrom = \"10.128.0.0/9\"\npriority = 1\n\
         rate = {rate}\nburst = {burst}\n"
    );
    let weir = stage.weir(&config)?;
    let before = resets(stage)?;
    let took = std::thread::scope(|scope| {
        let sending = scope.spawn(|| {
            cpu::pin_this_thread(stage.bed.layout.client_cpu)?;
            sender.send(stage, syns, offered_per_s)
        });
        sending.join().expect("the sender does not panic")
    })?;
    settled(stage, &weir, syns)?;
    let admitted = resets(stage)? - before;
    weir.end()?;
    Ok((admitted, took))
}

fn resets(stage: &Stage) -> Result<i64> {
    Ok(stage.bed.counters()?.get("Tcp.OutRsts"))
}

/// Waits until no SYN is under way any more: the receive work is on another CPU.
fn settled(stage: &Stage, weir: &Weir, syns: u64) -> Result<()> {
    const LIMIT: Duration = Duration::from_secs(10);
    const QUIET: Duration = Duration::from_millis(50);
    let begun = Instant::now();
    let (mut last, mut since) = (resets(stage)?, Instant::now());
    while since.elapsed() < QUIET {
        interrupt::check()?;
        discard(stage)?;
        let now = resets(stage)?;
        if now != last {
            (last, since) = (now, Instant::now());
        }
        if begun.elapsed() > LIMIT {
            let cause = format!("the kernel still answers {LIMIT:?} after the last of {syns} SYNs");
            return Err(Error::failed("cannot count what was admitted", cause));
        }
    }
    weir.status().map(drop)
}

fn discard(stage: &Stage) -> Result<()> {
    let mut buffer = [0; 2048];
    while stage
        .bed
        .wire
        .receive(&mut buffer)
        .context("cannot read from the wire")?
        .is_some()
    {}
    Ok(())
}

/// Where in the space of four-tuples it is.
#[derive(Debug, Default)]
struct Sender {
    next: u32,
}

impl Sender {
    fn send(&mut self, stage: &Stage, syns: u64, offered_per_s: Option<f64>) -> Result<Duration> {
        let begun = Instant::now();
        let (mut sent, mut last) = (0, Duration::ZERO);
        while sent < syns {
            let due = match offered_per_s {
                // The first at 0, so that the last leaves after syns - 1 distances.
                Some(rate) => ((begun.elapsed().as_secs_f64() * rate) as u64 + 1).min(syns),
                None => syns,
            };
            let turn = due.saturating_sub(sent).min(PER_TURN);
            for _ in 0..turn {
                self.syn(stage)?;
            }
            if turn > 0 {
                last = begun.elapsed();
            }
            sent += turn;
            discard(stage)?;
            interrupt::check()?;
        }
        Ok(last)
    }

    fn syn(&mut self, stage: &Stage) -> Result<()> {
        let from = tuples::endpoint(self.next, false);
        let to = Endpoint {
            ip: SERVER_V4.into(),
            port: PORT,
        };
        let segment = Segment {
            flags: flag::SYN,
            seq: self.next,
            ack: 0,
            timestamps: Some((1, 0)),
            payload: b"",
        };
        self.next = (self.next + 1) % tuples::NUMBERS;
        let mut frame = [0; MAX_FRAME_BYTES];
        let length = compose(from, to, &segment, &mut frame);
        let sent = stage.bed.wire.send(&frame[..length]);
        sent.context("cannot write to the wire")
    }
}

/// Runs the experiment of the command line.
pub fn run(args: &Args) -> Result<()> {
    let results = measure(args)?;
    let picture = picture(&results);
    args.common
        .tell("accuracy", &results, &picture, || tables(&results))
}

fn tables(results: &Results) -> String {
    let head = [
        "rate/s",
        "offered/s",
        "seconds",
        "admitted",
        "expected",
        "error",
    ];
    let row = |row: &RateRow| {
        vec![
            count(row.rate_per_s),
            count(row.offered_per_s),
            format!("{:.2}", row.seconds),
            count(row.admitted as f64),
            format!("{:.1}", row.expected),
            format!("{:+.2} %", row.error * 100.0),
        ]
    };
    let rates: Vec<Vec<String>> = results.rates.iter().map(row).collect();
    let burst_head = ["burst", "SYNs at once", "within ms", "admitted"];
    let burst_row = |row: &BurstRow| {
        vec![
            row.burst.to_string(),
            row.offered.to_string(),
            format!("{:.1}", row.seconds * 1e3),
            row.admitted.to_string(),
        ]
    };
    let bursts: Vec<Vec<String>> = results.bursts.iter().map(burst_row).collect();
    format!(
        "{}\n\n{}\n{}",
        results.machine,
        table(&head, &rates),
        table(&burst_head, &bursts)
    )
}

fn picture(results: &Results) -> Picture {
    let points = results.rates.iter();
    let points = points.map(|row| (row.rate_per_s.max(1.0).log10(), row.error.abs() * 100.0));
    Picture {
        title: "Accuracy of policing".into(),
        note: results.machine.clone(),
        panels: vec![Panel {
            title: "Error of the admitted rate, %".into(),
            x_title: "Rate asked for, connections/s, as a power of ten".into(),
            lines: vec![Line {
                points: points.collect(),
                markers: true,
                ..Line::default()
            }],
            marks: vec![(2.0, "limit".into())],
            ..Panel::default()
        }],
        names: vec!["error".into()],
    }
}

/// Few rates and a short window, for tests.
pub fn short(weir: Option<std::path::PathBuf>) -> Args {
    Args {
        rates: vec![10.0, 100.0, 1000.0, 20_000.0],
        bursts: vec![1, 100],
        // A machine that builds beside the test stops its sender for a quarter of a second.
        burst_seconds: 0.5,
        common: Common::short(Duration::from_secs(2), weir),
    }
}
