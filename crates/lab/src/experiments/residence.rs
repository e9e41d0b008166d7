//! Servers that queue inside: they accept at once, and eight requests at a time wait 50 ms for something else.
//!
//! Each is offered less and more than it can serve, and bursts while it has nothing to do: as it is, with weir's `residence`,
//! and with what one would take instead. These are HAProxy before the server, which hands it as many requests as it works
//! on (`maxconn`) and lets the others wait, and nginx's `limit_conn` where nginx is before the server. Both must be told how
//! many requests the server can work on; weir is told only how long a request may stay. What a server can serve is measured
//! first, in each round: it is a little less than eight in 50 ms.

use std::time::Duration;

use serde_json::{Value, json};

use super::slow_servers::{self, BACKLOG, CLIENTS, PORT, target};
use crate::bed::Bed;
use crate::error::{Error, Result};
use crate::load::clients::{self, Plan};
use crate::run::experiment::{
    Beside, Entry, Experiment, Flags, Program, Turn, chosen, parsed, word,
};
use crate::run::results::{Claim, Facts, Parameters, Results, Sample, Show, parameters};
use crate::server::{Inside, Server, ServerProgram, Slow, Spec, Workers};
use crate::weir::Weir;

/// The experiment.
pub const ENTRIES: &[Entry] = &[Entry::new::<Args>(
    "residence",
    "Do servers that queue inside serve what they can, and promptly, when they are offered more?",
)
.source("beyond the papers")
.flags(
    "",
    "--servers go --guards plain,weir --offered 3 --light-s 1 --settle-s 1 --counted-s 2",
)];

/// Arguments of `weir-lab residence`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Servers
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "go,uvicorn,node,tomcat,gunicorn"
    )]
    pub servers: Vec<Kind>,
    /// What is before them; some only before some servers
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "plain,weir,haproxy,limit-conn"
    )]
    pub guards: Vec<Guard>,
    /// Offered load, in multiples of what the server can serve; or bursts, of 100 clients each while it is idle
    #[arg(long, value_delimiter = ',', default_value = "0.8,1.5,3,bursts")]
    pub offered: Vec<Load>,
    /// Seconds at 0.8 before that
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=60))]
    pub light_s: u8,
    /// Seconds of the offered load that are not counted
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(0..=60))]
    pub settle_s: u8,
    /// Seconds that are; the clients that come in them are waited for
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u8).range(1..=60))]
    pub counted_s: u8,
}

/// A server with its queue inside, of eight that work for 50 ms each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Go's net/http with a pool of 8
    Go,
    /// uvicorn with a semaphore of 8
    Uvicorn,
    /// Node with 8 connections to a slow upstream
    Node,
    /// Tomcat, 200 threads, with a pool of 8
    Tomcat,
    /// nginx before gunicorn with 8 sync workers
    Gunicorn,
}

/// What is before the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Guard {
    /// Nothing
    Plain,
    /// weir with residence = "250ms"
    Weir,
    /// HAProxy with maxconn 8 and 250 ms in its queue; before go and gunicorn
    Haproxy,
    /// nginx's limit_conn of 40 connections; for gunicorn
    LimitConn,
}

/// Offered load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Load {
    /// By chance, so many times what the server can serve.
    Times(f64),
    /// [`BURST`] at a time.
    Bursts,
}

const WORKERS: Workers = Workers {
    count: 8,
    service_s: 0.05,
};
const PATIENCE: Duration = Duration::from_secs(10);
/// Share of the clients that came more than 10 ms late above which a case does not count.
const MAX_LATE_SHARE: f64 = 0.05;
const SECOND: Duration = Duration::from_secs(1);
/// What `residence` allows: for how long a request may stay.
const RESIDENCE_MS: u32 = 250;
/// As many requests as the server answers in that time.
const CONNECTIONS: u32 = WORKERS.count as u32 * RESIDENCE_MS / 50;
/// Where the server is if HAProxy has its port.
const BEHIND_HAPROXY: u16 = 8080;

/// The load that a server is used to, in multiples of what it can serve.
const LIGHT: f64 = 0.8;
/// Clients of a burst, and the distance of two: it is served in 0.6 s.
const BURST: f64 = 100.0;
const BURSTS_EVERY: Duration = Duration::from_secs(2);
/// The first one only warms the server up.
const BURSTS: usize = 6;

/// What a server can serve is measured at so many times what it would without costs of its own, in the seconds after the
/// first two: Java is not quick before.
const SATURATING: f64 = 1.5;
const SATURATED_S: usize = 6;
const WARMING_S: usize = 2;

