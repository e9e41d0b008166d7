//! Cache hits and passed-through transfers in one proxy at the same time (RR02, Section 4.4).
//!
//! weir as a forward proxy with a cache, one thread. One side is there all the time and its latency is watched; of
//! the other more and more is added. Passed transfers while hits are added are RR02's Figure 18: of those that go to the
//! origin three in eight are tunnels (CONNECT), and the latency is that of the others. Hits while passed
//! transfers are added are Figure 19, without tunnels.
//!
//! In the closed loop clients ask as soon as they have their reply, as RR02's. That shows what happens when
//! something is saturated. With a pace, each side has a rate that takes a share of the proxy's core when it is there
//! alone; the rates are found before the rounds, with the first contender, and are the same for all: only so
//! is "as much of one as of the other" said of hits and passed transfers, whose costs differ.
//!
//! Here the proxy's core is to be what is short, and not the lab's. So the clients' receive work is done on it
//! ([`crate::proxy::wire`] is left out), packets are handled as they come, without moderation, and the link to the
//! origin is faster than in other experiments.

mod point;
mod table;
mod verdict;

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

pub use point::{Line, Pace, Row, Side, Step, Summary};
pub use verdict::{Claim, Verdict};

use super::proxy_bench::{Size, Spread};
use crate::error::{Error, Result};
use crate::proxy::bed::Receive;
use crate::proxy::clients::{Ask, Load, Served, Span, Style, Way};
use crate::proxy::contender::{Contender, Mode, Program};
use crate::proxy::rig::{Plan, Rig, Seen, origin_address};
use crate::report;

const CACHE: &str = "64MiB";
/// RR02: 15 of the 40 that go to the origin are tunnels.
const TUNNELS_OF_40: usize = 15;
const LINK_MBIT: u32 = 5000;
/// Steps to about the rate that takes a share of the core: a request costs less the more of them there are.
const RATE_STEPS: usize = 3;
/// The first of them, requests/s.
const FIRST_RATE: f64 = 2_000.0;
/// Windows from which the last step is taken, as what else the machine does may fall into some.
const LAST_WINDOWS: usize = 5;
/// Less than this share of the core is not told from what other programs do there.
const LEAST_BUSY: f64 = 0.01;

/// Arguments of `weir-lab proxy-mixed`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Body sizes, of hits and of passed transfers alike
    #[arg(long, value_delimiter = ',', default_value = "10K,64K,128K")]
    pub sizes: Vec<Size>,
    /// How clients ask
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "closed,paced"
    )]
    pub paces: Vec<Pace>,
    /// Engines to compare
    #[arg(long, value_enum, value_delimiter = ',', default_value = "weir,copy")]
    pub contenders: Vec<Contender>,
    /// Clients of the watched side
    #[arg(long, default_value_t = 40)]
    pub clients: usize,
    /// Clients of the other side in the closed loop; 0 goes without saying
    #[arg(long, value_delimiter = ',', default_value = "40,80,120")]
    pub added_clients: Vec<usize>,
    /// Share of the proxy's core that the watched side takes alone, 0 to 1
    #[arg(long, default_value_t = 0.3)]
    pub share: f64,
    /// Shares that the other side would take alone; 0 goes without saying
    #[arg(long, value_delimiter = ',', default_value = "0.15,0.3,0.45")]
    pub added_shares: Vec<f64>,
    /// Length of the measuring window of each point, in s
    #[arg(long, default_value_t = 0.25)]
    pub seconds: f64,
    /// Load before the window, not counted, in s
    #[arg(long, default_value_t = 0.05)]
    pub warm_up: f64,
    /// How often each point is measured; rounds are interleaved
    #[arg(long, default_value_t = 9)]
    pub rounds: usize,
    /// The weir program [default: beside weir-lab, else from PATH]
    #[arg(long, value_name = "PATH")]
    pub weir: Option<PathBuf>,
    /// Folder for results.json and the pictures
    #[arg(long, default_value = "out/proxy-mixed", value_name = "DIR")]
    pub out: PathBuf,
    /// Print the results as JSON instead of tables
    #[arg(long)]
    pub json: bool,
}

/// All that was found.
#[derive(Debug, Clone, Serialize)]
pub struct Results {
    /// Kernel and processors.
    pub machine: String,
    /// How the load was offered.
    pub load: String,
    /// Requests/s that took `--share` of the proxy's core alone, by size.
    pub rates: Vec<Rates>,
    /// One a line.
    pub summaries: Vec<Summary>,
    /// What RR02 and the plan claim of them.
    pub verdicts: Vec<Verdict>,
}

