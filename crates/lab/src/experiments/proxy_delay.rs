//! How long a proxy keeps a request and a reply before it hands on their first packet (RR02, Section 4.1).
//!
//! One client with one request at a time. The proxy's devices are watched ([`crate::proxy::watch`]), as RR02
//! watched its proxy's with tcpdump: a request's delay is from its first packet's arrival to the departure of the
//! first packet with data to the origin, a reply's from the arrival of its first packet to the departure of the
//! first one to the client. Connections are kept on both sides, so no handshake is in it. The third figure is
//! from the arrival of a reply's last packet to the departure of the last one.
//!
//! The proxy's core does not sleep while it waits ([`crate::idle`]): waking it costs a virtual machine more than all
//! that is measured here.

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use super::proxy_bench::{Size, Spread};
use crate::error::{Error, Result};
use crate::proxy::bed::{LINK_MBIT, Receive};
use crate::proxy::clients::{Ask, Load, Span, Style};
use crate::proxy::contender::{Contender, Mode};
use crate::proxy::rig::{Plan, Rig};
use crate::proxy::watch::{Packet, Place, Watch};
use crate::report::{self, table};

/// Exchanges of a window that are not counted: connections are made, and proxies learn how long replies are.
const FIRST_ONES: usize = 5;
/// Fewer in a window have no median worth the name.
const LEAST_EXCHANGES: usize = 15;

/// Arguments of `weir-lab proxy-delay`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Kinds of transfer, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', default_value = "http,tunnel")]
    pub modes: Vec<Mode>,
    /// Body sizes
    #[arg(long, value_delimiter = ',', default_value = "1K,10K,64K,1M")]
    pub sizes: Vec<Size>,
    /// Proxies to compare
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "weir,copy,splice,haproxy,nginx"
    )]
    pub contenders: Vec<Contender>,
    /// Length of each window, in s
    #[arg(long, default_value_t = 0.15)]
    pub seconds: f64,
    /// How often each point is measured; rounds are interleaved (A B C A B C)
    #[arg(long, default_value_t = 9)]
    pub rounds: usize,
    /// The weir program [default: beside weir-lab, else from PATH]
    #[arg(long, value_name = "PATH")]
    pub weir: Option<PathBuf>,
    /// Folder for results.json
    #[arg(long, default_value = "out/proxy-delay", value_name = "DIR")]
    pub out: PathBuf,
    /// Print the results as JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

/// A request and its reply, as they passed the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Exchange {
    /// Delay of the request's first packet.
    request: Duration,
    /// Delay of the reply's first packet.
    reply: Duration,
    /// Delay of the reply's last packet.
    end: Duration,
}

/// Medians of one window, in µs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Row {
    /// From a request's arrival to its departure.
    pub request_us: f64,
    /// From the arrival of a reply's first packet to the departure of the first one.
    pub reply_us: f64,
    /// From the arrival of a reply's last packet to the departure of the last one.
    pub end_us: f64,
    /// Exchanges that were counted.
    pub exchanges: usize,
}

/// All windows of one contender in one case.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    /// Who.
    pub contender: Contender,
    /// What it did.
    pub mode: Mode,
    /// Bytes of each body.
    #[serde(rename = "bytes")]
    pub size: Size,
    /// Of the requests.
    pub request_us: Spread,
    /// Of the replies' first packets.
    pub reply_us: Spread,
    /// Of the replies' last packets.
    pub end_us: Spread,
    /// The replies' first packets over the copying engine's, round by round, if it was measured.
    pub reply_to_copy: Option<Spread>,
    /// The rounds, in order.
    pub rounds: Vec<Row>,
}

/// All that was found.
#[derive(Debug, Clone, Serialize)]
pub struct Results {
    /// Kernel and processors.
    pub machine: String,
    /// How it was measured.
    pub load: String,
    /// One a contender and case.
    pub summaries: Vec<Summary>,
}

