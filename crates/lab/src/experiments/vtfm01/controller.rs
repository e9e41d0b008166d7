//! The controller, which is given a target for the wait in the accept queue, or a share of the CPU, and no rate.
//!
//! Three questions: what it does at multiples of saturation (throughput over the peak beside it, wait in the
//! accept queue, with and without it); how fast it follows a step of the load from 0.5 to 4 times saturation;
//! and whether it refuses anyone in bursts that a server at 0.8 of saturation can absorb.
//!
//! Load is open loop, over the bed's wire. The wait is what the server itself sees ([`crate::server::pool`]), of
//! every connection. A few of the clients, by address, are a class with priority: lower ones give way first.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::Value;

use super::closed::{BACKLOG, PORT, WindowArgs};
use crate::bed::{Bed, Layout};
use crate::client::tcp::Kind;
use crate::client::{Generator, Load, Pattern, new_histogram};
use crate::cpu::Used;
use crate::error::Result;
use crate::experiments::point::{Measured, OpenLoop};
use crate::experiments::policy::{Policy, Protection};
use crate::experiments::saturation::{self, Peak};
use crate::run::experiment::{Beside, Entry, Experiment, Flags, Program, Turn};
use crate::run::results::{
    Case, Claim, Facts, Panel, Parameters, Picture, Results, Sample, Show, add_times, parameters,
};
use crate::server::pool::{Occupation, Record, realtime};
use crate::server::{BODY_BYTES, ServerProgram, Spec};

const CONTROLLER: Entry = Entry::new::<Args>(
    "vtfm01-controller",
    "Does the controller hold its objective at any load, without a rate set by hand?",
)
.source("VTFM01 Section 5")
.flags(
    "--multiples 1,2,4 --step-seconds 5 --burst-seconds 0 --rounds 2",
    "--multiples 2 --controlled true --step-seconds 0 --burst-seconds 0 --seconds 0.5",
);

/// The experiment, and its question about bursts alone.
pub const ENTRIES: &[Entry] = &[
    CONTROLLER,
    CONTROLLER
        .preset(
            "vtfm01-controller-bursts",
            "Does the controller leave bursts alone that the server can absorb?",
        )
        .flags(
            "--controlled true --multiples 2,4 --step-seconds 0 --burst-seconds 60",
            CONTROLLER.quick,
        ),
];

/// Clients of the preferred class: 255 of the generator's 4096 addresses, a sixteenth of the load.
const GOLD: &str = "10.128.0.0/24";
/// The clients' patience.
const TIMEOUT: Duration = Duration::from_secs(4);
/// Distance of two points of the course over time.
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
    #[command(flatten)]
    #[allow(missing_docs)]
    pub window: WindowArgs,
}

impl Flags for Args {
    fn experiment(self, program: &Program) -> Result<Box<dyn Experiment>> {
        self.window.check()?;
        Ok(Box::new(Controller {
            args: self,
            program: program.clone(),
            opened: None,
            beside: Beside::default(),
        }))
    }
}

struct Controller {
    args: Args,
    program: Program,
    opened: Option<(OpenLoop, Peak)>,
    /// The unprotected server's peak, replies/s, by round.
    beside: Beside<usize, f64>,
}

/// What a case is about.
const STEADY: &str = "steady";
const STEP: &str = "step";
const BURSTS_PHASE: &str = "bursts";

fn case(phase: &str, load: String, controlled: bool) -> Parameters {
    let name = if controlled {
        "controller"
    } else {
        "kernel alone"
    };
    parameters([("phase", phase.into()), ("load", load), ("by", name.into())])
}

impl Experiment for Controller {
    fn groups(&self) -> Vec<Vec<Parameters>> {
        let args = &self.args;
        let steady = |multiple: &f64| {
            let controlled = args.controlled.iter();
            controlled
                .map(|&controlled| case(STEADY, format!("{multiple}x"), controlled))
                .collect()
        };
        let mut groups: Vec<Vec<Parameters>> = args.multiples.iter().map(steady).collect();
        if args.step_seconds > 0.0 {
            let load = || format!("{STEP_BEFORE}x to {STEP_AFTER}x");
            groups.push(
                args.controlled
                    .iter()
                    .map(|&controlled| case(STEP, load(), controlled))
                    .collect(),
            );
        }
        if args.burst_seconds > 0.0 {
            groups.push(vec![case(
                BURSTS_PHASE,
                format!("{BURSTS_MULTIPLE}x"),
                true,
            )]);
        }
        groups
    }