/// Requests/s that take `--share` of the proxy's core alone.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Rates {
    /// Bytes of each body.
    #[serde(rename = "bytes")]
    pub size: Size,
    /// Hits/s.
    pub hits: f64,
    /// Passed transfers/s, tunnels included where there are any.
    pub passed: f64,
}

impl Rates {
    fn of(&self, side: Side) -> f64 {
        match side {
            Side::Hits => self.hits,
            Side::Passed => self.passed,
        }
    }
}

impl Args {
    fn check(&self) -> Result<()> {
        let shares = self.added_shares.iter().chain([&self.share]);
        let bad = shares.copied().find(|share| !(0.0..1.0).contains(share));
        if let Some(share) = bad.or((self.share == 0.0).then_some(0.0)) {
            let what = format!("bad share {share}");
            return Err(Error::usage(what, "it must be above 0 and below 1"));
        }
        if !(self.seconds > 0.0 && (0.0..=60.0).contains(&self.warm_up)) {
            let cause = "the window must be longer than 0, the warm-up 0 to 60 s";
            return Err(Error::usage("bad --seconds or --warm-up", cause));
        }
        if self.rounds == 0 || self.clients == 0 {
            let what = "bad --rounds or --clients 0";
            return Err(Error::usage(what, "at least one is needed"));
        }
        let other = self
            .contenders
            .iter()
            .find(|contender| contender.program() != Program::Weir);
        other.map_or(Ok(()), |other| {
            let what = format!("bad --contenders {}", other.name());
            Err(Error::usage(what, "only weir's engines have weir's cache"))
        })
    }

    fn lines(&self) -> Vec<Line> {
        let mut lines = Vec::new();
        for &pace in &self.paces {
            for &size in &self.sizes {
                for watched in Side::WATCHED {
                    lines.extend(self.contenders.iter().map(|&contender| Line {
                        watched,
                        pace,
                        size,
                        contender,
                    }));
                }
            }
        }
        lines
    }

    /// What is added, from nothing on.
    fn amounts(&self, pace: Pace) -> Vec<f64> {
        let rest: Vec<f64> = match pace {
            Pace::Closed => self
                .added_clients
                .iter()
                .map(|&count| count as f64)
                .collect(),
            Pace::Paced => self.added_shares.clone(),
        };
        [vec![0.0], rest].concat()
    }

    fn span(&self) -> Span {
        Span {
            warm_up: Duration::from_secs_f64(self.warm_up),
            window: Duration::from_secs_f64(self.seconds),
        }
    }

    fn describe_load(&self) -> String {
        format!(
            "{} clients are watched, {} s a point, {} interleaved rounds; medians, growth round by round",
            self.clients, self.seconds, self.rounds
        )
    }
}

/// Loads of one side.
struct Crowd {
    contender: Contender,
    size: Size,
    connections: usize,
    rate_per_s: Option<f64>,
}

impl Crowd {
    fn load(&self, way: Way, cacheable: bool, share: f64) -> Load {
        Load {
            target: self.contender.address(Mode::Forward),
            ask: Ask {
                way,
                cacheable,
                ..Ask::plain(self.size.0, Style::KeepAlive)
            },
            connections: ((self.connections as f64 * share).round() as usize).max(1),
            rate_per_s: self.rate_per_s.map(|rate| rate * share),
        }
    }

    /// The first load is the one whose latency counts.
    fn loads(&self, side: Side, with_tunnels: bool) -> Vec<Load> {
        let origin = origin_address();
        let tunnels = TUNNELS_OF_40 as f64 / 40.0;
        match side {
            Side::Hits => vec![self.load(Way::Named(origin), true, 1.0)],
            Side::Passed if with_tunnels => vec![
                self.load(Way::Named(origin), false, 1.0 - tunnels),
                self.load(Way::Connect(origin), false, tunnels),
            ],
            Side::Passed => vec![self.load(Way::Named(origin), false, 1.0)],
        }
    }
}

struct Experiment<'a> {
    args: &'a Args,
    rig: Rig,
    rates: Vec<Rates>,
}

