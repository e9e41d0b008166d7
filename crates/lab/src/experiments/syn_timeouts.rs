//! When does a client repeat its SYN to a server that does not answer (SB06, Table I)?
//!
//! Each client is alone in a bed of its own. What it sends to the silent address arrives in the server's namespace, which
//! drops it without a word; a packet socket there sees each SYN, and the kernel says when it came. All clients of a round
//! wait at the same time.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;
use socket2::{Domain, Protocol, Socket, Type};
use weir_wire::{Frame, Link, flag, parse};

use crate::bed::{Bed, Layout};
use crate::client::tcp::Kind;
use crate::client::{Generator, Load, Pattern};
use crate::error::{Context, Error, Result};
use crate::interrupt;
use crate::run::experiment::{
    Beside, Entry, Experiment, Flags, Program, Turn, check_seconds, chosen, word,
};
use crate::run::results::{Case, Claim, Facts, Parameters, Results, Sample, Show, parameters};
use crate::tap::Tap;

/// The experiment.
pub const ENTRIES: &[Entry] = &[Entry::new::<Args>(
    "syn-timeouts",
    "When does a client repeat its SYN to a server that does not answer?",
)
.source("SB06 Table I")
.flags(
    "--seconds 140 --rounds 3",
    "--seconds 4 --clients linux,lab",
)];

/// Nobody has it (RFC 5737).
const SILENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const PORT: u16 = 80;
/// How many first SYNs in a row have the same distance; it came with Linux 6.5.
const LINEAR: &str = "net.ipv4.tcp_syn_linear_timeouts";
/// Room for the few packets between two looks.
const QUEUE_BYTES: usize = 1 << 20;
/// Between two looks.
const LOOK: Duration = Duration::from_millis(5);
/// Patience of the lab's own client, s: that of SB06's clients (Section V).
const PATIENCE_S: f64 = 10.0;
/// Waits that the table has.
const SHOWN: usize = 10;

/// Arguments of `weir-lab syn-timeouts`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Clients
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "linux,linux-before-6.5,lab"
    )]
    pub clients: Vec<Client>,
    /// How long each is watched, s; Linux gives up after about 130 s
    #[arg(long, default_value_t = 140.0)]
    pub seconds: f64,
}

/// Whose SYNs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Client {
    /// This kernel's TCP as it is by default
    Linux,
    /// The same with tcp_syn_linear_timeouts = 0, as Linux was before 6.5
    #[value(name = "linux-before-6.5")]
    LinuxBefore65,
    /// The lab's own client, which is patient for 10 s
    Lab,
}

impl Flags for Args {
    fn experiment(self, _program: &Program) -> Result<Box<dyn Experiment>> {
        check_seconds("--seconds", self.seconds)?;
        Ok(Box::new(SynTimeouts {
            args: self,
            round: Beside::default(),
        }))
    }
}

struct SynTimeouts {
    args: Args,
    /// All clients of a round, by its number.
    round: Beside<usize, BTreeMap<Client, Sample>>,
}

impl Args {
    /// All clients at the same time.
    fn watch(&self) -> Result<BTreeMap<Client, Sample>> {
        let longest = Duration::from_secs_f64(self.seconds);
        std::thread::scope(|scope| {
            let clients = self.clients.iter();
            let threads: Vec<_> = clients
                .map(|client| (*client, scope.spawn(move || attempt(*client, longest))))
                .collect();
            let watched = threads.into_iter().map(|(client, thread)| {
                let seen = match thread.join() {
                    Ok(seen) => seen?,
                    Err(panic) => std::panic::resume_unwind(panic),
                };
                Ok((client, seen.sample()))
            });
            watched.collect()
        })
    }
}

/// What a client did.
#[derive(Debug, Default)]
struct Seen {
    /// When each SYN came, since the epoch.
    syns: Vec<Duration>,
    /// When the kernel said that the attempt has failed, from its beginning on.
    gave_up: Option<Duration>,
}