    fn open(&mut self, facts: &mut Facts) -> Result<()> {
        let mut bed = OpenLoop {
            bed: Bed::build(Layout::of_this_machine())?,
            server: spec(&self.args),
            weir: self.program.weir.clone(),
            generator: Generator::new(),
        };
        let objective = match self.args.max_cpu {
            Some(most) => format!("CPU under {:.0} %", 100.0 * most),
            None => format!("target {} ms", self.args.target_wait_ms),
        };
        facts.insert("server".into(), bed.server.describe().into());
        facts.insert("objective".into(), objective.into());
        let base = base_load(&self.args, &bed);
        let peak = saturation::known_or_found(facts, &mut bed, &base, 500.0)?;
        self.opened = Some((bed, peak));
        Ok(())
    }

    fn measure(&mut self, case: &Parameters, turn: Turn) -> Result<Sample> {
        let (bed, peak) = self.opened.as_mut().expect("opened first");
        let (args, peak) = (&self.args, *peak);
        let base = base_load(args, bed);
        let load = match case["phase"].as_str() {
            STEP => Load {
                rate_per_s: peak.replies_per_s * STEP_BEFORE,
                pattern: Pattern::Step {
                    factor: STEP_AFTER / STEP_BEFORE,
                    at: BEFORE_STEP,
                },
                warm_up: Duration::ZERO,
                window: BEFORE_STEP + Duration::from_secs_f64(args.step_seconds),
                ..base.clone()
            },
            BURSTS_PHASE => Load {
                rate_per_s: peak.replies_per_s * BURSTS_MULTIPLE,
                pattern: BURSTS,
                window: Duration::from_secs_f64(args.burst_seconds),
                drain: true,
                ..base.clone()
            },
            _ => Load {
                rate_per_s: peak.replies_per_s
                    * case["load"].trim_end_matches('x').parse().unwrap_or(1.0),
                ..base.clone()
            },
        };
        let beside = match case["phase"].as_str() {
            STEADY => Some(
                self.beside
                    .get(turn.round, || saturation::again(bed, &base, peak))?,
            ),
            _ => None,
        };
        let watched = watch(bed, &policy(args, case["by"] == "controller"), &load)?;
        let mut sample = watched.sample(load.window);
        if let Some(beside) = beside {
            sample.add([("of_peak", sample.get("replies_per_s") / beside.max(1.0))]);
        }
        if case["phase"] == STEP {
            watched.add_course(&mut sample, load.window);
            let settled = settled_after_s(args, peak, &sample);
            sample.add([("settled_after_s", settled)]);
        }
        Ok(sample)
    }

    fn claims(&self, results: &Results) -> Vec<Claim> {
        let limit_ms = f64::from(2 * self.args.target_wait_ms);
        let by_wait = self.args.max_cpu.is_none();
        let of = |case: &&Case| case.parameter("by") == "controller";
        results
            .cases
            .iter()
            .filter(of)
            .flat_map(|case| claims(case, limit_ms, by_wait))
            .collect()
    }

    fn show(&self) -> Show {
        show(&self.args)
    }
}

fn claims(case: &Case, limit_ms: f64, by_wait: bool) -> Vec<Claim> {
    // weir's own limits: VTFM01 Section 5 states none. docs/controller.md states twice the target.
    match case.parameter("phase") {
        STEADY if by_wait => vec![
            Claim::about(
                "the wait's 99th percentile is below twice the target",
                case,
                "wait_p99_ms",
                |wait| wait.median <= limit_ms,
            ),
            Claim::about("throughput is 97 % of the peak", case, "of_peak", |share| {
                share.median >= 0.97
            }),
            Claim::about(
                "the class with priority is served whole",
                case,
                "gold_served",
                |share| share.median > 0.99,
            ),
        ],
        BURSTS_PHASE => vec![Claim::about(
            "nobody is turned away in bursts that fit",
            case,
            "turned_away",
            |n| n.range.1 == 0.0,
        )],
        _ => Vec::new(),
    }
}