impl std::str::FromStr for Load {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Load, String> {
        match (text, text.parse()) {
            ("bursts", _) => Ok(Load::Bursts),
            (_, Ok(times)) if times > 0.0 && times <= 100.0 => Ok(Load::Times(times)),
            _ => Err(format!("`{text}` is neither 0 to 100 nor bursts")),
        }
    }
}

impl std::fmt::Display for Load {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Load::Times(times) => times.fmt(f),
            Load::Bursts => f.write_str("bursts"),
        }
    }
}

impl Load {
    /// It is no overload: nobody need be refused.
    fn is_light(self) -> bool {
        !matches!(self, Load::Times(times) if times >= 1.0)
    }
}

impl Kind {
    /// Whether what is before this server can be that.
    fn takes(self, guard: Guard) -> bool {
        match guard {
            Guard::Plain | Guard::Weir => true,
            Guard::Haproxy => matches!(self, Kind::Go | Kind::Gunicorn),
            Guard::LimitConn => self == Kind::Gunicorn,
        }
    }

    fn spec(self, guard: Guard) -> Spec {
        let server = match self {
            Kind::Go => Inside::Go,
            Kind::Uvicorn => Inside::Uvicorn,
            Kind::Node => Inside::Node,
            Kind::Tomcat => Inside::Tomcat,
            Kind::Gunicorn => Inside::Gunicorn {
                limit: (guard == Guard::LimitConn).then_some(CONNECTIONS),
            },
        };
        Spec {
            program: ServerProgram::Slow(Slow::Inside(server), WORKERS),
            port: match guard {
                Guard::Haproxy => BEHIND_HAPROXY,
                _ => PORT,
            },
            backlog: BACKLOG,
        }
    }
}

impl Flags for Args {
    fn experiment(self, program: &Program) -> Result<Box<dyn Experiment>> {
        if !self.guards.contains(&Guard::Plain) && !self.guards.contains(&Guard::Weir) {
            let cause = "not every server can have one of these before it";
            return Err(Error::usage("bad --guards", cause).hint("add plain or weir"));
        }
        Ok(Box::new(Residence {
            args: self,
            programs: program.clone(),
            capacity: Beside::default(),
        }))
    }
}

struct Residence {
    args: Args,
    programs: Program,
    /// What a server can serve in a second, of the round.
    capacity: Beside<(Kind, usize), f64>,
}

impl Experiment for Residence {
    fn groups(&self) -> Vec<Vec<Parameters>> {
        let of = |kind: &Kind| {
            let guards = self.args.guards.iter().filter(|guard| kind.takes(**guard));
            let cases = self.args.offered.iter().flat_map(|offered| {
                guards.clone().map(move |guard| {
                    parameters([
                        ("server", word(kind)),
                        ("offered", offered.to_string()),
                        ("guard", word(guard)),
                    ])
                })
            });
            cases.collect()
        };
        self.args.servers.iter().map(of).collect()
    }

    fn open(&mut self, facts: &mut Facts) -> Result<()> {
        let load = "a new connection for each client, Poisson arrivals, clients give up after 10 s";
        facts.insert("load".to_owned(), load.into());
        Ok(())
    }

    fn measure(&mut self, case: &Parameters, turn: Turn) -> Result<Sample> {
        slow_servers::unless_missing(self.sample(case, turn))
    }

    /// How much longer the slowest of the served take than in the lightest load.
    fn compare(&self, round: &mut [(Parameters, Sample)]) {
        let of = |case: &Parameters| (case.get("server").cloned(), case.get("guard").cloned());
        let light = |case: &Parameters| parsed(case, "offered").is_ok_and(|times: f64| times < 1.0);
        let p99 = |sample: &Sample| sample.get("response_p99_ms");
        let lights: Vec<_> = round
            .iter()
            .filter(|(case, _)| light(case))
            .map(|(case, sample)| (of(case), p99(sample)))
            .collect();
        for (case, sample) in round {
            let light = lights.iter().find(|(other, _)| *other == of(case));
            if let Some((_, light_ms)) = light.filter(|_| sample.metrics.contains_key("clients")) {
                let ratio = p99(sample) / light_ms;
                sample.add([("p99_of_light", ratio)]);
            }
        }
    }

