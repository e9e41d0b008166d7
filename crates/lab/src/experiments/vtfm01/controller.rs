//! The controller, which is given a target for the wait in the accept queue, or a share of the CPU, and no rate.
//!
//! Three questions: what it does at multiples of saturation (throughput over the peak beside it, wait in the
//! accept queue, with and without it); how fast it follows a step of the load from 0.5 to 4 times saturation;
//! and whether it refuses anyone in bursts that a server at 0.8 of saturation can absorb.
//!
//! Load is open loop, over the bed's wire. The wait is what the server itself sees ([`crate::server::pool`]), of
//! every connection. A few of the clients, by address, are a class with priority: lower ones give way first.

mod show;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{BACKLOG, Common, PORT, Spread};
use crate::bed::{Bed, Layout};
use crate::client::tcp::Kind;
use crate::client::{Generator, Load, Pattern, new_histogram};
use crate::cpu::Used;
use crate::error::{Context, Error, Result};
use crate::experiments::point::{Measured, Stage};
use crate::experiments::policy::{Policy, Protection};
use crate::experiments::saturation::{self, Peak};
use crate::report::{self, Times, count, ms};
use crate::server::pool::{Occupation, Record, realtime};
use crate::server::{BODY_BYTES, Program, Spec};

/// Clients of the preferred class: 255 of the generator's 4096 addresses, a sixteenth of the load.
const GOLD: &str = "10.128.0.0/24";
/// The clients' patience.
const TIMEOUT: Duration = Duration::from_secs(4);
/// Points of the course over time.
const BIN: Duration = Duration::from_millis(100);
/// Bursts of the third question: for 50 ms of each 500 ms nine times the rate between.
const BURSTS: Pattern = Pattern::Bursts {
    factor: 9.0,
    length: Duration::from_millis(50),
    period: Duration::from_millis(500),
};
const BURSTS_MULTIPLE: f64 = 0.8;
const STEP_BEFORE: f64 = 0.5;
const STEP_AFTER: f64 = 4.0;
/// Load before the window of each point, at least: a point is of the controller that has settled. How it gets there
/// is the step's question.
const LEAST_WARM_UP: Duration = Duration::from_secs(3);
/// Share of the peak below which throughput has not settled after a step.
const SETTLED_SHARE: f64 = 0.9;
/// Above `max_cpu` by so much, 100 ms count as settled: on two CPUs a tick of /proc/stat is a twentieth of them.
const CPU_NOISE: f64 = 0.1;
/// Load before the step.
const BEFORE_STEP: Duration = Duration::from_secs(3);

/// Arguments of `weir-lab vtfm01 controller`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Rates, in multiples of the measured saturation
    #[arg(long, value_delimiter = ',', default_value = "0.5,1,2,4")]
    pub multiples: Vec<f64>,
    /// How long the course after a step of the load is watched, in s; 0: not at all
    #[arg(long, default_value_t = 5.0)]
    pub step_seconds: f64,
    /// How long bursts at 0.8 of saturation last, in s; 0: not at all
    #[arg(long, default_value_t = 60.0)]
    pub burst_seconds: f64,
    /// The controller's target for the wait in the accept queue, in ms
    #[arg(long, default_value_t = 20)]
    pub target_wait_ms: u32,
    /// Keep the CPU under this share instead, 0.05 to 1
    #[arg(long)]
    pub max_cpu: Option<f64>,
    /// Workers of the server
    #[arg(long, default_value_t = 8)]
    pub workers: usize,
    /// How long a worker is busy with each connection, in µs
    #[arg(long, default_value_t = 4000)]
    pub service_us: u32,
    /// How it is busy
    #[arg(long, value_enum, default_value = "wait")]
    pub occupation: Occupation,
    /// Without and with the controller, or only one of them
    #[arg(long, value_delimiter = ',', default_value = "false,true")]
    pub controlled: Vec<bool>,
    /// Add to the rounds that results.json of the folder has: a measurement in several short calls
    #[arg(long)]
    pub add: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: Common,
}

/// One point of one round.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    /// Number of the round, from 1.
    pub round: usize,
    /// Load in multiples of the saturation.
    pub multiple: f64,
    /// With the controller, or the kernel alone.
    pub controlled: bool,
    /// What was measured.
    pub seen: Seen,
    /// Throughput over the peak of the unprotected server measured in the same round.
    pub of_peak: f64,
}

