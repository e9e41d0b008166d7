//! What one would take instead of weir: the same flash crowd, without and with a SYN flood beneath it, to a server behind
//! each; and to a slow one, a crowd of a few greedy addresses beside polite users.
//!
//! Server, guard and the receive work of their packets share one CPU. Guards that must be told what the server can do are
//! told what was measured before. Each case has namespaces of its own, so that no sysctl, rule or conntrack entry of
//! another is left.

mod by_address;
mod guards;
mod loads;
mod pool;
mod samples;
mod setup;

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use self::guards::{Capacity, Guard};
use self::loads::{Form, GREEDY, GREEDY_ADDRESSES, Offered, POLITE};
use self::pool::{Guarded, Pace, STEPS};
use self::setup::{Kind, POOL, Setup};
use super::flood::{self, Flood};
use super::point::{OpenLoop, busy_flaw};
use super::saturation::{self, Peak};
use super::slow_servers::{PORT, unless_missing};
use crate::bed::{Bed, Layout, SERVER_V4};
use crate::client::tcp::Kind as ClientKind;
use crate::client::{Generator, Load, Pattern};
use crate::error::{Error, Result};
use crate::run::experiment::{
    Beside, Entry, Experiment, Flags, Program, Turn, check_seconds, chosen, parsed, word,
};
use crate::run::results::{
    Case, Claim, Facts, Panel, Parameters, Picture, Results, Sample, Show, parameters,
};

const INSTEAD: Entry = Entry::new::<Args>(
    "instead",
    "What does a flash crowd do to a server behind what one would take instead of weir?",
)
.source("beyond the papers")
.flags(
    "--rounds 5",
    "--loads 2,2+flood --seconds 1 --warm-up 0.5 --pool-step 0.5 --timeout 1",
);

/// The experiment, and the one with a greedy crowd.
pub const ENTRIES: &[Entry] = &[
    INSTEAD,
    INSTEAD
        .preset(
            "instead-greedy",
            "What do polite users get beside a few greedy addresses, behind what one would take instead of weir?",
        )
        .flags(
            "--servers pool --loads 4+greedy --guards weir,weir-class,plain,tuned,nft-synproxy,limit-conn,limit-conn-each,limit-req,limit-req-each,haproxy,haproxy-each,nft-limit,nft-limit-each,nft-connlimit,nft-connlimit-each --pool-step 3 --rounds 5",
            "--servers pool --loads 4+greedy --guards plain,weir,weir-class,limit-req-each --pool-step 1 --timeout 1",
        ),
];

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
    /// Crowds, in multiples of the server's own peak, which is measured first; with a SYN flood beneath: 2+flood; from a few
    /// greedy addresses beside polite users, at the pool only: 2+greedy
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

