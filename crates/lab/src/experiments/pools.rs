//! Slow pools: servers of a few workers, each of which is busy for seconds, offered more than they can serve.
//!
//! Clients are a new connection each, from an address of its own, at Poisson times, and give up after 15 s. Every case
//! begins with a fresh server, an empty queue, and weir with its default settings or none; the first step is not counted.
//! The wait that `weir status` says is sampled all the time: its mean is held against the mean of what the served
//! clients have waited. By Little's law the two are the same while the pool is busy, although more clients are
//! admitted when the queue is short. A fast server is the flash crowd's.

use std::time::Duration;

use serde_json::{Value, json};

use super::slow_servers::{self, BACKLOG, CLIENTS, Counted, PORT, target};
use crate::bed::Bed;
use crate::error::Result;
use crate::load::clients::{self, LONGEST_STAY, Outcome, Plan};
use crate::run::experiment::{Entry, Experiment, Flags, Program, Turn, chosen, parsed, word};
use crate::run::results::{Claim, Facts, Parameters, Results, Sample, Show, parameters};
use crate::server::slow::PHP_PORT;
use crate::server::{Server, ServerProgram, Slow, Spec, Workers};
use crate::weir::Weir;

/// The experiment.
pub const ENTRIES: &[Entry] = &[Entry::new::<Args>(
    "pools",
    "Do slow pools serve what they can, and does nobody wait in vain, when they are offered more?",
)
.source("beyond the papers")
.flags("", "--servers prefork --offered 3 --steps 2")];

/// Arguments of `weir-lab pools`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Servers
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "prefork,gunicorn,apache,php"
    )]
    pub servers: Vec<Kind>,
    /// Offered load, in multiples of what the pool can serve
    #[arg(long, value_delimiter = ',', default_value = "1.5,3")]
    pub offered: Vec<f64>,
    /// Steps of 10 s; the first is not counted
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(2..=60))]
    pub steps: u8,
}

/// A slow server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// 4 forked processes of Python, 1 s each
    Prefork,
    /// gunicorn, 4 sync workers, 0.5 s each
    Gunicorn,
    /// Apache, 10 prefork workers, KeepAlive 5 s, and clients that keep their connection
    Apache,
    /// PHP-FPM behind nginx, 4 children, 0.5 s each; weir guards the port of PHP-FPM
    Php,
}

const STEP: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(15);

impl Kind {
    fn pool(self) -> (Slow, Workers) {
        let (slow, count, service_s) = match self {
            Kind::Prefork => (Slow::Prefork, 4, 1.0),
            Kind::Gunicorn => (Slow::Gunicorn, 4, 0.5),
            Kind::Apache => (Slow::ApacheKeepAlive, 10, 5.0),
            Kind::Php => (Slow::Php, 4, 0.5),
        };
        (slow, Workers { count, service_s })
    }

    fn spec(self) -> Spec {
        let (slow, workers) = self.pool();
        Spec {
            program: ServerProgram::Slow(slow, workers),
            port: PORT,
            backlog: BACKLOG,
        }
    }

    /// Least time from a client's beginning to the end of its reply, s: Apache's workers reply at once, and wait then.
    fn reply_s(self, workers: Workers) -> f64 {
        match self {
            Kind::Apache => 0.0,
            _ => workers.service_s,
        }
    }

    fn guarded_port(self) -> u16 {
        match self {
            Kind::Php => PHP_PORT,
            _ => PORT,
        }
    }
}

impl Flags for Args {
    fn experiment(self, program: &Program) -> Result<Box<dyn Experiment>> {
        Ok(Box::new(Pools {
            args: self,
            programs: program.clone(),
            bed: None,
        }))
    }
}

struct Pools {
    args: Args,
    programs: Program,
    bed: Option<Bed>,
}

impl Experiment for Pools {
    fn groups(&self) -> Vec<Vec<Parameters>> {
        let of = |kind: &Kind, offered: &f64| {
            ["no", "yes"].map(|weir| {
                parameters([
                    ("server", word(kind)),
                    ("offered", offered.to_string()),
                    ("weir", weir.to_owned()),
                ])
            })
        };
        let offered = &self.args.offered;
        let cases = |kind| offered.iter().map(move |offered| of(kind, offered).into());
        self.args.servers.iter().flat_map(cases).collect()
    }

    fn open(&mut self, facts: &mut Facts) -> Result<()> {
        let load = "a new connection for each client, Poisson arrivals, clients give up after 15 s";
        facts.insert("load".to_owned(), load.into());
        self.bed = Some(slow_servers::open()?);
        Ok(())
    }

    fn measure(&mut self, case: &Parameters, turn: Turn) -> Result<Sample> {
        slow_servers::unless_missing(self.sample(case, turn))
    }