/// What is measured in any run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Seen {
    /// Connections/s begun.
    pub offered_per_s: f64,
    /// Replies/s completed.
    pub replies_per_s: f64,
    /// Wait in the accept queue, of all connections accepted inside the window.
    pub wait: Times,
    /// Served of the class with priority, over those begun.
    pub gold_served: f64,
    /// Connections that got a RST or gave up before the window's end.
    pub turned_away: u64,
    /// Connections whose SYN was lost or policed at first.
    pub waited_for_syn: u64,
    /// SYNs policed, by weir's count.
    pub policed: u64,
    /// Share of all CPUs that was used, over the window.
    pub cpu: f64,
    /// Why the point does not count.
    pub flaw: Option<String>,
}

/// The rounds of one point.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Summary {
    /// Load in multiples of the saturation.
    pub multiple: f64,
    /// With the controller, or the kernel alone.
    pub controlled: bool,
    /// Replies/s.
    pub replies_per_s: Spread,
    /// Over the peak beside each round.
    pub of_peak: Spread,
    /// Wait in the accept queue, 99th percentile, ms.
    pub wait_p99_ms: Spread,
    /// Served of the class with priority, over those begun.
    pub gold_served: Spread,
    /// Connections that got a RST or gave up.
    pub turned_away: Spread,
    /// Share of all CPUs that was used.
    pub cpu: Spread,
}

/// 100 ms of a course over time.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Bin {
    /// Its beginning, in s from the step.
    pub at_s: f64,
    /// Accepts/s.
    pub accepts_per_s: f64,
    /// 99th percentile of the waits, ms.
    pub wait_p99_ms: f64,
    /// Share of all CPUs that was used.
    pub cpu: f64,
}

/// A step of the load.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Step {
    /// With the controller, or the kernel alone.
    pub controlled: bool,
    /// From the step to the end of the last 100 ms in which the 99th percentile of the wait was above twice the
    /// target, or accepts/s (of it and its neighbours) below nine tenths of the peak, in s; of `max_cpu` in which the CPU was above it.
    pub settled_after_s: f64,
    /// The course.
    pub bins: Vec<Bin>,
    /// What was measured from the beginning to the end.
    pub seen: Seen,
}

/// All that was found.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Results {
    /// Kernel and processors.
    pub machine: String,
    /// The server.
    pub server: String,
    /// The target, without `max_cpu`.
    pub target_wait_ms: u32,
    /// The share of the CPU to stay under.
    pub max_cpu: Option<f64>,
    /// Peak of the unprotected server.
    pub saturation_per_s: f64,
    /// By multiple.
    pub summaries: Vec<Summary>,
    /// A step without and with the controller.
    pub steps: Vec<Step>,
    /// Bursts at 0.8 of saturation, with the controller.
    pub bursts: Vec<Seen>,
    /// Every round of every point.
    pub rows: Vec<Row>,
}

impl Results {
    fn objective(&self) -> String {
        match self.max_cpu {
            Some(most) => format!("CPU under {:.0} %", 100.0 * most),
            None => format!("target {} ms", self.target_wait_ms),
        }
    }
}

struct Lab<'a> {
    args: &'a Args,
    stage: Stage,
    peak: Peak,
}

/// Measures all; progress goes to stderr.
pub fn measure(args: &Args) -> Result<Results> {
    args.common.check()?;
    let mut stage = Stage {
        bed: Bed::build(Layout::of_this_machine())?,
        server: spec(args),
        weir: args.common.weir.clone(),
        generator: Generator::new(),
    };
    let base = base_load(args, &stage);
    let peak = saturation::find(&mut stage, &base, 500.0, |_, _| {})?;
    eprintln!(
        "weir-lab: {}: the unprotected server peaks at {} replies/s",
        stage.server.describe(),
        count(peak.replies_per_s)
    );
    let mut lab = Lab { args, stage, peak };
    let Earlier {
        mut rows,
        mut steps,
        mut bursts,
    } = lab.earlier()?;
    let rounds_before = rows.last().map_or(0, |row| row.round);
    rows.extend(lab.points(rounds_before)?);
    if args.step_seconds > 0.0 {
        for &controlled in &args.controlled {
            steps.push(lab.step(controlled)?);
        }
    }
    for step in &mut steps {
        step.settled_after_s = lab.settled_after_s(&step.bins);
    }
    if args.burst_seconds > 0.0 {
        bursts.push(lab.bursts()?);
    }
    Ok(Results {
        machine: report::machine(),
        server: lab.stage.server.describe(),
        target_wait_ms: args.target_wait_ms,
        max_cpu: args.max_cpu,
        saturation_per_s: lab.peak.replies_per_s,
        summaries: summaries(&rows),
        steps,
        bursts,
        rows,
    })
}

