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

use std::time::Duration;

use crate::error::{Error, Result};
use crate::proxy::bed::{LINK_MBIT, Link, Receive};
use crate::proxy::clients::{Ask, Load, PATIENCE, Span, Style};
use crate::proxy::contender::{Contender, ProxyMode};
use crate::proxy::rig::{Plan, Rig};
use crate::proxy::size::Size;
use crate::proxy::watch::{Packet, Point, Watch};
use crate::run::experiment::{
    Entry, Experiment, Flags, Program, Turn, check_seconds, chosen, parsed, word,
};
use crate::run::results::{Case, Claim, Facts, Parameters, Results, Sample, Show, parameters};
use crate::run::statistics::Spread;

/// The experiment.
pub const ENTRIES: &[Entry] = &[Entry::new::<Args>(
    "proxy-delay",
    "How long does a proxy keep a request and a reply before it hands on the first packet?",
)
.source("RR02 Section 4.1, Table 4")
.flags(
    "",
    "--sizes 1K --contenders weir,copy --seconds 0.5 --rounds 1",
)];

/// Exchanges of a window that are not counted: connections are made, and proxies learn how long replies are.
const FIRST_ONES: usize = 5;
/// Fewer in a window have no median worth the name.
const LEAST_EXCHANGES: usize = 15;
const ROUNDS: usize = 9;

/// Arguments of `weir-lab proxy-delay`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Kinds of transfer, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', default_value = "http,tunnel")]
    pub modes: Vec<ProxyMode>,
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
}

impl Flags for Args {
    fn experiment(self, program: &Program) -> Result<Box<dyn Experiment>> {
        check_seconds("--seconds", self.seconds)?;
        Ok(Box::new(Delay {
            args: self,
            program: program.clone(),
            rig: None,
        }))
    }
}

struct Delay {
    args: Args,
    program: Program,
    rig: Option<Rig>,
}

impl Experiment for Delay {
    fn groups(&self) -> Vec<Vec<Parameters>> {
        let mut groups = Vec::new();
        for mode in &self.args.modes {
            for size in &self.args.sizes {
                let case = |contender: &Contender| {
                    parameters([
                        ("mode", mode.name().into()),
                        ("size", size.to_string()),
                        ("contender", word(contender)),
                    ])
                };
                groups.push(self.args.contenders.iter().map(case).collect());
            }
        }
        groups
    }

    fn rounds(&self) -> usize {
        ROUNDS
    }

    fn open(&mut self, facts: &mut Facts) -> Result<()> {
        facts.insert(
            "load".into(),
            format!("one client, {} s a round", self.args.seconds).into(),
        );
        self.rig = Some(Rig::build(&Plan {
            contenders: &self.args.contenders,
            modes: &self.args.modes,
            link: Link::Card,
            receive: Receive::AtOnce,
            link_mbit: LINK_MBIT,
            wire: true,
            weir: self.program.path(),
            cache: None,
        })?);
        Ok(())
    }

    fn measure(&mut self, case: &Parameters, _turn: Turn) -> Result<Sample> {
        let contender: Contender = chosen(case, "contender")?;
        let size: Size = parsed(case, "size")?;
        let load = Load {
            target: contender.address(chosen(case, "mode")?),
            ask: Ask::plain(size.0, Style::KeepAlive),
            connections: 1,
            rate_per_s: None,
            patience: PATIENCE,
        };
        let span = Span {
            warm_up: Duration::ZERO,
            window: Duration::from_secs_f64(self.args.seconds),
        };
        let rig = self.rig.as_mut().expect("opened first");
        let watch = Watch::open(&rig.bed.proxy)?;
        let mut packets = Vec::new();
        rig.run_beside(contender, &[load], span, || watch.take(&mut packets))?;
        let exchanges = exchanges(&packets);
        sample(&exchanges).ok_or_else(|| {
            let cause = format!("{} exchanges were seen", exchanges.len());
            Error::failed("no delay", cause).hint("measure longer: --seconds")
        })
    }

