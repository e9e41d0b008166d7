//! What one would take instead of weir: the same flash crowd, without and with a SYN flood beneath it, to a server behind
//! each.
//!
//! Server, guard and the receive work of their packets share one CPU. Guards that must be told what the server can do are
//! told what was measured before. Each case has namespaces of its own, so that no sysctl, rule or conntrack entry of
//! another is left.

mod flood;
mod guards;
mod setup;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::str::FromStr;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weir_testbed::wait::Stops;

use self::flood::Flood;
use self::guards::{Capacity, Guard};
use self::setup::{Kind, POOL, Setup};
use super::point::{Measured, OpenLoop, busy_flaw};
use super::policy::InForce;
use super::saturation::{self, Peak};
use super::slow_servers::{self, CLIENTS, PORT, target, unless_missing};
use crate::bed::{Bed, Layout, SERVER_V4, SERVER_VETH_V4};
use crate::client::tcp::Kind as ClientKind;
use crate::client::{Generator, Load, Pattern, new_histogram};
use crate::cpu::{Spare, Ticks};
use crate::error::{Error, Result};
use crate::load::clients::{self, Outcome, Plan};
use crate::load::tally::Step;
use crate::run::experiment::{
    Beside, Entry, Experiment, Flags, Program, Turn, check_seconds, chosen, parsed, word,
};
use crate::run::results::{
    Case, Claim, Facts, Panel, Parameters, Picture, Results, Sample, Show, add_times, parameters,
};
use crate::server::Server;

/// The experiment.
pub const ENTRIES: &[Entry] = &[Entry::new::<Args>(
    "instead",
    "What does a flash crowd do to a server behind what one would take instead of weir?",
)
.source("beyond the papers")
.flags(
    "--rounds 5",
    "--loads 2,2+flood --seconds 1 --warm-up 0.5 --pool-step 0.5 --timeout 1",
)];

/// Arguments of `weir-lab instead`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Servers
    #[arg(long, value_enum, value_delimiter = ',', default_value = "nginx,pool")]
    pub servers: Vec<Kind>,
    /// What is before them, or how they are set
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "weir,plain,tuned,limit-conn,limit-req,haproxy,nft-limit,nft-connlimit,nft-synproxy"
    )]
    pub guards: Vec<Guard>,
    /// Crowds, in multiples of the server's own peak, which is measured first; with a SYN flood beneath: 2+flood
    #[arg(long, value_delimiter = ',', default_value = "2,4,4+flood")]
    pub loads: Vec<Offered>,
    /// SYNs/s of the flood
    #[arg(long, default_value_t = 5000.0)]
    pub flood_per_s: f64,
    /// Length of the measuring window at nginx, in s
    #[arg(long, default_value_t = 5.0)]
    pub seconds: f64,
    /// Load offered to nginx before the window, in s
    #[arg(long, default_value_t = 1.0)]
    pub warm_up: f64,
    /// Length of a step at the pool, in s: of four, the first is not counted
    #[arg(long, default_value_t = 4.0)]
    pub pool_step: f64,
    /// The clients' patience, in s
    #[arg(long, default_value_t = 5.0)]
    pub timeout: f64,
}

/// A load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Offered {
    multiple: f64,
    with_flood: bool,
}

const FLOOD: &str = "+flood";
const STEPS: usize = 4;
const LOOK: Duration = Duration::from_millis(20);
/// The search for nginx's peak begins at this rate.
const FIRST_RATE_PER_S: f64 = 2000.0;
/// The pool's peak is measured at so many times what its workers would serve without costs of their own.
const SATURATING: f64 = 1.5;
/// Steps at least so long, lest chance decide.
const LEAST_STEP_OF_PEAK: Duration = Duration::from_millis(1500);
/// Longer than the pool needs for a full listen queue.
const PATIENCE_AT_PEAK: Duration = Duration::from_secs(20);
/// Share of the clients that came more than 10 ms late above which a case does not count.
const MAX_LATE_SHARE: f64 = 0.05;
/// Share of the flood that was not sent above which a case does not count.
const MAX_UNSENT_SHARE: f64 = 0.05;