fn spec(args: &Args) -> Spec {
    Spec {
        program: Program::Pool {
            workers: args.workers,
            service_us: args.service_us,
            occupation: args.occupation,
            body_bytes: BODY_BYTES,
            listeners: 1,
        },
        port: PORT,
        backlog: BACKLOG,
    }
}

fn base_load(args: &Args, stage: &Stage) -> Load {
    Load {
        target: (stage.bed.server_address(false), PORT).into(),
        rate_per_s: 0.0,
        pattern: Pattern::Constant,
        warm_up: args.common.warm_up().max(LEAST_WARM_UP),
        window: args.common.window(),
        timeout: TIMEOUT,
        kind: Kind::Rfc793,
        server_closes_first: true,
        // Throughput and waits are all known when the window ends.
        drain: false,
    }
}

/// The controller with an objective and two classes, none of which has a rate.
fn policy(args: &Args, controlled: bool) -> Policy {
    let objective = match args.max_cpu {
        Some(share) => format!("max_cpu = {share:?}"),
        None => format!("target_wait = \"{}ms\"", args.target_wait_ms),
    };
    let config = format!(
        "[[listener]]\nname = \"web\"\naddress = \"0.0.0.0:{PORT}\"\nestablish = \"default\"\n\n\
         [[class]]\nname = \"gold\"\nlistener = \"web\"\nfrom = \"{GOLD}\"\npriority = 1\n\n\
         [controller]\n{objective}\n"
    );
    Policy {
        label: if controlled { "controller" } else { "default" }.into(),
        protection: match controlled {
            true => Protection::Config(config),
            false => Protection::None,
        },
    }
}

/// What earlier calls have measured.
#[derive(Default)]
struct Earlier {
    rows: Vec<Row>,
    steps: Vec<Step>,
    bursts: Vec<Seen>,
}

impl Lab<'_> {
    fn earlier(&self) -> Result<Earlier> {
        if !self.args.add {
            return Ok(Earlier::default());
        }
        let path = self.args.common.folder("controller").join("results.json");
        let what = || format!("cannot add to {}", path.display());
        let text = std::fs::read_to_string(&path).context(what())?;
        let before: Results = serde_json::from_str(&text).context(what())?;
        let objective = (before.target_wait_ms, before.max_cpu);
        let same = (self.args.target_wait_ms, self.args.max_cpu) == objective
            && before.server == self.stage.server.describe();
        if !same {
            let cause = "it is of another server or objective";
            return Err(Error::usage(what(), cause));
        }
        Ok(Earlier {
            rows: before.rows,
            steps: before.steps,
            bursts: before.bursts,
        })
    }

    fn points(&mut self, rounds_before: usize) -> Result<Vec<Row>> {
        let base = base_load(self.args, &self.stage);
        let mut rows = Vec::new();
        for round in (1..=self.args.common.rounds).map(|round| rounds_before + round) {
            let beside = saturation::again(&mut self.stage, &base, self.peak, |_, _| {})?;
            for &multiple in &self.args.multiples {
                for &controlled in &self.args.controlled {
                    let load = Load {
                        rate_per_s: self.peak.replies_per_s * multiple,
                        ..base.clone()
                    };
                    let seen = self.run(controlled, &load)?.seen(load.window);
                    let row = Row {
                        round,
                        multiple,
                        controlled,
                        of_peak: seen.replies_per_s / beside.max(1.0),
                        seen,
                    };
                    eprintln!("{}", show::progress(&row));
                    rows.push(row);
                }
            }
        }
        Ok(rows)
    }

    fn run(&mut self, controlled: bool, load: &Load) -> Result<Watched> {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let cpu = scope.spawn(|| cpu_course(&over));
            let measured = self.stage.measure(&policy(self.args, controlled), load);
            over.store(true, Ordering::Relaxed);
            let cpu = cpu.join().expect("the course does not panic")?;
            Ok(Watched {
                measured: measured?,
                cpu,
            })
        })
    }

    fn step(&mut self, controlled: bool) -> Result<Step> {
        let after = Duration::from_secs_f64(self.args.step_seconds);
        let load = Load {
            rate_per_s: self.peak.replies_per_s * STEP_BEFORE,
            pattern: Pattern::Step {
                factor: STEP_AFTER / STEP_BEFORE,
                at: BEFORE_STEP,
            },
            warm_up: Duration::ZERO,
            window: BEFORE_STEP + after,
            ..base_load(self.args, &self.stage)
        };
        let watched = self.run(controlled, &load)?;
        let bins = watched.bins(load.window);
        let step = Step {
            controlled,
            settled_after_s: self.settled_after_s(&bins),
            bins,
            seen: watched.seen(load.window),
        };
        eprintln!(
            "  step from {STEP_BEFORE} to {STEP_AFTER}×, {}: settled after {:.1} s",
            show::name(controlled),
            step.settled_after_s
        );
        Ok(step)
    }

    fn settled_after_s(&self, bins: &[Bin]) -> f64 {
        let is_late = |at: &usize| {
            let around = &bins[at.saturating_sub(1)..(at + 2).min(bins.len())];
            bins[*at].at_s >= 0.0 && !self.is_settled(&bins[*at], around)
        };
        let late = (0..bins.len()).rev().find(is_late);
        late.map_or(0.0, |at| bins[at].at_s + BIN.as_secs_f64())
    }

    /// `around`: the bin and its neighbours, since a tenth of a second has chance of its own in its throughput.
    fn is_settled(&self, bin: &Bin, around: &[Bin]) -> bool {
        match self.args.max_cpu {
            Some(most) => bin.cpu <= most + CPU_NOISE,
            None => {
                let limit_ms = f64::from(2 * self.args.target_wait_ms);
                let accepts_per_s: f64 = around.iter().map(|bin| bin.accepts_per_s).sum();
                let least_per_s = SETTLED_SHARE * self.peak.replies_per_s * around.len() as f64;
                bin.wait_p99_ms <= limit_ms && accepts_per_s >= least_per_s
            }
        }
    }

    fn bursts(&mut self) -> Result<Seen> {
        let load = Load {
            rate_per_s: self.peak.replies_per_s * BURSTS_MULTIPLE,
            pattern: BURSTS,
            window: Duration::from_secs_f64(self.args.burst_seconds),
            drain: true,
            ..base_load(self.args, &self.stage)
        };
        let seen = self.run(true, &load)?.seen(load.window);
        eprintln!(
            "  bursts at {BURSTS_MULTIPLE}×: {} turned away, {} waited for a SYN, {} policed; wait p99 {} ms",
            seen.turned_away,
            seen.waited_for_syn,
            seen.policed,
            ms(seen.wait.p99_ms)
        );
        Ok(seen)
    }
}

