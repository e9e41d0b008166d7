//! weir's proxy against HAProxy and nginx: CPU time on the proxy's core per reply, latency, throughput.
//!
//! The contenders run side by side ([`crate::proxy::rig`]), and a round goes through them case by case (A B C,
//! A B C). Virtual machines become slower and faster by a third within seconds. Therefore points are short, rounds
//! many, and ratios are those of neighbours: the median over the rounds of the ratio within a round.

mod case;
mod limits;
mod summary;
mod table;

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

pub use case::{Case, Kind, Size};
pub use limits::{Limit, Quantity, Rival, Verdict};
pub use summary::{Row, Spread, Summary};

use crate::error::{Error, Result};
use crate::proxy::bed::{LINK_MBIT, Receive};
use crate::proxy::clients::{Ask, Load, Span};
use crate::proxy::contender::{Contender, Mode};
use crate::proxy::rig::{Plan, Rig};
use crate::report;

/// Arguments of `weir-lab proxy-bench`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Kinds of transfer, separated by commas
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "get,tunnel,connect"
    )]
    pub cases: Vec<Kind>,
    /// Body sizes of get and tunnel
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1K,10K,33K,64K,128K,1M,16M"
    )]
    pub sizes: Vec<Size>,
    /// Body sizes of connect and tunnel-connect
    #[arg(long, value_delimiter = ',', default_value = "1K,10K")]
    pub connect_sizes: Vec<Size>,
    /// Clients at a time
    #[arg(long, value_delimiter = ',', default_value = "40")]
    pub clients: Vec<usize>,
    /// Proxies to compare
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "weir,copy,haproxy,nginx"
    )]
    pub contenders: Vec<Contender>,
    /// Requests/s, the same for all; left out: each client asks again as soon as it has its reply
    #[arg(long)]
    pub rate: Option<f64>,
    /// Length of the measuring window of each point, in s
    #[arg(long, default_value_t = 0.25)]
    pub seconds: f64,
    /// Load before the window, not counted, in s; a queue of large bodies takes a tenth of a second to build up
    #[arg(long, default_value_t = 0.2)]
    pub warm_up: f64,
    /// How often each point is measured; rounds are interleaved (A B C C B A)
    #[arg(long, default_value_t = 9)]
    pub rounds: usize,
    /// The weir program [default: beside weir-lab, else from PATH]
    #[arg(long, value_name = "PATH")]
    pub weir: Option<PathBuf>,
    /// Folder for results.json and the pictures
    #[arg(long, default_value = "out/proxy-bench", value_name = "DIR")]
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
    /// One summary a case and contender.
    pub summaries: Vec<Summary>,
    /// The limits that weir must hold.
    pub verdicts: Vec<Verdict>,
    /// Busy share of the proxy's core without load; subtracted everywhere.
    pub unloaded: f64,
    /// Busy share of the proxy's core over the whole run, by the idle meter and by /proc/stat.
    pub busy_by_meter_and_ticks: (f64, f64),
}

impl Args {
    fn check(&self) -> Result<()> {
        let positive = [
            ("--seconds", self.seconds),
            ("--rate", self.rate.unwrap_or(1.0)),
        ];
        for (flag, value) in positive {
            if !(value > 0.0 && value.is_finite()) {
                let cause = "it must be above 0";
                return Err(Error::usage(format!("bad {flag} {value}"), cause));
            }
        }
        if !(0.0..=60.0).contains(&self.warm_up) {
            let what = format!("bad --warm-up {}", self.warm_up);
            return Err(Error::usage(what, "it must be 0 to 60 s"));
        }
        if self.rounds == 0 || self.clients.contains(&0) {
            let what = "bad --rounds or --clients 0";
            return Err(Error::usage(what, "at least one is needed"));
        }
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for &kind in &self.cases {
            let sizes = match kind {
                Kind::Get | Kind::Tunnel => &self.sizes,
                Kind::Connect | Kind::TunnelConnect => &self.connect_sizes,
            };
            for &size in sizes {
                let with = |&clients| Case {
                    kind,
                    size,
                    clients,
                };
                cases.extend(self.clients.iter().map(with));
            }
        }
        cases
    }

    fn describe_load(&self) -> String {
        let pace = match self.rate {
            Some(rate) => format!("{} requests/s", report::count(rate)),
            None => "closed loop".into(),
        };
        format!(
            "{pace}, {} s a point, {} interleaved rounds; medians, ratios round by round",
            self.seconds, self.rounds
        )
    }

    fn load(&self, contender: Contender, case: &Case) -> Load {
        Load {
            target: contender.address(case.kind.mode()),
            ask: Ask::plain(case.size.0, case.kind.style()),
            connections: case.clients,
            rate_per_s: self.rate,
        }
    }

    fn span(&self) -> Span {
        Span {
            warm_up: Duration::from_secs_f64(self.warm_up),
            window: Duration::from_secs_f64(self.seconds),
        }
    }
}