impl FromStr for Offered {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Offered, String> {
        let (number, with_flood) = match text.strip_suffix(FLOOD) {
            Some(number) => (number, true),
            None => (text, false),
        };
        match number.parse() {
            Ok(multiple) if multiple > 0.0 && multiple <= 20.0 => Ok(Offered {
                multiple,
                with_flood,
            }),
            _ => Err(format!(
                "`{text}` is no multiple of the peak above 0 and at most 20, as 2 or 2+flood"
            )),
        }
    }
}

impl std::fmt::Display for Offered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let flood = if self.with_flood { FLOOD } else { "" };
        write!(f, "{}{flood}", self.multiple)
    }
}

impl Flags for Args {
    fn experiment(self, program: &Program) -> Result<Box<dyn Experiment>> {
        check_seconds("--seconds", self.seconds)?;
        check_seconds("--pool-step", self.pool_step)?;
        check_seconds("--timeout", self.timeout)?;
        if !(0.0..=3600.0).contains(&self.warm_up) {
            return Err(Error::usage("bad --warm-up", "it must be 0 to 3600 s"));
        }
        if !(self.flood_per_s > 0.0 && self.flood_per_s <= 100_000.0) {
            let cause = "it must be above 0 and at most 100000";
            return Err(Error::usage("bad --flood-per-s", cause));
        }
        Ok(Box::new(Instead {
            args: self,
            program: program.clone(),
            fast: None,
            peaks: BTreeMap::new(),
            lacking: BTreeMap::new(),
            beside: Beside::default(),
        }))
    }
}

struct Instead {
    args: Args,
    program: Program,
    /// nginx's peak.
    fast: Option<Peak>,
    /// Replies/s of each server alone.
    peaks: BTreeMap<Kind, f64>,
    /// Guards that this machine has not, and why.
    lacking: BTreeMap<Guard, String>,
    /// nginx's peak of the round and load.
    beside: Beside<(usize, String), f64>,
}

impl Experiment for Instead {
    fn groups(&self) -> Vec<Vec<Parameters>> {
        let group = |server: &Kind, load: &Offered| {
            let case = |guard: &Guard| {
                parameters([
                    ("server", word(server)),
                    ("load", load.to_string()),
                    ("guard", word(guard)),
                ])
            };
            self.args.guards.iter().map(case).collect()
        };
        let servers = self.args.servers.iter();
        servers
            .flat_map(|server| self.args.loads.iter().map(move |load| group(server, load)))
            .collect()
    }

    fn open(&mut self, facts: &mut Facts) -> Result<()> {
        let load = format!(
            "a new connection for each client, nginx: at equal distances, pool: Poisson arrivals; clients give up after {} s; \
             flood: {} SYNs/s, each from another address",
            self.args.timeout, self.args.flood_per_s
        );
        facts.insert("load".into(), load.into());
        self.probe(facts)?;
        for kind in self.args.servers.clone() {
            let peak = match kind {
                Kind::Nginx => {
                    let (mut bed, _setup) = self.fast_bed(Guard::Plain)?;
                    let base = self.args.load();
                    let peak =
                        saturation::known_or_found(facts, &mut bed, &base, FIRST_RATE_PER_S)?;
                    self.fast = Some(peak);
                    peak.replies_per_s
                }
                Kind::Pool => match facts.get(POOL_PEAK).and_then(Value::as_f64) {
                    Some(peak) => peak,
                    None => self.pool_peak()?,
                },
            };
            if kind == Kind::Pool {
                facts.insert(POOL_PEAK.into(), peak.into());
            }
            self.peaks.insert(kind, peak);
        }
        Ok(())
    }

    fn measure(&mut self, case: &Parameters, turn: Turn) -> Result<Sample> {
        let kind: Kind = chosen(case, "server")?;
        let guard: Guard = chosen(case, "guard")?;
        let load: Offered = parsed(case, "load")?;
        if let Some(reason) = self.lacking.get(&guard) {
            let mut sample = Sample::of([("lacking", 1.0)]);
            sample.flaw = Some(reason.clone());
            return Ok(sample);
        }
        let sample = match kind {
            Kind::Nginx => self.fast_sample(guard, load, turn),
            Kind::Pool => self.pool_sample(guard, load, turn),
        };
        unless_missing(sample)
    }