/// A run, and what of the CPUs was used meanwhile.
struct Watched {
    measured: Measured,
    /// When, since 1970.
    cpu: Vec<(Duration, Used)>,
}

/// Looks each [`BIN`] until it is over.
fn cpu_course(over: &AtomicBool) -> Result<Vec<(Duration, Used)>> {
    let mut course = Vec::new();
    while !over.load(Ordering::Relaxed) {
        course.push((realtime(), Used::read()?));
        std::thread::sleep(BIN);
    }
    Ok(course)
}

impl Watched {
    /// Share of all CPUs used between these times, as far as looks were taken.
    fn cpu(&self, begin: Duration, end: Duration) -> f64 {
        let last_before = |time: Duration| {
            let before = self.cpu.partition_point(|(at, _)| *at <= time);
            self.cpu[before.saturating_sub(1)].1
        };
        last_before(end).share_since(&last_before(begin))
    }

    fn seen(&self, window: Duration) -> Seen {
        let (begin, end) = self.measured.window;
        Seen {
            cpu: self.cpu(begin, end),
            ..seen(&self.measured, window)
        }
    }

    /// The course over the window, in seconds from the step.
    fn bins(&self, window: Duration) -> Vec<Bin> {
        let (begin, _) = self.measured.window;
        let with_cpu = |(index, bin): (u32, Bin)| Bin {
            cpu: self.cpu(begin + index * BIN, begin + (index + 1) * BIN),
            ..bin
        };
        (0..)
            .zip(bins(&self.measured, window))
            .map(with_cpu)
            .collect()
    }
}

/// Without the CPU.
fn seen(measured: &Measured, window: Duration) -> Seen {
    let run = &measured.run;
    let fate = &run.tally.fate;
    let accepts = in_window(measured);
    let gold = accepts.iter().filter(|record| is_gold(record)).count() as f64;
    let gold_share = f64::from(u8::MAX) / 4096.0;
    let status = measured
        .account
        .as_ref()
        .and_then(|account| account.status.as_ref());
    Seen {
        offered_per_s: run.offered_per_s,
        replies_per_s: run.tally.wire.replies as f64 / window.as_secs_f64(),
        wait: waits(&accepts),
        gold_served: gold / (fate.started as f64 * gold_share).max(1.0),
        turned_away: fate.refused + fate.reset + fate.timed_out,
        waited_for_syn: fate.waited_for_syn,
        policed: status.map_or(0, policed),
        cpu: 0.0,
        flaw: run.flaw.clone(),
    }
}