fn show(args: &Args) -> Show {
    let by_load = |title: &str, metric: &str| Panel {
        title: title.into(),
        x_title: "Load, multiples of saturation".into(),
        x: "load".into(),
        y: vec![(metric.into(), String::new())],
        lines: vec!["by".into()],
        only: parameters([("phase", STEADY.into())]),
        ..Panel::default()
    };
    let course = |title: &str, series: &str| Panel {
        x_title: format!(
            "Seconds; the load rises from {STEP_BEFORE} to {STEP_AFTER} × saturation at {}",
            BEFORE_STEP.as_secs()
        ),
        x: "since_s".into(),
        only: parameters([("phase", STEP.into())]),
        is_course: true,
        ..by_load(title, series)
    };
    let (held, over_time) = match args.max_cpu {
        Some(most) => {
            let marks = vec![(most, "max_cpu".to_owned())];
            let with = |panel| Panel {
                marks: marks.clone(),
                ..panel
            };
            let title = "Share of all CPUs that is used";
            (with(by_load(title, "cpu")), with(course(title, "cpu")))
        }
        None => {
            let with = |panel| Panel {
                marks: vec![(
                    f64::from(2 * args.target_wait_ms),
                    "twice the target".to_owned(),
                )],
                logarithmic: true,
                ..panel
            };
            let title = "Wait in the accept queue in ms, 99th percentile";
            let of_bin = format!("{title} of 100 ms");
            (
                with(by_load(title, "wait_p99_ms")),
                with(course(&of_bin, "wait_p99_ms")),
            )
        }
    };
    Show::columns(&[
        ("", "{phase}"),
        ("load", "{load}"),
        ("by", "{by}"),
        ("replies/s", "{replies_per_s:cell|n}"),
        ("of peak", "{of_peak:cell|%}"),
        ("wait p99 ms", "{wait_p99_ms:cell|.1}"),
        ("gold served", "{gold_served:cell|%}"),
        ("turned away", "{turned_away:cell|n}"),
        ("policed", "{policed:cell|n}"),
        ("CPU", "{cpu:cell|%}"),
        ("settled after s", "{settled_after_s:cell|.1}"),
    ])
    .picture(Picture {
        name: "controller".into(),
        title: "The controller: an objective, no rate set by hand".into(),
        panels: vec![
            by_load("Throughput over the peak", "of_peak"),
            held,
            course("Accepts/s", "accepts_per_s"),
            over_time,
        ],
    })
}