    fn claims(&self, results: &Results) -> Vec<Claim> {
        let weir = results
            .cases
            .iter()
            .filter(|case| case.parameter("guard") == "weir");
        weir.flat_map(|case| {
            let load: Load = parsed(&case.parameters, "offered").unwrap_or(Load::Bursts);
            if load.is_light() {
                return vec![Claim::about(
                    "no client is refused",
                    case,
                    "refused",
                    |share| share.median == 0.0,
                )];
            }
            vec![
                Claim::about(
                    "the server serves what it can, to 5 %",
                    case,
                    "served",
                    |share| share.median >= 0.95,
                ),
                Claim::about(
                    "p99 of the served is at most four times that of the light load",
                    case,
                    "p99_of_light",
                    |ratio| ratio.median <= 4.0,
                ),
                Claim::about("no client times out", case, "timed_out", |share| {
                    share.median == 0.0
                }),
            ]
        })
        .collect()
    }

    fn show(&self) -> Show {
        Show::columns(&[
            ("server", "{server}"),
            ("can serve/s", "{capacity_per_s|n}"),
            ("offered", "{offered}"),
            ("before it", "{guard}"),
            ("served, of what it can", "{served|%}"),
            ("p50 ms", "{response_p50_ms|n}"),
            ("p99 ms", "{response_p99_ms|n}"),
            ("p99 of that at 0.8", "{p99_of_light|.1}"),
            ("refused", "{refused|%}"),
            ("timed out", "{timed_out|%}"),
        ])
    }
}

impl Residence {
    fn sample(&mut self, case: &Parameters, turn: Turn) -> Result<Sample> {
        let kind: Kind = chosen(case, "server")?;
        let guard: Guard = chosen(case, "guard")?;
        let load: Load = parsed(case, "offered")?;
        let capacity = self
            .capacity
            .get((kind, turn.round), || capacity_per_s(kind, turn.seed))?;
        let bed = slow_servers::open()?;
        let mut servers = start(&bed, kind, guard)?;
        let weir = match guard {
            Guard::Weir => Some(Weir::run(&bed.server, self.programs.path(), &config())?),
            _ => None,
        };
        let (plan, skipped) = self.args.plan(load, capacity, turn.seed);
        let mut looks = Vec::new();
        let outcome = slow_servers::run(&bed, &plan, weir.as_ref(), |at, status| {
            looks.push(look(at, status));
        })?;
        for server in &mut servers {
            server.check_alive()?;
        }
        let mut sample = slow_servers::counted(&outcome, skipped, capacity).sample;
        sample.add([("capacity_per_s", capacity)]);
        // Of a hundred that come at once the last are late by themselves.
        let is_disturbed = load != Load::Bursts && outcome.late_share > MAX_LATE_SHARE;
        sample.flaw = is_disturbed.then(|| {
            let percent = outcome.late_share * 100.0;
            format!("{percent:.0} % of the clients came late: other programs took their CPU")
        });
        sample.detail = json!({ "status": looks, "served": outcome.tally.points });
        Ok(sample)
    }
}

impl Args {
    /// The load, and the steps at its beginning that are not counted.
    fn plan(&self, load: Load, capacity_per_s: f64, seed: u64) -> (Plan, usize) {
        match load {
            Load::Times(times) => {
                let (light, settling) = (usize::from(self.light_s), usize::from(self.settle_s));
                let lightly = std::iter::repeat_n(times.min(LIGHT), light);
                let fully = std::iter::repeat_n(times, settling + usize::from(self.counted_s));
                let rates = lightly.chain(fully).map(|times| times * capacity_per_s);
                (by_chance(rates.collect(), seed), light + settling)
            }
            Load::Bursts => {
                let rate = BURST / BURSTS_EVERY.as_secs_f64();
                let bursts = Plan {
                    step: BURSTS_EVERY,
                    together: true,
                    ..by_chance(vec![rate; BURSTS], seed)
                };
                (bursts, 1)
            }
        }
    }
}

/// Clients/s of each second.
fn by_chance(rates_per_s: Vec<f64>, seed: u64) -> Plan {
    Plan {
        target: target(),
        request: clients::request("inside", "/", false),
        rates_per_s,
        step: SECOND,
        together: false,
        patience: PATIENCE,
        stay: None,
        sources: Some(CLIENTS),
        seed,
    }
}

/// The server and what is before it; that goes first.
fn start(bed: &Bed, kind: Kind, guard: Guard) -> Result<Vec<Server>> {
    let mut servers = vec![Server::start(bed, &kind.spec(guard))?];
    if guard == Guard::Haproxy {
        let haproxy = ServerProgram::Haproxy {
            server: BEHIND_HAPROXY,
            places: WORKERS.count,
            longest_ms: RESIDENCE_MS,
        };
        let spec = Spec {
            program: haproxy,
            port: PORT,
            backlog: BACKLOG,
        };
        servers.insert(0, Server::start(bed, &spec)?);
    }
    slow_servers::await_answer(&bed.clients, target())?;
    Ok(servers)
}