    fn claims(&self, results: &Results) -> Vec<Claim> {
        let guarded = results
            .cases
            .iter()
            .filter(|case| case.parameter("weir") == "yes");
        guarded
            .flat_map(|case| {
                let least = case.median("p50_at_most_ms");
                [
                    Claim::about("no client times out", case, "timed_out", |share| share.median == 0.0),
                    Claim::about("the pool serves what it can, to 5 %", case, "served", |share| {
                        share.median >= 0.95
                    }),
                    Claim::about(
                        "half of the served have their reply within a service and one time between accepts for each place kept",
                        case,
                        "response_p50_ms",
                        |p50| p50.median <= least,
                    ),
                    Claim::about("status is right about the wait, to 25 %", case, "said_of_true", |ratio| {
                        (0.75..=1.25).contains(&ratio.median)
                    }),
                ]
            })
            .collect()
    }

    fn show(&self) -> Show {
        Show::columns(&[
            ("server", "{server}"),
            ("offered", "{offered}"),
            ("weir", "{weir}"),
            ("served, of what it can", "{served|%}"),
            ("refused", "{refused|%}"),
            ("timed out", "{timed_out|%}"),
            ("p50 ms", "{response_p50_ms|n}"),
            ("at most", "{p50_at_most_ms|n}"),
            ("p99 ms", "{response_p99_ms|n}"),
            ("places kept", "{kept|.1}"),
            ("wait by status, ms", "{said_ms|n}"),
            ("true, ms", "{true_ms|n}"),
        ])
    }
}

impl Pools {
    fn sample(&self, case: &Parameters, turn: Turn) -> Result<Sample> {
        let kind: Kind = chosen(case, "server")?;
        let offered: f64 = parsed(case, "offered")?;
        let guarded = case.get("weir").is_some_and(|word| word == "yes");
        let bed = self.bed.as_ref().expect("opened first");
        let (_, workers) = kind.pool();
        let mut server = Server::start(bed, &kind.spec())?;
        let weir = match guarded {
            true => Some(Weir::run(&bed.server, self.programs.path(), &config(kind))?),
            false => None,
        };
        let plan = plan(kind, offered * workers.per_s(), self.args.steps, turn.seed);
        let end = plan.step * plan.rates_per_s.len() as u32;
        let mut looks = Vec::new();
        let outcome = slow_servers::run(bed, &plan, weir.as_ref(), |at, status| {
            if (plan.step..end).contains(&at) {
                looks.extend(look(at, status));
            }
        })?;
        server.check_alive()?;
        Ok(sample(kind, workers, &outcome, &looks))
    }
}

fn config(kind: Kind) -> String {
    format!(
        "[[listener]]\nname = \"pool\"\naddress = \"*:{}\"\n",
        kind.guarded_port()
    )
}

fn plan(kind: Kind, rate_per_s: f64, steps: u8, seed: u64) -> Plan {
    let stays = kind == Kind::Apache;
    Plan {
        target: target(),
        request: clients::request("pool", "/", stays),
        rates_per_s: vec![rate_per_s; steps.into()],
        step: STEP,
        together: false,
        patience: PATIENCE,
        stay: stays.then_some(LONGEST_STAY),
        sources: Some(CLIENTS),
        seed,
    }
}

/// What `weir status` said at one time.
#[derive(serde::Serialize)]
struct Look {
    /// Since the load began.
    at_s: f64,
    queue_length: f64,
    wait_us: f64,
    service_us: f64,
    kept: Option<f64>,
}

fn look(at: Duration, status: &Value) -> Option<Look> {
    let listener = &status["listeners"][0];
    Some(Look {
        at_s: at.as_secs_f64(),
        queue_length: listener["queue_length"].as_f64()?,
        wait_us: listener["wait_us"].as_f64()?,
        service_us: listener["service_us"].as_f64()?,
        kept: listener["kept_queue_length"].as_f64(),
    })
}

fn sample(kind: Kind, workers: Workers, outcome: &Outcome, looks: &[Look]) -> Sample {
    let Counted {
        mut sample,
        response_us,
    } = slow_servers::counted(outcome, 1, workers.per_s());
    if response_us.is_empty() {
        return sample;
    }
    let true_ms = (response_us.mean() / 1e3 - kind.reply_s(workers) * 1e3).max(0.0);
    sample.add([("true_ms", true_ms)]);
    sample.detail = json!({ "status": looks, "served": outcome.tally.points });
    let Some(said_ms) = mean(looks.iter().map(|look| look.wait_us / 1e3)) else {
        return sample;
    };
    sample.add([("said_ms", said_ms), ("said_of_true", said_ms / true_ms)]);
    let kept = mean(looks.iter().filter_map(|look| look.kept));
    let between_ms = mean(looks.iter().map(|look| look.service_us / 1e3)).unwrap_or_default();
    if let Some(kept) = kept {
        // Behind the places kept comes the client's own.
        let places = kept + 1.0;
        sample.add([
            ("kept", kept),
            (
                "p50_at_most_ms",
                kind.reply_s(workers) * 1e3 + places * between_ms,
            ),
        ]);
    }
    sample
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let values: Vec<f64> = values.collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}
