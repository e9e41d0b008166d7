//! The rate that policing admits, over the rate asked for, from 1/s to 100 000/s; and bursts.
//!
//! Raw SYNs go over the bed's wire, each from another four-tuple, to a port where nobody listens: the kernel
//! answers each admitted SYN with a RST, and its counter Tcp.OutRsts says how many there were. So the count
//! is the kernel's and not weir's, and no admitted connection costs more than that.

use std::time::{Duration, Instant};

use super::closed::{ClosedLoop, PORT, WindowArgs};
use crate::bed::SERVER_V4;
use crate::client::packet::{Endpoint, MAX_FRAME_BYTES, Segment, compose, flag};
use crate::client::tuples;
use crate::cpu;
use crate::error::{Context, Error, Result};
use crate::interrupt;
use crate::run::experiment::{Entry, Experiment, Flags, Program, Turn, parsed};
use crate::run::results::{
    Case, Claim, Facts, Panel, Parameters, Picture, Results, Sample, Show, parameters,
};
use crate::weir::Weir;

/// The experiment.
pub const ENTRIES: &[Entry] = &[Entry::new::<Args>(
    "vtfm01-accuracy",
    "How near is the admitted rate to the rate asked for, and is a burst exact?",
)
.source("the plan: policing")
.flags("--seconds 10", "--rates 100,1000 --bursts 10 --seconds 0.5")];

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
    pub window: WindowArgs,
}

impl Flags for Args {
    fn experiment(self, program: &Program) -> Result<Box<dyn Experiment>> {
        self.window.check()?;
        Ok(Box::new(Accuracy {
            args: self,
            program: program.clone(),
            bed: None,
            sender: Sender::default(),
        }))
    }
}

struct Accuracy {
    args: Args,
    program: Program,
    bed: Option<ClosedLoop>,
    sender: Sender,
}

impl Experiment for Accuracy {
    fn groups(&self) -> Vec<Vec<Parameters>> {
        let rates = self
            .args
            .rates
            .iter()
            .map(|rate| vec![parameters([("rate", rate.to_string())])]);
        let bursts = self
            .args
            .bursts
            .iter()
            .map(|burst| vec![parameters([("burst", burst.to_string())])]);
        rates.chain(bursts).collect()
    }

    fn open(&mut self, _facts: &mut Facts) -> Result<()> {
        self.bed = Some(ClosedLoop::build(&self.args.window, &self.program)?);
        Ok(())
    }

    fn measure(&mut self, case: &Parameters, _turn: Turn) -> Result<Sample> {
        let bed = self.bed.as_ref().expect("opened first");
        match case.contains_key("rate") {
            true => rate(
                bed,
                &mut self.sender,
                parsed(case, "rate")?,
                self.args.burst_seconds,
            ),
            false => burst(bed, &mut self.sender, parsed(case, "burst")?),
        }
    }

    fn claims(&self, results: &Results) -> Vec<Claim> {
        let about = |case: &Case| match case.parameters.contains_key("rate") {
            true => {
                let claim = "the admitted rate is the one asked for, to 2 %";
                Claim::about(claim, case, "error", |error| {
                    error.range.0 > -0.02 && error.range.1 < 0.02
                })
            }
            false => {
                let claim = "a burst is admitted exactly";
                Claim::about(claim, case, "error", |error| error.range == (0.0, 0.0))
            }
        };
        results.cases.iter().map(about).collect()
    }

    fn show(&self) -> Show {
        Show::columns(&[
            ("rate/s", "{rate}"),
            ("burst", "{burst}"),
            ("offered/s", "{offered_per_s|n}"),
            ("SYNs at once", "{offered|n}"),
            ("seconds", "{seconds|.2}"),
            ("admitted", "{admitted|n}"),
            ("expected", "{expected|.1}"),
            ("error", "{error:cell|%2}"),
        ])
        .picture(Picture {
            name: "accuracy".into(),
            title: "Accuracy of policing".into(),
            panels: vec![Panel {
                title: "Error of the admitted rate, %".into(),
                x_title: "Rate asked for, connections/s, as a power of ten".into(),
                x: "rate_log10".into(),
                y: vec![("error_percent".into(), "error".into())],
                marks: vec![(2.0, "limit".into())],
                ..Panel::default()
            }],
        })
    }
}