/// Replies/s of a server that always has enough to do.
fn capacity_per_s(kind: Kind, seed: u64) -> Result<f64> {
    let bed = slow_servers::open()?;
    let mut servers = start(&bed, kind, Guard::Plain)?;
    let plan = by_chance(vec![SATURATING * WORKERS.per_s(); SATURATED_S], seed);
    let outcome = slow_servers::run(&bed, &plan, None, |_, _| {})?;
    for server in &mut servers {
        server.check_alive()?;
    }
    Ok(slow_servers::counted(&outcome, WARMING_S, 1.0)
        .sample
        .get("served"))
}

fn config() -> String {
    format!(
        "[[listener]]\nname = \"inside\"\naddress = \"*:{PORT}\"\nresidence = \"{RESIDENCE_MS}ms\"\n"
    )
}

/// What `weir status` said of the requests at one time.
fn look(at: Duration, status: &Value) -> Value {
    json!({ "at_s": at.as_secs_f64(), "residence": status["listeners"][0]["residence"] })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::results::{Case, Verdict};
    use crate::run::statistics::Spread;

    fn args(words: &[&str]) -> Args {
        use clap::{Args as _, FromArgMatches};
        let command = Args::augment_args(clap::Command::new("residence").no_binary_name(true));
        Args::from_arg_matches(&command.get_matches_from(words)).unwrap()
    }

    fn experiment(words: &[&str]) -> Box<dyn Experiment> {
        args(words).experiment(&Program::default()).unwrap()
    }

    fn case(offered: &str, metrics: &[(&str, f64)]) -> (Parameters, Sample) {
        let words = [("server", "go"), ("guard", "weir"), ("offered", offered)];
        let mut sample = Sample::of([("clients", 1.0)]);
        let metrics = metrics
            .iter()
            .map(|(name, value)| ((*name).to_owned(), *value));
        sample.metrics.extend(metrics);
        (
            parameters(words.map(|(name, value)| (name, value.to_owned()))),
            sample,
        )
    }

    #[test]
    fn what_can_stand_before_some_servers_only_is_measured_before_these() {
        let groups = experiment(&["--offered", "3"]).groups();
        let guards: Vec<Vec<&str>> = groups
            .iter()
            .map(|group| group.iter().map(|case| case["guard"].as_str()).collect())
            .collect();
        let both = vec!["plain", "weir"];
        let haproxy = vec!["plain", "weir", "haproxy"];
        let all = vec!["plain", "weir", "haproxy", "limit-conn"];
        assert_eq!(guards, [haproxy, both.clone(), both.clone(), both, all]);
    }

    #[test]
    fn a_burst_is_a_hundred_and_the_first_is_not_counted() {
        let (plan, skipped) = args(&[]).plan(Load::Bursts, 150.0, 1);
        assert_eq!(plan.rates_per_s[0] * plan.step.as_secs_f64(), BURST);
        assert_eq!((plan.rates_per_s.len(), skipped), (BURSTS, 1));
        let (plan, skipped) = args(&[]).plan(Load::Times(3.0), 150.0, 1);
        assert_eq!(plan.rates_per_s[..4], [120.0; 4]);
        assert_eq!(plan.rates_per_s[4..], [450.0; 10]);
        assert_eq!(skipped, 8);
        assert!("-1".parse::<Load>().is_err() && "burst".parse::<Load>().is_err());
    }

    #[test]
    fn the_slowest_of_the_served_are_held_against_the_light_load() {
        let experiment = experiment(&[]);
        let p99 = |ms| [("response_p99_ms", ms)];
        let mut round = [case("3", &p99(300.0)), case("0.8", &p99(100.0))];
        experiment.compare(&mut round);
        let verdict = |ratio: f64| {
            let (parameters, _) = case("3", &[]);
            let metrics = [
                ("p99_of_light", ratio),
                ("served", 0.95),
                ("timed_out", 0.0),
            ];
            let metrics = metrics.map(|(name, value)| (name.to_owned(), Spread::one(value)));
            let results = Results {
                cases: vec![Case {
                    parameters,
                    rounds: 1,
                    metrics: metrics.into(),
                    ..Case::default()
                }],
                ..Results::default()
            };
            let claims = experiment.claims(&results);
            claims.iter().map(|claim| claim.verdict).collect::<Vec<_>>()
        };
        use Verdict::{Held, NotHeld};
        assert_eq!(verdict(round[0].1.get("p99_of_light")), [Held; 3]);
        assert_eq!(verdict(4.1), [Held, NotHeld, Held]);
    }
}