    fn claims(&self, results: &Results) -> Vec<Claim> {
        let of_weir = |case: &&Case| case.parameter("guard") == "weir";
        results
            .cases
            .iter()
            .filter(of_weir)
            .flat_map(claims)
            .collect()
    }

    fn show(&self) -> Show {
        Show::columns(&[
            ("server", "{server}"),
            ("load", "{load}"),
            ("guard", "{guard}"),
            ("not here", "{lacking|n}"),
            ("offered/s", "{offered_per_s|n}"),
            ("replies/s", "{replies_per_s:cell|n}"),
            ("of peak", "{of_peak:cell|%}"),
            ("p50 ms", "{response_p50_ms|ms}"),
            ("p99 ms", "{response_p99_ms|ms}"),
            ("served", "{served|%1}"),
            ("RST to the SYN", "{refused|%1}"),
            ("RST later", "{reset|%1}"),
            ("429 or 503", "{busy|%1}"),
            ("timed out", "{timed_out|%1}"),
            ("other", "{other|%1}"),
            ("CPU", "{cpu|%}"),
        ])
        .picture(picture(
            "instead",
            "A flash crowd of four times the server's peak: to the right is more, below is sooner",
            "4",
        ))
        .picture(picture(
            "instead-flood",
            "The same with a SYN flood beneath: to the right is more, below is sooner",
            "4+flood",
        ))
    }
}

/// What each guard makes of a load: a point for each, in a panel for each server.
fn picture(name: &str, title: &str, load: &str) -> Picture {
    Picture {
        name: name.into(),
        title: title.into(),
        panels: vec![Panel {
            title: "{server}: p99 of the served, ms".into(),
            x_title: "replies/s, in parts of the server's own peak".into(),
            x: "of_peak".into(),
            y: vec![("response_p99_ms".into(), String::new())],
            lines: vec!["guard".into()],
            per: vec!["server".into()],
            only: parameters([("load", load.to_owned())]),
            logarithmic: true,
            ..Panel::default()
        }],
    }
}

const POOL_PEAK: &str = "pool_per_s";

/// weir's own limits, as of the flash crowd and of the pools.
fn claims(case: &Case) -> [Claim; 2] {
    [
        Claim::about(
            "with weir the server keeps nine tenths of its peak",
            case,
            "of_peak",
            |share| share.median >= 0.9,
        ),
        Claim::about(
            "with weir one client in a hundred times out, at most",
            case,
            "timed_out",
            |share| share.median <= 0.01,
        ),
    ]
}

impl Args {
    /// nginx's load without its rate.
    fn load(&self) -> Load {
        Load {
            target: (SERVER_V4, PORT).into(),
            rate_per_s: 0.0,
            pattern: Pattern::Constant,
            warm_up: Duration::from_secs_f64(self.warm_up),
            window: Duration::from_secs_f64(self.seconds),
            timeout: Duration::from_secs_f64(self.timeout),
            kind: ClientKind::Rfc793,
            server_closes_first: false,
            drain: true,
        }
    }

    fn plan(&self, rate_per_s: f64, seed: u64) -> Plan {
        Plan {
            target: target(),
            request: clients::request("pool", "/", false),
            rates_per_s: vec![rate_per_s; STEPS],
            step: Duration::from_secs_f64(self.pool_step),
            together: false,
            patience: Duration::from_secs_f64(self.timeout),
            stay: None,
            sources: Some(CLIENTS),
            seed,
        }
    }
}

impl Instead {
    /// Counts the guards that this machine has not, and says so.
    fn probe(&mut self, facts: &mut Facts) -> Result<()> {
        for guard in self.args.guards.clone() {
            let Err(error) = setup::probe(guard) else {
                continue;
            };
            if error.kind != crate::error::Kind::Unsupported {
                return Err(error);
            }
            let reason = error.to_string();
            eprintln!("weir-lab: SKIP {}: {reason}", word(&guard));
            facts.insert(format!("skipped: {}", word(&guard)), reason.clone().into());
            self.lacking.insert(guard, reason);
        }
        facts.insert("guards_skipped".into(), self.lacking.len().into());
        Ok(())
    }

    fn capacity(&self, kind: Kind) -> Capacity {
        Capacity {
            per_s: self.peaks.get(&kind).copied().unwrap_or(1.0),
            at_once: kind.at_once(),
        }
    }