fn rate(
    bed: &ClosedLoop,
    sender: &mut Sender,
    rate_per_s: f64,
    burst_seconds: f64,
) -> Result<Sample> {
    let offered_per_s = (rate_per_s * OFFERED).max(LEAST_OFFERED_PER_S);
    let syns = (offered_per_s * bed.window.as_secs_f64()) as u64;
    let burst = (rate_per_s * burst_seconds).max(LEAST_BURST) as u32;
    let (admitted, took) = offer(bed, sender, (rate_per_s, burst), syns, Some(offered_per_s))?;
    let seconds = took.as_secs_f64();
    let allowed = rate_per_s * seconds;
    // What the bucket allows in this time.
    let expected = f64::from(burst) + allowed;
    // In whole connections: half a connection more or less is no error.
    let error = (admitted as f64 - expected.floor()) / allowed;
    Ok(Sample::of([
        ("offered_per_s", syns as f64 / seconds),
        ("seconds", seconds),
        ("admitted", admitted as f64),
        ("expected", expected),
        ("error", error),
        ("error_percent", error.abs() * 100.0),
        ("rate_log10", rate_per_s.max(1.0).log10()),
    ]))
}

fn burst(bed: &ClosedLoop, sender: &mut Sender, burst: u32) -> Result<Sample> {
    let offered = u64::from(burst * BURST_OFFERED);
    let (admitted, took) = offer(bed, sender, (RATE_OF_BURSTS, burst), offered, None)?;
    Ok(Sample::of([
        ("offered", offered as f64),
        ("seconds", took.as_secs_f64()),
        ("admitted", admitted as f64),
        (
            "error",
            (admitted as f64 - f64::from(burst)) / f64::from(burst),
        ),
    ]))
}

/// Offers SYNs to a fresh weir that polices them to (rate, burst): at a rate, or all at once. Returns how
/// many the kernel answered, and the time from the first to the last.
fn offer(
    bed: &ClosedLoop,
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
    let weir = bed.weir(&config)?;
    let before = resets(bed)?;
    let took = std::thread::scope(|scope| {
        let sending = scope.spawn(|| {
            cpu::pin_this_thread(bed.bed.layout.client_cpu)?;
            sender.send(bed, syns, offered_per_s)
        });
        sending.join().expect("the sender does not panic")
    })?;
    settled(bed, &weir, syns)?;
    let admitted = resets(bed)? - before;
    weir.end()?;
    Ok((admitted, took))
}

fn resets(bed: &ClosedLoop) -> Result<i64> {
    Ok(bed.bed.counters()?.get("Tcp.OutRsts"))
}

/// Waits until no SYN is under way any more: the receive work is on another CPU.
fn settled(bed: &ClosedLoop, weir: &Weir, syns: u64) -> Result<()> {
    const LIMIT: Duration = Duration::from_secs(10);
    const QUIET: Duration = Duration::from_millis(50);
    let begun = Instant::now();
    let (mut last, mut since) = (resets(bed)?, Instant::now());
    while since.elapsed() < QUIET {
        interrupt::check()?;
        discard(bed)?;
        let now = resets(bed)?;
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

fn discard(bed: &ClosedLoop) -> Result<()> {
    let mut buffer = [0; 2048];
    while bed
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
    fn send(
        &mut self,
        bed: &ClosedLoop,
        syns: u64,
        offered_per_s: Option<f64>,
    ) -> Result<Duration> {
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
                self.syn(bed)?;
            }
            if turn > 0 {
                last = begun.elapsed();
            }
            sent += turn;
            discard(bed)?;
            interrupt::check()?;
        }
        Ok(last)
    }

    fn syn(&mut self, bed: &ClosedLoop) -> Result<()> {
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
            window_closed: false,
            payload: b"",
        };
        self.next = (self.next + 1) % tuples::NUMBERS;
        let mut frame = [0; MAX_FRAME_BYTES];
        let length = compose(from, to, &segment, &mut frame);
        let sent = bed.bed.wire.send(&frame[..length]);
        sent.context("cannot write to the wire")
    }
}