impl Seen {
    fn sample(&self) -> Sample {
        let mut sample = Sample::default();
        let waits = self.syns.windows(2).map(|pair| pair[1].abs_diff(pair[0]));
        let waits: Vec<f64> = waits.map(|wait| wait.as_secs_f64()).collect();
        for (number, wait) in waits.iter().enumerate() {
            sample
                .metrics
                .insert(format!("wait_{}_s", number + 1), *wait);
        }
        let patience = Duration::from_secs_f64(PATIENCE_S);
        let within = self.syns.iter().filter(|at| {
            let first = self.syns[0];
            **at > first && at.abs_diff(first) < patience
        });
        sample.add([("within_10_s", within.count() as f64)]);
        if let Some(gave_up) = self.gave_up {
            sample.add([("gave_up_s", gave_up.as_secs_f64())]);
        }
        sample.series.insert("waits_s".into(), waits);
        sample
    }
}

/// Watches the SYNs of one attempt until it is given up, or for so long.
fn attempt(client: Client, longest: Duration) -> Result<Seen> {
    let bed = Bed::build(Layout::of_this_machine())?;
    bed.server
        .ip(&["route", "add", "blackhole", &SILENT.to_string()])?;
    let tap = bed.server.run(|| Tap::open(QUEUE_BYTES))?;
    match client {
        Client::Lab => of_lab(&bed, &tap, longest),
        Client::Linux => of_kernel(&bed, &tap, longest),
        Client::LinuxBefore65 => {
            // Where the kernel has no such setting, it is as it was before.
            let path = format!("/proc/sys/{}", LINEAR.replace('.', "/"));
            if Path::new(&path).exists() {
                bed.clients.set_sysctl(LINEAR, "0")?;
            }
            of_kernel(&bed, &tap, longest)
        }
    }
}

fn of_kernel(bed: &Bed, tap: &Tap, longest: Duration) -> Result<Seen> {
    let begun = Instant::now();
    let socket = bed
        .clients
        .run(|| connecting().context("cannot connect to an address"))?;
    let mut gave_up = None;
    let syns = look(tap, begun + longest, || {
        let error = socket.take_error().context("cannot ask a socket")?;
        let Some(error) = error else { return Ok(false) };
        match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::ETIMEDOUT) => gave_up = Some(begun.elapsed()),
            _ => return Err(Error::failed("the silent address has answered", error)),
        }
        Ok(true)
    })?;
    Ok(Seen { syns, gave_up })
}

/// A socket that has begun to connect.
fn connecting() -> std::io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    match socket.connect(&SocketAddr::from((SILENT, PORT)).into()) {
        Err(error)
            if error.raw_os_error() != Some(libc::EINPROGRESS)
                && error.kind() != ErrorKind::WouldBlock =>
        {
            Err(error)
        }
        _ => Ok(socket),
    }
}

fn of_lab(bed: &Bed, tap: &Tap, longest: Duration) -> Result<Seen> {
    let load = Load {
        target: (SILENT, PORT).into(),
        // One connection: the next one would be due when the window is over.
        rate_per_s: 1.0,
        pattern: Pattern::Constant,
        warm_up: Duration::ZERO,
        window: Duration::from_secs(1),
        timeout: longest.min(Duration::from_secs_f64(PATIENCE_S)),
        kind: Kind::Rfc793,
        server_closes_first: false,
        drain: true,
    };
    std::thread::scope(|scope| {
        let client = scope.spawn(|| Generator::new().run(bed, &load, |_| ()));
        let syns = look(tap, Instant::now() + longest, || Ok(client.is_finished()));
        match client.join() {
            // Whether the first SYN was late is of no interest here.
            Ok(run) => run.map(|_| ())?,
            Err(panic) => std::panic::resume_unwind(panic),
        }
        Ok(Seen {
            syns: syns?,
            gave_up: None,
        })
    })
}

/// When SYNs to the silent address came, until a time or until it is over.
fn look(
    tap: &Tap,
    until: Instant,
    mut is_over: impl FnMut() -> Result<bool>,
) -> Result<Vec<Duration>> {
    let mut syns = Vec::new();
    loop {
        let is_last = Instant::now() >= until || is_over()?;
        tap.take(|packet, address, at| {
            let goes = address.pkttype() == libc::PACKET_OUTGOING;
            if !goes && is_syn(packet) {
                syns.push(at);
            }
        })?;
        if is_last {
            return Ok(syns);
        }
        interrupt::check()?;
        std::thread::sleep(LOOK);
    }
}