    fn fast_bed(&self, guard: Guard) -> Result<(OpenLoop, Setup)> {
        let capacity = self.capacity(Kind::Nginx);
        let setup = Setup::write(Kind::Nginx, guard, capacity)?;
        let bed = Bed::build(Layout::of_this_machine())?;
        setup::set(&bed, guard, capacity)?;
        let bed = OpenLoop {
            bed,
            server: setup.spec.clone(),
            weir: self.program.weir.clone(),
            generator: Generator::new(),
        };
        Ok((bed, setup))
    }

    fn fast_sample(&mut self, guard: Guard, load: Offered, turn: Turn) -> Result<Sample> {
        let peak = self.fast.expect("opened first");
        let base = self.args.load();
        let key = (turn.round, load.to_string());
        // Machines get slower and faster by the minute, so the peak is measured beside what is compared with it.
        let mut known = std::mem::take(&mut self.beside);
        let beside = known.get(key, || {
            let (mut plain, _files) = self.fast_bed(Guard::Plain)?;
            saturation::again(&mut plain, &base, peak)
        });
        self.beside = known;
        let beside = beside?;
        let (mut bed, _files) = self.fast_bed(guard)?;
        let flood = self.flood(&bed.bed, load.with_flood, SERVER_V4)?;
        let offered = Load {
            rate_per_s: load.multiple * peak.replies_per_s,
            ..base
        };
        let policy = setup::policy(guard);
        let (measured, unsent) = with_flood(flood.as_ref(), || bed.measure(&policy, &offered))?;
        let mut sample = fast_sample(&measured, self.args.seconds, beside);
        note_unsent(&mut sample, unsent);
        Ok(sample)
    }

    fn flood(&self, bed: &Bed, is_wanted: bool, address: Ipv4Addr) -> Result<Option<Flood>> {
        let lay = || Flood::lay(bed, address, PORT, self.args.flood_per_s);
        is_wanted.then(lay).transpose()
    }

    /// Replies/s of the pool alone, when it has always something to do. Clients wait as long as it takes: the work for one
    /// that has gone is work too.
    fn pool_peak(&self) -> Result<f64> {
        let plan = self.args.plan(SATURATING * POOL.per_s(), 1);
        let plan = Plan {
            step: plan.step.max(LEAST_STEP_OF_PEAK),
            patience: plan.step * STEPS as u32 + PATIENCE_AT_PEAK,
            ..plan
        };
        let (outcome, ..) = self.pool(Guard::Plain, &plan, false)?;
        let peak = replies_per_s(&outcome);
        eprintln!("weir-lab: the pool alone serves {peak:.1}/s");
        Ok(peak)
    }

    fn pool_sample(&mut self, guard: Guard, load: Offered, turn: Turn) -> Result<Sample> {
        let peak = self.capacity(Kind::Pool).per_s;
        let plan = self.args.plan(load.multiple * peak, turn.seed);
        let (outcome, cpu, unsent) = self.pool(guard, &plan, load.with_flood)?;
        let mut sample = pool_sample(&outcome, peak);
        sample.add([("cpu", cpu.used)]);
        sample.flaw = sample.flaw.or_else(|| busy_flaw(cpu.taken, &[]));
        note_unsent(&mut sample, unsent);
        Ok(sample)
    }

    /// Offers the plan. What became of the clients, what the server's CPU did, and the share of the flood that was not sent.
    fn pool(&self, guard: Guard, plan: &Plan, with_syns: bool) -> Result<(Outcome, Cpu, f64)> {
        let capacity = self.capacity(Kind::Pool);
        let files = Setup::write(Kind::Pool, guard, capacity)?;
        let bed = slow_servers::open()?;
        let mut server = Server::start(&bed, &files.spec)?;
        slow_servers::await_answer(&bed)?;
        setup::set(&bed, guard, capacity)?;
        let flood = self.flood(&bed, with_syns, SERVER_VETH_V4)?;
        let policy = setup::policy(guard);
        let mut in_force = InForce::start(&bed, &policy, self.program.path(), PORT)?;
        let session = server.session();
        let ((outcome, cpu), unsent) = with_flood(flood.as_ref(), || offer(&bed, session, plan))?;
        server.check_alive()?;
        in_force.check_alive()?;
        in_force.end()?;
        Ok((outcome, cpu, unsent))
    }
}