fn build(args: &Args) -> Result<Rig> {
    let modes = [Mode::Http, Mode::Tunnel];
    let needed = |mode: &Mode| args.cases.iter().any(|kind| kind.mode() == *mode);
    let modes: Vec<Mode> = modes.into_iter().filter(needed).collect();
    Rig::build(&Plan {
        contenders: &args.contenders,
        modes: &modes,
        receive: Receive::Moderated,
        link_mbit: LINK_MBIT,
        wire: true,
        weir: args.weir.as_deref(),
        cache: None,
    })
}

fn measure_one(rig: &mut Rig, args: &Args, index: usize, case: &Case) -> Result<Row> {
    let contender = args.contenders[index];
    let load = args.load(contender, case);
    let seen = rig.run(index, &[load], args.span());
    let seen = seen.map_err(|error| Error {
        what: format!("{} in {case}: {}", contender.name(), error.what),
        ..error
    })?;
    let [served] = seen.served.as_slice() else {
        unreachable!("one load was given");
    };
    // Without any, the figures are infinite, and said to be so.
    let replies = served.replies;
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    let quantile = |q| served.latency_ns.value_at_quantile(q) as f64 / 1e3;
    let received = seen.received;
    Ok(Row {
        replies_per_s: replies / seen.span.as_secs_f64(),
        cpu_us: us(seen.busy) / replies,
        user_us: us(seen.user) / replies,
        system_us: us(seen.busy + seen.others) / replies,
        busy: seen.busy.as_secs_f64() / seen.span.as_secs_f64(),
        p50_us: quantile(0.5),
        p99_us: quantile(0.99),
        dropped: received.dropped,
        segments_per_packet: received.segments as f64 / received.packets.max(1) as f64,
        ..Row::new(contender, *case)
    })
}

/// Measures all and returns the results; progress goes to stderr, one line a point.
pub fn measure(args: &Args) -> Result<Results> {
    args.check()?;
    let cases = args.cases();
    let mut rig = build(args)?;
    eprintln!(
        "weir-lab: the proxy's core is busy for {:.1} % without load",
        rig.unloaded * 100.0
    );
    let mut rows = Vec::new();
    for round in 1..=args.rounds {
        for case in &cases {
            for index in order(args.contenders.len(), round) {
                let row = measure_one(&mut rig, args, index, case)?;
                eprintln!("{}", progress(&row, round, args.rounds));
                rows.push(row);
            }
        }
    }
    let summaries = summarize(&cases, &args.contenders, &rows);
    Ok(Results {
        machine: report::machine(),
        load: args.describe_load(),
        verdicts: limits::check(&summaries),
        summaries,
        unloaded: rig.unloaded,
        busy_by_meter_and_ticks: rig.busy_by_meter_and_ticks()?,
    })
}

/// The order of the contenders in a round. Over the rounds each is the first as often as another, for that one pays for
/// caches which the case before has filled, and follows another as often as it precedes it.
fn order(contenders: usize, round: usize) -> Vec<usize> {
    let places = 0..contenders;
    let mut order: Vec<usize> = places
        .map(|place| (place + round / 2) % contenders)
        .collect();
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

fn summarize(cases: &[Case], contenders: &[Contender], rows: &[Row]) -> Vec<Summary> {
    let points = cases
        .iter()
        .flat_map(|case| contenders.iter().map(move |contender| (case, contender)));
    let rounds = points.map(|(case, contender)| {
        let of_point = |row: &&Row| row.case == *case && row.contender == *contender;
        rows.iter().filter(of_point).cloned().collect::<Vec<_>>()
    });
    rounds.filter_map(|rounds| Summary::of(&rounds)).collect()
}

fn progress(row: &Row, round: usize, rounds: usize) -> String {
    format!(
        "  {round}/{rounds}  {:<22} {:<8} {:>9.1} µs/reply  {:>8} replies/s  core busy {:>3.0} %  p50 {:>7} µs  p99 {:>7} µs  {:.1} segments/packet  {} dropped",
        row.case,
        row.contender.name(),
        row.cpu_us,
        report::count(row.replies_per_s),
        row.busy * 100.0,
        report::count(row.p50_us),
        report::count(row.p99_us),
        row.segments_per_packet,
        row.dropped,
    )
}

/// Runs the experiment of the command line: tables or JSON on stdout, files in --out.
pub fn run(args: &Args) -> Result<()> {
    let results = measure(args)?;
    let json = report::write_json(&results, &args.out)?;
    crate::plot::proxy::write(&results, &args.out)?;
    report::show(&json, args.json, || table::tables(&results));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::order;

    #[test]
    fn everyone_is_as_often_the_first_and_as_often_behind_another_as_before_it() {
        for contenders in 1..=5 {
            let rounds: Vec<_> = (1..=2 * contenders)
                .map(|round| order(contenders, round))
                .collect();
            for one in 0..contenders {
                let first = rounds.iter().filter(|round| round[0] == one);
                assert_eq!(first.count(), 2);
                for other in 0..contenders {
                    let next = |a, b| {
                        let pairs = rounds.iter().flat_map(|round| round.windows(2));
                        pairs.filter(|pair| *pair == [a, b]).count()
                    };
                    assert_eq!(next(one, other), next(other, one));
                }
            }
        }
    }
}