fn spec(args: &Args) -> Spec {
    Spec {
        program: ServerProgram::Pool {
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

fn base_load(args: &Args, bed: &OpenLoop) -> Load {
    Load {
        target: (bed.bed.server_address(false), PORT).into(),
        rate_per_s: 0.0,
        pattern: Pattern::Constant,
        warm_up: args.window.warm_up().max(LEAST_WARM_UP),
        window: args.window.window(),
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

/// Measures a load, and looks at the CPUs meanwhile.
fn watch(bed: &mut OpenLoop, policy: &Policy, load: &Load) -> Result<Watched> {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let cpu = scope.spawn(|| cpu_course(&over));
        let measured = bed.measure(policy, load);
        over.store(true, Ordering::Relaxed);
        let cpu = cpu.join().expect("the course does not panic")?;
        Ok(Watched {
            measured: measured?,
            cpu,
        })
    })
}

/// From the step to the end of the last 100 ms in which the 99th percentile of the wait was above twice the target, or
/// accepts/s below nine tenths of the peak, in s; of `max_cpu` in which the CPU was above it.
fn settled_after_s(args: &Args, peak: Peak, sample: &Sample) -> f64 {
    let course = |name: &str| sample.series.get(name).cloned().unwrap_or_default();
    let (since, accepts) = (course("since_s"), course("accepts_per_s"));
    let (waits, cpu) = (course("wait_p99_ms"), course("cpu"));
    let is_settled = |at: usize| match args.max_cpu {
        Some(most) => cpu[at] <= most + CPU_NOISE,
        None => {
            // With its neighbours, since a tenth of a second has chance of its own in its throughput.
            let around = &accepts[at.saturating_sub(1)..(at + 2).min(accepts.len())];
            let least_per_s = SETTLED_SHARE * peak.replies_per_s * around.len() as f64;
            let limit_ms = f64::from(2 * args.target_wait_ms);
            waits[at] <= limit_ms && around.iter().sum::<f64>() >= least_per_s
        }
    };
    let step = BEFORE_STEP.as_secs_f64();
    let late = (0..since.len())
        .rev()
        .find(|&at| since[at] >= step && !is_settled(at));
    late.map_or(0.0, |at| since[at] - step + BIN.as_secs_f64())
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

    /// Over the window: waits in the accept queue are of all connections accepted in it, `gold_served` is the served of
    /// the class with priority over those begun, `turned_away` got a RST or gave up, `policed` are SYNs by weir's count.
    fn sample(&self, window: Duration) -> Sample {
        let run = &self.measured.run;
        let fate = &run.tally.fate;
        let accepts = in_window(&self.measured);
        let gold = accepts.iter().filter(|record| is_gold(record)).count() as f64;
        let gold_share = f64::from(u8::MAX) / 4096.0;
        let account = self.measured.account.as_ref();
        let status = account.and_then(|account| account.status.as_ref());
        let (begin, end) = self.measured.window;
        let mut sample = Sample::of([
            ("offered_per_s", run.offered_per_s),
            ("started", fate.started as f64),
            (
                "replies_per_s",
                run.tally.wire.replies as f64 / window.as_secs_f64(),
            ),
            (
                "gold_served",
                gold / (fate.started as f64 * gold_share).max(1.0),
            ),
            (
                "turned_away",
                (fate.refused + fate.reset + fate.timed_out) as f64,
            ),
            ("waited_for_syn", fate.waited_for_syn as f64),
            ("policed", status.map_or(0, policed) as f64),
            ("cpu", self.cpu(begin, end)),
            ("accepts", accepts.len() as f64),
        ]);
        add_times(&mut sample, "wait", &waits(&accepts));
        sample.flaw = run.flaw.clone();
        sample
    }

    /// Adds the course over the window, a point each [`BIN`], in seconds from its beginning.
    fn add_course(&self, sample: &mut Sample, window: Duration) {
        let (begin, _) = self.measured.window;
        let bins = (window.as_nanos() / BIN.as_nanos()) as usize;
        let mut accepts: Vec<Vec<Record>> = vec![Vec::new(); bins];
        for record in &self.measured.accepts {
            let index = record.accepted.saturating_sub(begin).as_nanos() / BIN.as_nanos();
            if let Some(bin) = accepts.get_mut(index as usize) {
                bin.push(*record);
            }
        }
        for (index, accepts) in (0..).zip(&accepts) {
            let waits = waits(accepts);
            for (name, value) in [
                ("since_s", f64::from(index) * BIN.as_secs_f64()),
                ("accepts_per_s", accepts.len() as f64 / BIN.as_secs_f64()),
                ("wait_p99_ms", waits.value_at_quantile(0.99) as f64 / 1e3),
                (
                    "cpu",
                    self.cpu(begin + index * BIN, begin + (index + 1) * BIN),
                ),
            ] {
                let value = crate::run::statistics::rounded(value);
                sample.series.entry(name.into()).or_default().push(value);
            }
        }
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

fn waits(accepts: &[Record]) -> Histogram<u64> {
    let mut waits: Histogram<u64> = new_histogram();
    for wait in accepts.iter().filter_map(|record| record.wait) {
        waits.saturating_record((wait.as_micros() as u64).max(1));
    }
    waits
}

/// All verdicts of policing, over all listeners and classes.
fn policed(status: &Value) -> u64 {
    const VERDICTS: [&str; 4] = [
        "syn_dropped_rate",
        "syn_reset_rate",
        "syn_dropped_held",
        "syn_reset_held",
    ];
    let listeners = status["listeners"].as_array().into_iter().flatten();
    let counters = listeners.flat_map(|listener| {
        VERDICTS.map(|verdict| listener["counters"][verdict].as_u64().unwrap_or(0))
    });
    counters.sum()
}