/// Shares of the server's CPU in the steps that count.
#[derive(Debug, Clone, Copy)]
struct Cpu {
    /// By whatever: programs and receive work.
    used: f64,
    /// By programs outside the server's session, and by the machine's host.
    taken: f64,
}

/// Does the work with a flood beside it. Its result, and the share of the flood that was not sent.
fn with_flood<T>(flood: Option<&Flood>, work: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
    let Some(flood) = flood else {
        return Ok((work()?, 0.0));
    };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let flooding = scope.spawn(|| flood.run(&stop));
        let stops = Stops(&stop);
        let begun = Instant::now();
        let done = work();
        let due = begun.elapsed().as_secs_f64() * flood.per_s();
        drop(stops);
        let sent = match flooding.join() {
            Ok(sent) => sent?,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        Ok((done?, 1.0 - (sent as f64 / due.max(1.0)).min(1.0)))
    })
}

fn note_unsent(sample: &mut Sample, unsent: f64) {
    if unsent > MAX_UNSENT_SHARE && sample.flaw.is_none() {
        let percent = unsent * 100.0;
        sample.flaw = Some(format!("{percent:.0} % of the flood was not sent"));
    }
}

/// The load, on the clients' CPU, and what the server's CPU did in the steps that count.
fn offer(bed: &Bed, session: u32, plan: &Plan) -> Result<(Outcome, Cpu)> {
    let cpu = bed.layout.server_cpu;
    let read = || Ok::<_, Error>((Spare::read(cpu)?, Ticks::read(cpu, session)?));
    let (first, last) = (plan.step, plan.step * STEPS as u32);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            bed.clients.run_on(Some(bed.layout.client_cpu), || {
                clients::run(plan, &mut |_| {})
            })
        });
        let begun = Instant::now();
        let mut edges = Vec::new();
        while !load.is_finished() {
            std::thread::sleep(LOOK);
            let due = [first, last].get(edges.len()).copied();
            if due.is_some_and(|due| begun.elapsed() >= due) {
                edges.push(read()?);
            }
        }
        let outcome = match load.join() {
            Ok(outcome) => outcome?,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        // The last client may have had its fate just before.
        let end = edges.get(1).copied().map_or_else(read, Ok)?;
        let begin = edges.first().copied().unwrap_or_default();
        let cpu = Cpu {
            used: 1.0 - end.0.share_since(&begin.0),
            taken: end.1.taken_by_others_since(&begin.1),
        };
        Ok((outcome, cpu))
    })
}

/// Shares are of the clients that came in the window.
fn fast_sample(measured: &Measured, window_s: f64, peak_per_s: f64) -> Sample {
    let (fate, wire) = (measured.run.tally.fate, measured.run.tally.wire);
    let share = |count: u64| count as f64 / fate.started.max(1) as f64;
    let replies_per_s = wire.replies as f64 / window_s;
    let mut sample = Sample::of([
        ("offered_per_s", measured.run.offered_per_s),
        ("replies_per_s", replies_per_s),
        ("peak_per_s", peak_per_s),
        ("of_peak", replies_per_s / peak_per_s.max(1.0)),
        ("served", share(fate.served)),
        ("refused", share(fate.refused)),
        ("reset", share(fate.reset)),
        ("busy", share(fate.busy)),
        ("timed_out", share(fate.timed_out)),
        ("other", share(fate.bad_reply - fate.busy)),
        ("cpu", measured.cpu_used),
    ]);
    add_times(&mut sample, "response", &measured.run.tally.response_us);
    add_times(&mut sample, "refusal", &measured.run.tally.refusal_us);
    sample.flaw = measured.run.flaw.clone();
    let account = measured.account.clone().unwrap_or_default();
    sample.detail = json!({
        "wire": wire,
        "fate": fate,
        "weir_status": account.status,
        "kernel": measured.in_all.0,
    });
    sample
}

fn counted(outcome: &Outcome) -> &[Step] {
    outcome.tally.steps.get(1..).unwrap_or_default()
}