/// The search for nginx's peak begins at this rate.
const FIRST_RATE_PER_S: f64 = 2000.0;
/// The pool's peak is measured at so many times what its workers would serve without costs of their own.
const SATURATING: f64 = 1.5;
/// Steps at least so long, lest chance decide.
const LEAST_STEP_OF_PEAK: Duration = Duration::from_millis(1500);
/// Longer than the pool needs for a full listen queue.
const PATIENCE_AT_PEAK: Duration = Duration::from_secs(20);

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
        if self.has_greedy() && self.servers != [Kind::Pool] {
            let cause = "greedy clients come to the pool only";
            return Err(Error::usage("bad --loads", cause).hint("add --servers pool"));
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
        facts.insert("load".into(), self.args.described().into());
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
        results.cases.iter().flat_map(claims).collect()
    }

    fn show(&self) -> Show {
        if self.args.has_greedy() {
            // Too many guards for a picture in which each has a colour.
            return Show::columns(&[&COLUMNS[..], &GREEDY_COLUMNS].concat());
        }
        Show::columns(&COLUMNS)
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

const COLUMNS: [(&str, &str); 16] = [
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
];

/// Times and shares of the columns before are then of the polite.
const GREEDY_COLUMNS: [(&str, &str); 2] = [
    ("greedy served", "{greedy_served|%1}"),
    ("greedy replies/s", "{greedy_replies_per_s|.1}"),
];

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

/// weir's own limits, as of the flash crowd and of the pools. No other guard is claimed of.
fn claims(case: &Case) -> Vec<Claim> {
    let load = case.parameter("load").parse::<Offered>();
    let is_greedy = load.is_ok_and(|load| load.form == Form::Greedy);
    let at_peak = || {
        Claim::about(
            "with weir the server keeps nine tenths of its peak",
            case,
            "of_peak",
            |share| share.median >= 0.9,
        )
    };
    let in_time = |claim| Claim::about(claim, case, "timed_out", |share| share.median <= 0.01);
    const ALL: &str = "with weir one client in a hundred times out, at most";
    const POLITE: &str = "with weir one polite user in a hundred times out, at most";
    match (case.parameter("guard"), is_greedy) {
        ("weir-class", true) => vec![of_polite(case), of_greedy(case), in_time(POLITE)],
        ("weir", true) => vec![at_peak(), in_time(POLITE)],
        ("weir" | "weir-class", false) => vec![at_peak(), in_time(ALL)],
        _ => Vec::new(),
    }
}

fn of_polite(case: &Case) -> Claim {
    Claim::about(
        "with the greedy in a class, nineteen of twenty polite users are served",
        case,
        "served",
        |share| share.median >= 0.95,
    )
}

fn of_greedy(case: &Case) -> Claim {
    Claim::about(
        "the greedy get what their class has, at most",
        case,
        "greedy_replies_per_s",
        // The steps that count have chance in them.
        |per_s| per_s.median <= 1.1 * f64::from(by_address::CLASS_PER_S),
    )
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

    fn pace(&self) -> Pace {
        Pace {
            step: Duration::from_secs_f64(self.pool_step),
            patience: Duration::from_secs_f64(self.timeout),
        }
    }

    fn has_greedy(&self) -> bool {
        self.loads.iter().any(|load| load.form == Form::Greedy)
    }

    /// The loads in words.
    fn described(&self) -> String {
        let (timeout, flood) = (self.timeout, self.flood_per_s);
        if self.has_greedy() {
            let polite = POLITE * 100.0;
            return format!(
                "a new connection for each client, Poisson arrivals; clients give up after {timeout} s; \
                 polite: {polite} % of the peak, each from a random address; greedy: {GREEDY_ADDRESSES} addresses of {GREEDY}"
            );
        }
        format!(
            "a new connection for each client, nginx: at equal distances, pool: Poisson arrivals; clients give up after \
             {timeout} s; flood: {flood} SYNs/s, each from another address"
        )
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
        let lay = |per_s| Flood::lay(&bed.bed.server, bed.bed.layout, (SERVER_V4, PORT), per_s);
        let flood = self.flood_per_s(load).map(lay).transpose()?;
        let offered = Load {
            rate_per_s: load.multiple * peak.replies_per_s,
            ..base
        };
        let policy = setup::policy(guard);
        let measure = || bed.measure(&policy, &offered);
        let (measured, unsent) = flood::beside(flood.as_ref(), measure)?;
        let mut sample = samples::fast_sample(&measured, self.args.seconds, beside);
        flood::note_unsent(&mut sample, unsent);
        Ok(sample)
    }

    fn flood_per_s(&self, load: Offered) -> Option<f64> {
        (load.form == Form::Flood).then_some(self.args.flood_per_s)
    }

    fn pool(&self, guard: Guard) -> Guarded<'_> {
        Guarded {
            guard,
            capacity: self.capacity(Kind::Pool),
            flood_per_s: None,
            weir: self.program.path(),
        }
    }

    /// Replies/s of the pool alone, when it has always something to do. Clients wait as long as it takes: the work for one
    /// that has gone is work too.
    fn pool_peak(&self) -> Result<f64> {
        let pace = self.args.pace();
        let pace = Pace {
            step: pace.step.max(LEAST_STEP_OF_PEAK),
            patience: pace.step * STEPS as u32 + PATIENCE_AT_PEAK,
        };
        let saturating = Offered {
            multiple: SATURATING,
            form: Form::Crowd,
        };
        let run = self
            .pool(Guard::Plain)
            .run(&pace.plans(saturating, POOL.per_s(), 1))?;
        let peak = run.outcomes.iter().map(samples::replies_per_s).sum();
        eprintln!("weir-lab: the pool alone serves {peak:.1}/s");
        Ok(peak)
    }

    fn pool_sample(&mut self, guard: Guard, load: Offered, turn: Turn) -> Result<Sample> {
        let peak = self.capacity(Kind::Pool).per_s;
        let plans = self.args.pace().plans(load, peak, turn.seed);
        let pool = Guarded {
            flood_per_s: self.flood_per_s(load),
            ..self.pool(guard)
        };
        let run = pool.run(&plans)?;
        let mut sample = samples::pool_sample(&run.outcomes, peak);
        sample.add([("cpu", run.cpu.used)]);
        sample.flaw = sample.flaw.or_else(|| busy_flaw(run.cpu.taken, &[]));
        flood::note_unsent(&mut sample, run.unsent);
        Ok(sample)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::results::Verdict;
    use crate::run::statistics::Spread;

    fn case(guard: &str, load: &str, metrics: &[(&str, f64)]) -> Case {
        let spread = |(name, value): &(&str, f64)| ((*name).to_owned(), Spread::one(*value));
        Case {
            parameters: parameters([("guard", guard.to_owned()), ("load", load.to_owned())]),
            rounds: 1,
            metrics: metrics.iter().map(spread).collect(),
            ..Case::default()
        }
    }

    fn not_held(case: &Case) -> Vec<String> {
        let claims = claims(case).into_iter();
        let wrong = claims.filter(|claim| claim.verdict == Verdict::NotHeld);
        wrong.map(|claim| claim.claim).collect()
    }

    #[test]
    fn weir_alone_keeps_its_peak_and_need_not_know_the_greedy() {
        let full = [("of_peak", 1.0), ("timed_out", 0.0), ("served", 0.2)];
        assert_eq!(not_held(&case("weir", "4+greedy", &full)), [""; 0]);
        let idle = [("of_peak", 0.5), ("timed_out", 0.0)];
        assert_eq!(not_held(&case("weir", "4+greedy", &idle)).len(), 1);
        assert_eq!(not_held(&case("weir", "4", &idle)).len(), 1);
        assert!(claims(&case("nft-limit-each", "4+greedy", &idle)).is_empty());
    }

    #[test]
    fn with_a_class_the_polite_are_served_and_the_greedy_have_their_rate() {
        let class = |served, greedy| {
            let metrics = [("served", served), ("timed_out", 0.0), ("of_peak", 0.7)];
            let greedy = [("greedy_replies_per_s", greedy)];
            case("weir-class", "4+greedy", &[&metrics[..], &greedy].concat())
        };
        assert_eq!(
            not_held(&class(0.99, 6.2)),
            [""; 0],
            "the peak is not claimed"
        );
        assert_eq!(not_held(&class(0.9, 6.0)).len(), 1);
        assert_eq!(not_held(&class(0.99, 12.0)).len(), 1);
    }

    #[test]
    fn greedy_clients_come_to_the_pool_only() {
        let entry = &ENTRIES[1];
        let built = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            let matches = crate::cli::parse(entry, &words).unwrap();
            entry.build(&matches, &Program::default())
        };
        let error = built(&["--loads", "4+greedy"]).err().unwrap();
        assert!(error.to_string().contains("pool only"), "{error}");
        assert!(built(&["--loads", "4+greedy", "--servers", "pool"]).is_ok());
    }
}