impl Experiment<'_> {
    fn build(args: &Args) -> Result<Experiment<'_>> {
        let rig = Rig::build(&Plan {
            contenders: &args.contenders,
            modes: &[Mode::Forward],
            receive: Receive::AtOnce,
            link_mbit: LINK_MBIT,
            wire: false,
            weir: args.weir.as_deref(),
            cache: Some(CACHE),
        })?;
        let mut experiment = Experiment {
            args,
            rig,
            rates: Vec::new(),
        };
        for &size in &args.sizes {
            experiment.fill_caches(size)?;
            if !args.paces.contains(&Pace::Paced) {
                continue;
            }
            let rates = Rates {
                size,
                hits: experiment.find_rate(Side::Hits, size)?,
                passed: experiment.find_rate(Side::Passed, size)?,
            };
            eprintln!(
                "weir-lab: {size}: {} hits/s and {} passed/s take {:.0} % of the proxy's core each",
                report::count(rates.hits),
                report::count(rates.passed),
                args.share * 100.0
            );
            experiment.rates.push(rates);
        }
        Ok(experiment)
    }

    fn fill_caches(&mut self, size: Size) -> Result<()> {
        for (index, &contender) in self.args.contenders.iter().enumerate() {
            let crowd = Crowd {
                contender,
                size,
                connections: 1,
                rate_per_s: None,
            };
            self.rig
                .run(index, &crowd.loads(Side::Hits, false), self.args.span())?;
        }
        Ok(())
    }

    /// The rate of one side alone at which the first contender takes `--share` of its core.
    fn find_rate(&mut self, side: Side, size: Size) -> Result<f64> {
        let mut rate = FIRST_RATE;
        for _ in 0..RATE_STEPS {
            rate = self.better_rate(rate, side, size)?;
        }
        let windows = (0..LAST_WINDOWS).map(|_| self.better_rate(rate, side, size));
        let rates = windows.collect::<Result<Vec<f64>>>()?;
        Ok(Spread::of(rates.into_iter()).median)
    }

    /// By what a request costs at this rate.
    fn better_rate(&mut self, rate: f64, side: Side, size: Size) -> Result<f64> {
        let crowd = Crowd {
            contender: self.args.contenders[0],
            size,
            connections: self.args.clients,
            rate_per_s: Some(rate),
        };
        let loads = crowd.loads(side, true);
        let seen = self.rig.run(0, &loads, self.args.span())?;
        let replies: f64 = seen.served.iter().map(|one| one.replies).sum();
        if replies < 1.0 {
            let cause = format!("no reply in {:?}", seen.span);
            return Err(Error::failed("cannot tell what a request costs", cause));
        }
        let busy = seen.busy.max(seen.span.mul_f64(LEAST_BUSY));
        Ok(self.args.share * replies / busy.as_secs_f64())
    }

    fn measure(&mut self, line: &Line, added: f64) -> Result<Row> {
        let args = self.args;
        let rates = self.rates.iter().find(|rates| rates.size == line.size);
        let rate = |side| rates.map_or(0.0, |rates: &Rates| rates.of(side));
        let crowd = |connections, rate_per_s| Crowd {
            contender: line.contender,
            size: line.size,
            connections,
            rate_per_s,
        };
        let (watched, other) = (line.watched, line.watched.other());
        let (base, more) = match line.pace {
            Pace::Closed => (crowd(args.clients, None), crowd(added as usize, None)),
            Pace::Paced => {
                let of_other = rate(other) * added / args.share;
                let more = crowd(args.clients, Some(of_other));
                (crowd(args.clients, Some(rate(watched))), more)
            }
        };
        let mut loads = base.loads(watched, true);
        if added > 0.0 {
            loads.extend(more.loads(other, false));
        }
        let own = loads
            .iter()
            .filter(|load| load.ask.cacheable == (watched == Side::Hits));
        let own = own.count();
        let index = args
            .contenders
            .iter()
            .position(|one| *one == line.contender);
        let seen = self.rig.run(index.unwrap_or(0), &loads, args.span());
        let seen = seen.map_err(|error| Error {
            what: format!("{}: {}", line.contender.name(), error.what),
            ..error
        })?;
        check_hits(&seen, line.contender)?;
        Ok(row(added, &seen, own))
    }
}