fn replies_per_s(outcome: &Outcome) -> f64 {
    let steps = counted(outcome);
    let seconds: f64 = steps.iter().map(|step| step.length.as_secs_f64()).sum();
    let replies: u64 = steps.iter().map(|step| step.served_in_time).sum();
    replies as f64 / seconds.max(1e-9)
}

/// Shares are of the clients that came in the steps that count.
fn pool_sample(outcome: &Outcome, peak_per_s: f64) -> Sample {
    let steps = counted(outcome);
    let sum = |of: fn(&Step) -> u64| steps.iter().map(of).sum::<u64>();
    let seconds: f64 = steps.iter().map(|step| step.length.as_secs_f64()).sum();
    let begun = sum(|step| step.begun);
    let share = |of: fn(&Step) -> u64| sum(of) as f64 / begun.max(1) as f64;
    let status = |step: &Step, status| step.errors.get(&status).copied().unwrap_or(0);
    let busy = steps
        .iter()
        .map(|step| status(step, 429) + status(step, 503));
    let busy = busy.sum::<u64>() as f64 / begun.max(1) as f64;
    let replies_per_s = replies_per_s(outcome);
    let mut sample = Sample::of([
        ("offered_per_s", begun as f64 / seconds.max(1e-9)),
        ("replies_per_s", replies_per_s),
        ("peak_per_s", peak_per_s),
        ("of_peak", replies_per_s / peak_per_s.max(1e-9)),
        ("served", share(|step| step.served)),
        ("refused", share(|step| step.refused)),
        ("reset", share(|step| step.reset)),
        ("busy", busy),
        ("timed_out", share(|step| step.timed_out)),
        ("late", outcome.late_share),
    ]);
    let named: f64 = ["served", "refused", "reset", "busy", "timed_out"]
        .iter()
        .map(|name| sample.get(name))
        .sum();
    sample.add([("other", (1.0 - named).max(0.0))]);
    for (name, of) in [
        ("response", (|step| &step.response_us) as fn(&Step) -> &_),
        ("refusal", |step| &step.refusal_us),
    ] {
        let mut all = new_histogram();
        for step in steps {
            all.add(of(step)).expect("the bounds are the same");
        }
        add_times(&mut sample, name, &all);
    }
    if outcome.late_share > MAX_LATE_SHARE {
        let percent = outcome.late_share * 100.0;
        sample.flaw = Some(format!(
            "{percent:.0} % of the clients came late: other programs took their CPU"
        ));
    }
    sample
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::tally::{Fate, Tally};

    #[test]
    fn loads_are_read_as_they_are_written() {
        for text in ["2", "0.5", "4+flood"] {
            assert_eq!(text.parse::<Offered>().unwrap().to_string(), text);
        }
        assert!("4+flood".parse::<Offered>().unwrap().with_flood);
        for text in ["0", "flood", "2+x", "21"] {
            assert!(text.parse::<Offered>().is_err(), "{text}");
        }
    }

    #[test]
    fn shares_of_the_pool_are_of_the_clients_behind_the_first_step() {
        let second = Duration::from_secs(1);
        let mut tally = Tally::new(&[10.0; STEPS], second);
        let fates = [
            Fate::Served,
            Fate::Refused,
            Fate::Reset,
            Fate::Error(503),
            Fate::Error(429),
            Fate::TimedOut,
            Fate::Error(502),
            Fate::CutShort,
        ];
        tally.end(0, Duration::ZERO, second / 2, Fate::Refused);
        for fate in fates {
            tally.end(1, second, second * 3 / 2, fate);
        }
        let outcome = Outcome {
            tally,
            late_share: 0.0,
            interrupted: false,
        };
        let sample = pool_sample(&outcome, 1.0);
        let eighths = |name: &str| (sample.get(name) * 8.0).round();
        for (name, expected) in [
            ("served", 1.0),
            ("refused", 1.0),
            ("reset", 1.0),
            ("busy", 2.0),
            ("timed_out", 1.0),
            ("other", 2.0),
        ] {
            assert_eq!(eighths(name), expected, "{name}");
        }
        assert!((sample.get("of_peak") - 1.0 / 3.0).abs() < 1e-9);
        assert_eq!(sample.flaw, None);
    }
}