fn in_window(measured: &Measured) -> Vec<Record> {
    let (begin, end) = measured.window;
    let accepts = measured.accepts.iter().copied();
    accepts
        .filter(|record| (begin..end).contains(&record.accepted))
        .collect()
}

fn is_gold(record: &Record) -> bool {
    matches!(record.source, std::net::IpAddr::V4(ip) if ip.octets()[..3] == [10, 128, 0])
}

fn waits(accepts: &[Record]) -> Times {
    let mut waits: Histogram<u64> = new_histogram();
    for wait in accepts.iter().filter_map(|record| record.wait) {
        waits.saturating_record((wait.as_micros() as u64).max(1));
    }
    Times::of(&waits)
}

/// All verdicts of policing, over all listeners and classes.
fn policed(status: &Value) -> u64 {
    const VERDICTS: [&str; 2] = ["syn_dropped_rate", "syn_reset_rate"];
    let listeners = status["listeners"].as_array().into_iter().flatten();
    let counters = listeners.flat_map(|listener| {
        VERDICTS.map(|verdict| listener["counters"][verdict].as_u64().unwrap_or(0))
    });
    counters.sum()
}

/// The course over the window, in seconds from the step, without the CPU.
fn bins(measured: &Measured, window: Duration) -> Vec<Bin> {
    let (begin, _) = measured.window;
    let count = (window.as_nanos() / BIN.as_nanos()) as usize;
    let mut accepts: Vec<Vec<Record>> = vec![Vec::new(); count];
    for record in &measured.accepts {
        let index = record.accepted.saturating_sub(begin).as_nanos() / BIN.as_nanos();
        if let Some(bin) = accepts.get_mut(index as usize) {
            bin.push(*record);
        }
    }
    let bin = |(index, accepts): (usize, &Vec<Record>)| Bin {
        at_s: (index as f64 * BIN.as_secs_f64()) - BEFORE_STEP.as_secs_f64(),
        accepts_per_s: accepts.len() as f64 / BIN.as_secs_f64(),
        wait_p99_ms: waits(accepts).p99_ms,
        cpu: 0.0,
    };
    accepts.iter().enumerate().map(bin).collect()
}

fn summaries(rows: &[Row]) -> Vec<Summary> {
    let mut points: Vec<(f64, bool)> = Vec::new();
    for row in rows {
        if !points.contains(&(row.multiple, row.controlled)) {
            points.push((row.multiple, row.controlled));
        }
    }
    points.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    points
        .into_iter()
        .map(|point| summary(rows, point))
        .collect()
}

fn summary(rows: &[Row], point: (f64, bool)) -> Summary {
    let of_point = rows
        .iter()
        .filter(|row| (row.multiple, row.controlled) == point);
    let rounds: Vec<&Row> = of_point.collect();
    let spread = |value: fn(&Row) -> f64| Spread::of(rounds.iter().map(|row| value(row)));
    Summary {
        multiple: point.0,
        controlled: point.1,
        replies_per_s: spread(|row| row.seen.replies_per_s),
        of_peak: spread(|row| row.of_peak),
        wait_p99_ms: spread(|row| row.seen.wait.p99_ms),
        gold_served: spread(|row| row.seen.gold_served),
        turned_away: spread(|row| row.seen.turned_away as f64),
        cpu: spread(|row| row.seen.cpu),
    }
}

/// Runs the experiment of the command line.
pub fn run(args: &Args) -> Result<()> {
    let results = measure(args)?;
    let picture = show::picture(&results);
    args.common
        .tell("controller", &results, &picture, || show::tables(&results))
}

/// One multiple, a step and a few seconds of bursts, for tests.
pub fn short(weir: Option<std::path::PathBuf>) -> Args {
    Args {
        multiples: vec![2.0],
        step_seconds: 4.0,
        burst_seconds: 5.0,
        target_wait_ms: 20,
        max_cpu: None,
        add: false,
        workers: 8,
        service_us: 4000,
        occupation: Occupation::Wait,
        controlled: vec![false, true],
        common: Common::short(Duration::from_secs(2), weir),
    }
}