    fn compare(&self, round: &mut [(Parameters, Sample)]) {
        let copies: Vec<_> = round
            .iter()
            .filter(|(case, _)| case["contender"] == "copy")
            .cloned()
            .collect();
        for (case, sample) in round {
            let same = |(other, _): &&(Parameters, Sample)| {
                (&other["mode"], &other["size"]) == (&case["mode"], &case["size"])
            };
            if let Some((_, copy)) = copies.iter().find(same) {
                sample.add([(
                    "reply_of_copy",
                    sample.get("reply_us") / copy.get("reply_us"),
                )]);
            }
        }
    }

    fn claims(&self, results: &Results) -> Vec<Claim> {
        let is_long = |case: &&Case| {
            let size = parsed::<Size>(&case.parameters, "size");
            case.parameter("contender") == "weir" && size.is_ok_and(|size| size.0 >= 64 << 10)
        };
        let claim = "the first packet of a long reply leaves sooner than through the copying engine (RR02 Table 4)";
        let about = |case| Claim::about(claim, case, "reply_of_copy", |ratio| ratio.median < 1.0);
        results.cases.iter().filter(is_long).map(about).collect()
    }

    fn show(&self) -> Show {
        Show::columns(&[
            ("mode", "{mode}"),
            ("size", "{size}"),
            ("contender", "{contender}"),
            ("request µs", "{request_us|.1}"),
            ("quartiles", "{request_us:quartiles|.1}"),
            ("reply µs", "{reply_us|.1}"),
            ("quartiles", "{reply_us:quartiles|.1}"),
            ("/ copy", "{reply_of_copy|.2}"),
            ("quartiles", "{reply_of_copy:quartiles|.2}"),
            ("its end µs", "{end_us|.1}"),
            ("exchanges", "{exchanges|n}"),
        ])
    }
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

/// Finds the exchanges in what was seen. With one request at a time each packet from the client begins one.
fn exchanges(packets: &[Packet]) -> Vec<Exchange> {
    let starts = packets.iter().enumerate();
    let starts = starts.filter(|(_, packet)| packet.point == Point::ClientIn);
    let starts: Vec<usize> = starts.map(|(index, _)| index).collect();
    // What follows the last one may not have come to its end.
    let pairs = starts.windows(2);
    pairs
        .filter_map(|pair| exchange(&packets[pair[0]..pair[1]]))
        .collect()
}

fn exchange(packets: &[Packet]) -> Option<Exchange> {
    let at = |packet: &Packet| packet.at;
    let first = |point| packets.iter().find(|one| one.point == point).map(at);
    let last = |point| packets.iter().rfind(|one| one.point == point).map(at);
    let between = |from: Duration, to: Duration| to.checked_sub(from);
    Some(Exchange {
        request: between(first(Point::ClientIn)?, first(Point::OriginOut)?)?,
        reply: between(first(Point::OriginIn)?, first(Point::ClientOut)?)?,
        end: between(last(Point::OriginIn)?, last(Point::ClientOut)?)?,
    })
}

/// Medians of a window; `None` of too few exchanges.
fn sample(exchanges: &[Exchange]) -> Option<Sample> {
    let counted = exchanges.get(FIRST_ONES..).unwrap_or_default();
    if counted.len() < LEAST_EXCHANGES {
        return None;
    }
    let median = |delay: fn(&Exchange) -> Duration| {
        let delays = counted.iter().map(|one| delay(one).as_secs_f64() * 1e6);
        Spread::of(delays).map(|spread| spread.median)
    };
    Some(Sample::of([
        ("request_us", median(|one| one.request)?),
        ("reply_us", median(|one| one.reply)?),
        ("end_us", median(|one| one.end)?),
        ("exchanges", counted.len() as f64),
    ]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packets(seen: &[(Point, u64)]) -> Vec<Packet> {
        let packet = |&(point, us): &(Point, u64)| Packet {
            point,
            at: Duration::from_micros(us),
        };
        seen.iter().map(packet).collect()
    }

    #[test]
    fn delays_are_between_first_packets_and_between_last_ones() {
        use Point::*;
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
        use Point::*;
        let seen = packets(&[(ClientIn, 1), (OriginOut, 2), (ClientIn, 3), (OriginOut, 4)]);
        assert_eq!(exchanges(&seen), []);
        assert_eq!(sample(&[]), None);
    }
}