/// Whether an IP packet is a SYN to the silent address.
fn is_syn(packet: &[u8]) -> bool {
    match parse(Link::Ip, packet, packet.len() as u32) {
        Frame::Tcp(segment) => {
            segment.destination.address == SILENT.to_ipv6_mapped()
                && segment.has(flag::SYN)
                && !segment.has(flag::ACK)
        }
        _ => false,
    }
}

impl Experiment for SynTimeouts {
    fn groups(&self) -> Vec<Vec<Parameters>> {
        let case = |client: &Client| parameters([("client", word(client))]);
        vec![self.args.clients.iter().map(case).collect()]
    }

    fn open(&mut self, facts: &mut Facts) -> Result<()> {
        let load =
            "one connection to an address that does not answer; times at which its SYNs arrive";
        facts.insert("load".into(), load.into());
        Ok(())
    }

    fn measure(&mut self, case: &Parameters, turn: Turn) -> Result<Sample> {
        let client: Client = chosen(case, "client")?;
        let args = &self.args;
        let round = self.round.get(turn.round, || args.watch())?;
        let sample = round.get(&client).cloned();
        sample.ok_or_else(|| Error::failed("no such client", word(&client)))
    }

    fn claims(&self, results: &Results) -> Vec<Claim> {
        let doubles = "the second wait is twice the first";
        let of = |case: &Case| match case.parameter("client") {
            "linux" => None,
            _ => Some(Claim::about(doubles, case, "wait_2_s", |second| {
                (1.8..2.2).contains(&(second.median / case.median("wait_1_s")))
            })),
        };
        let first = results.cases.iter().map(|case| {
            let claim = "the first SYN is repeated after 1 s";
            Claim::about(claim, case, "wait_1_s", |first| {
                (0.9..1.1).contains(&first.median)
            })
        });
        first.chain(results.cases.iter().filter_map(of)).collect()
    }

    fn show(&self) -> Show {
        let waits = (1..=SHOWN).map(|n| (n.to_string(), format!("{{wait_{n}_s|.1}}")));
        let waits: Vec<(String, String)> = waits.collect();
        let mut columns = vec![("client", "{client}")];
        columns.extend(waits.iter().map(|(head, cell)| (&**head, &**cell)));
        columns.push(("repeated within 10 s", "{within_10_s|n}"));
        columns.push(("given up after, s", "{gave_up_s|n}"));
        Show::columns(&columns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_wire::{Endpoint, Segment, compose};

    #[test]
    fn waits_are_the_times_between_syns_and_the_first_syn_is_no_repetition() {
        let syns = [100, 103, 109, 121].map(Duration::from_secs).into();
        let seen = Seen {
            syns,
            ..Seen::default()
        };
        let sample = seen.sample();
        assert_eq!(sample.series["waits_s"], [3.0, 6.0, 12.0]);
        assert_eq!(
            (sample.get("wait_1_s"), sample.get("wait_3_s")),
            (3.0, 12.0)
        );
        assert_eq!(sample.get("within_10_s"), 2.0);
        assert!(sample.get("gave_up_s").is_nan());
        assert_eq!(Seen::default().sample().get("within_10_s"), 0.0);
    }

    #[test]
    fn only_syns_to_the_silent_address_count() {
        let packet = |to: &str, flags| {
            let end = |address: &str| Endpoint {
                address: address.parse().unwrap(),
                port: PORT,
            };
            let segment = Segment {
                source: end("::ffff:10.66.1.2"),
                destination: end(to),
                seq: 1,
                ack: 0,
                flags,
                window: 1,
                payload: 0,
            };
            compose(&segment)[14..].to_vec()
        };
        assert!(is_syn(&packet("::ffff:192.0.2.1", flag::SYN)));
        assert!(!is_syn(&packet("::ffff:192.0.2.1", flag::SYN | flag::ACK)));
        assert!(!is_syn(&packet("::ffff:192.0.2.1", flag::ACK)));
        assert!(!is_syn(&packet("::ffff:192.0.2.2", flag::SYN)));
        assert!(!is_syn(&[]));
    }
}