/// The first `own` loads are those of the watched side.
fn row(added: f64, seen: &Seen, own: usize) -> Row {
    let span = seen.span.as_secs_f64();
    let per_s = |served: &[Served]| served.iter().map(|one| one.replies).sum::<f64>() / span;
    let latency = &seen.served[0].latency_ns;
    let us = |ns: f64| ns / 1e3;
    Row {
        added,
        p50_us: us(latency.value_at_quantile(0.5) as f64),
        mean_us: us(latency.mean()),
        p99_us: us(latency.value_at_quantile(0.99) as f64),
        watched_per_s: per_s(&seen.served[..own]),
        added_per_s: per_s(&seen.served[own..]),
        busy: seen.busy.as_secs_f64() / span,
        lab_busy: seen.others.as_secs_f64() / span,
        dropped: seen.received.dropped,
    }
}

fn check_hits(seen: &Seen, contender: Contender) -> Result<()> {
    match seen.cacheable_replies {
        0 => Ok(()),
        count => Err(Error::failed(
            format!("{} does not serve from its cache", contender.name()),
            format!("{count} requests for what it has went to the origin"),
        )),
    }
}

/// Measures all and returns the results; progress goes to stderr, one line a point.
pub fn measure(args: &Args) -> Result<Results> {
    args.check()?;
    let mut experiment = Experiment::build(args)?;
    let lines = args.lines();
    let mut rows: Vec<Vec<Vec<Row>>> = vec![Vec::new(); lines.len()];
    let engines = args.contenders.len();
    for round in 1..=args.rounds {
        for place in 0..lines.len() {
            // Lines that differ in the engine only are neighbours; each is the first of them in turn.
            let group = place / engines * engines;
            let index = group + (place + round) % engines;
            let mut of_round = Vec::new();
            for added in args.amounts(lines[index].pace) {
                let row = experiment.measure(&lines[index], added)?;
                eprintln!("{}", progress(&lines[index], &row, round, args.rounds));
                of_round.push(row);
            }
            rows[index].push(of_round);
        }
    }
    let summaries = lines.iter().zip(&rows);
    let summaries: Vec<Summary> = summaries
        .map(|(line, rounds)| Summary::of(*line, rounds))
        .collect();
    Ok(Results {
        machine: report::machine(),
        load: args.describe_load(),
        rates: experiment.rates,
        verdicts: verdict::check(&summaries),
        summaries,
    })
}

fn progress(line: &Line, row: &Row, round: usize, rounds: usize) -> String {
    format!(
        "  {round}/{rounds}  {:<6} {:>4} {:<7} {:<6} and {:>5} {:<6}  p50 {:>7} µs  p99 {:>7} µs  {:>7}/s and {:>7}/s  core busy {:>3.0} %, lab {:>3.0} %  {} dropped",
        line.pace.name(),
        line.size,
        line.contender.name(),
        line.watched.name(),
        line.pace.amount(row.added),
        line.watched.other().name(),
        report::count(row.p50_us),
        report::count(row.p99_us),
        report::count(row.watched_per_s),
        report::count(row.added_per_s),
        row.busy * 100.0,
        row.lab_busy * 100.0,
        row.dropped,
    )
}

/// Runs the experiment of the command line: tables or JSON on stdout, files in --out.
pub fn run(args: &Args) -> Result<()> {
    let results = measure(args)?;
    let json = report::write_json(&results, &args.out)?;
    crate::plot::mixed::write(&results, &args.out)?;
    report::show(&json, args.json, || table::tables(&results));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::bed::Received;

    fn crowd() -> Crowd {
        Crowd {
            contender: Contender::Weir,
            size: Size(1024),
            connections: 40,
            rate_per_s: Some(800.0),
        }
    }

    #[test]
    fn fifteen_of_forty_that_go_to_the_origin_are_tunnels() {
        let loads = crowd().loads(Side::Passed, true);
        let shares: Vec<_> = loads
            .iter()
            .map(|load| (load.connections, load.rate_per_s))
            .collect();
        assert_eq!(shares, [(25, Some(500.0)), (15, Some(300.0))]);
        assert!(matches!(loads[1].ask.way, Way::Connect(_)));
        assert!(loads.iter().all(|load| !load.ask.cacheable));
    }

    #[test]
    fn a_hit_that_went_to_the_origin_is_an_error() {
        let seen = |cacheable_replies| Seen {
            served: Vec::new(),
            span: Duration::ZERO,
            busy: Duration::ZERO,
            user: Duration::ZERO,
            others: Duration::ZERO,
            received: Received::default(),
            cacheable_replies,
        };
        assert!(check_hits(&seen(0), Contender::Weir).is_ok());
        assert!(check_hits(&seen(1), Contender::Weir).is_err());
    }
}