/// Finds the exchanges in what was seen. With one request at a time each packet from the client begins one.
fn exchanges(packets: &[Packet]) -> Vec<Exchange> {
    let starts = packets.iter().enumerate();
    let starts = starts.filter(|(_, packet)| packet.place == Place::ClientIn);
    let starts: Vec<usize> = starts.map(|(index, _)| index).collect();
    // What follows the last one may not have come to its end.
    let pairs = starts.windows(2);
    pairs
        .filter_map(|pair| exchange(&packets[pair[0]..pair[1]]))
        .collect()
}

fn exchange(packets: &[Packet]) -> Option<Exchange> {
    let at = |packet: &Packet| packet.at;
    let first = |place| packets.iter().find(|one| one.place == place).map(at);
    let last = |place| packets.iter().rfind(|one| one.place == place).map(at);
    let between = |from: Duration, to: Duration| to.checked_sub(from);
    Some(Exchange {
        request: between(first(Place::ClientIn)?, first(Place::OriginOut)?)?,
        reply: between(first(Place::OriginIn)?, first(Place::ClientOut)?)?,
        end: between(last(Place::OriginIn)?, last(Place::ClientOut)?)?,
    })
}

fn row(exchanges: &[Exchange]) -> Option<Row> {
    let counted = exchanges.get(FIRST_ONES..).unwrap_or_default();
    if counted.len() < LEAST_EXCHANGES {
        return None;
    }
    let median = |delay: fn(&Exchange) -> Duration| {
        Spread::of(counted.iter().map(|one| delay(one).as_secs_f64() * 1e6)).median
    };
    Some(Row {
        request_us: median(|one| one.request),
        reply_us: median(|one| one.reply),
        end_us: median(|one| one.end),
        exchanges: counted.len(),
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Case {
    mode: Mode,
    size: Size,
}

fn measure_one(rig: &mut Rig, args: &Args, index: usize, case: Case) -> Result<Row> {
    let contender = args.contenders[index];
    let load = Load {
        target: contender.address(case.mode),
        ask: Ask::plain(case.size.0, Style::KeepAlive),
        connections: 1,
        rate_per_s: None,
    };
    let span = Span {
        warm_up: Duration::ZERO,
        window: Duration::from_secs_f64(args.seconds),
    };
    let watch = Watch::open(&rig.bed.proxy)?;
    let mut packets = Vec::new();
    let place = format!("{} at {}", contender.name(), case.size);
    let seen = rig.run_beside(index, &[load], span, || watch.take(&mut packets));
    seen.map_err(|error| Error {
        what: format!("{place}: {}", error.what),
        ..error
    })?;
    let exchanges = exchanges(&packets);
    row(&exchanges).ok_or_else(|| {
        let cause = format!("{} exchanges were seen", exchanges.len());
        Error::failed(format!("{place}: no delay"), cause).hint("measure longer: --seconds")
    })
}

/// Measures all and returns the results; progress goes to stderr, one line a point.
pub fn measure(args: &Args) -> Result<Results> {
    if args.rounds == 0 || !(args.seconds > 0.0 && args.seconds <= 60.0) {
        let what = "bad --rounds or --seconds";
        let cause = "at least one round of at most 60 s is needed";
        return Err(Error::usage(what, cause));
    }
    let mut rig = Rig::build(&Plan {
        contenders: &args.contenders,
        modes: &args.modes,
        receive: Receive::AtOnce,
        link_mbit: LINK_MBIT,
        wire: true,
        weir: args.weir.as_deref(),
        cache: None,
    })?;
    let sizes = args.sizes.iter();
    let cases: Vec<Case> = args
        .modes
        .iter()
        .flat_map(|&mode| sizes.clone().map(move |&size| Case { mode, size }))
        .collect();
    let count = args.contenders.len();
    let mut rows = vec![Vec::new(); cases.len() * count];
    for round in 1..=args.rounds {
        for (place, &case) in cases.iter().enumerate() {
            for turn in 0..count {
                let index = (turn + round) % count;
                let row = measure_one(&mut rig, args, index, case)?;
                eprintln!(
                    "  {round}/{}  {:<6} {:>4} {:<11} request {:>6.1} µs  reply {:>6.1} µs  its end {:>7.1} µs  {:>5} exchanges",
                    args.rounds,
                    case.mode.name(),
                    case.size,
                    args.contenders[index].name(),
                    row.request_us,
                    row.reply_us,
                    row.end_us,
                    row.exchanges
                );
                rows[place * count + index].push(row);
            }
        }
    }
    let copy = args
        .contenders
        .iter()
        .position(|&one| one == Contender::Copy);
    let points = rows.iter().enumerate().map(|(point, rounds)| {
        let (place, index) = (point / count, point % count);
        let of_copy = copy.map(|copy| &rows[place * count + copy]);
        summarize(args.contenders[index], cases[place], rounds, of_copy)
    });
    Ok(Results {
        machine: report::machine(),
        load: format!(
            "one client, {} s a point, {} interleaved rounds; medians of the rounds' medians",
            args.seconds, args.rounds
        ),
        summaries: points.collect(),
    })
}

fn summarize(
    contender: Contender,
    case: Case,
    rounds: &[Row],
    of_copy: Option<&Vec<Row>>,
) -> Summary {
    let spread = |value: fn(&Row) -> f64| Spread::of(rounds.iter().map(value));
    let ratio = |copy: &Vec<Row>| {
        let pairs = rounds.iter().zip(copy);
        Spread::of(pairs.map(|(own, copy)| own.reply_us / copy.reply_us))
    };
    Summary {
        contender,
        mode: case.mode,
        size: case.size,
        request_us: spread(|row| row.request_us),
        reply_us: spread(|row| row.reply_us),
        end_us: spread(|row| row.end_us),
        reply_to_copy: of_copy.map(ratio),
        rounds: rounds.to_vec(),
    }
}

impl Results {
    /// A table for people.
    pub fn render(&self) -> String {
        let head = [
            "mode",
            "size",
            "contender",
            "request µs",
            "quartiles",
            "reply µs",
            "quartiles",
            "/ copy",
            "quartiles",
            "its end µs",
        ];
        let micros = |value: f64| format!("{value:.1}");
        let quartiles = |spread: Spread| format!("{:.1}–{:.1}", spread.low, spread.high);
        let rows = self.summaries.iter().map(|summary| {
            let ratio = summary.reply_to_copy;
            let times = |spread: Spread| format!("{:.2}–{:.2}", spread.low, spread.high);
            vec![
                summary.mode.name().into(),
                summary.size.to_string(),
                summary.contender.name().into(),
                micros(summary.request_us.median),
                quartiles(summary.request_us),
                micros(summary.reply_us.median),
                quartiles(summary.reply_us),
                ratio.map_or("-".into(), |ratio| format!("{:.2}", ratio.median)),
                ratio.map_or("-".into(), times),
                micros(summary.end_us.median),
            ]
        });
        let rows: Vec<Vec<String>> = rows.collect();
        format!("{}\n{}\n\n{}", self.machine, self.load, table(&head, &rows))
    }
}

/// Runs the experiment of the command line: a table or JSON on stdout, results.json in --out.
pub fn run(args: &Args) -> Result<()> {
    let results = measure(args)?;
    let json = report::write_json(&results, &args.out)?;
    report::show(&json, args.json, || results.render());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packets(seen: &[(Place, u64)]) -> Vec<Packet> {
        let packet = |&(place, us): &(Place, u64)| Packet {
            place,
            at: Duration::from_micros(us),
        };
        seen.iter().map(packet).collect()
    }

    #[test]
    fn delays_are_between_first_packets_and_between_last_ones() {
        use Place::*;
        let seen = packets(&[
            (ClientIn, 100),
            (OriginOut, 110),
            (OriginIn, 200),
            (OriginIn, 203),
            (ClientOut, 220),
            (OriginIn, 230),
            (ClientOut, 245),
            (ClientIn, 300),
        ]);
        let us = Duration::from_micros;
        let only = Exchange {
            request: us(10),
            reply: us(20),
            end: us(15),
        };
        assert_eq!(exchanges(&seen), [only]);
    }

    #[test]
    fn an_exchange_that_was_not_seen_whole_does_not_count() {
        use Place::*;
        let seen = packets(&[(ClientIn, 1), (OriginOut, 2), (ClientIn, 3), (OriginOut, 4)]);
        assert_eq!(exchanges(&seen), []);
        assert_eq!(row(&[]), None);
    }
}
