//! What a packet through a qdisc costs, in instructions: in QEMU, whose clock counts them.
//!
//! Packets go out through a device that throws them away, in bursts, one burst each [`Link::period`]. Between bursts the sender
//! reads the clock as fast as it can: what it reads less often than without packets is what they cost, with the timers and
//! the softirqs of the qdisc.

use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, sendto, socket,
};
use serde_json::Value;
use weir_sim::aqm::Discipline;
use weir_sim::aqm::control::{ACK, SYN};
use weir_testbed::needs;

use super::qdiscs::{limit, note_kernel, run_in, tc};
use super::replay::packet;
use crate::error::{Context, Error, Result};
use crate::experiments::judges::arrivals::Arrival;
use crate::netns::Netns;
use crate::program;
use crate::run::experiment::{Entry, Experiment, Flags, Program, Turn, chosen, word};
use crate::run::results::{Claim, Facts, Parameters, Results, Sample, Show, parameters};
use crate::run::statistics::Spread;

/// The experiment.
pub const ENTRY: Entry = Entry::new::<Args>(
    "shape-instructions",
    "How many instructions does a packet through weir's qdisc cost, beside the kernel's?",
)
.source("beyond the papers")
.flags(
    "--bursts 100",
    "--links free --bursts 20 --rounds 1 --qdiscs none,pfifo",
);

/// Where packets go out.
const OUT: &str = "out";
/// Packets of a burst, and of how many flows they are.
const PACKETS: u32 = 64;
const FLOWS: u32 = 50;
/// Bytes of a packet with data and of a SYN, from the IP header on.
const DATA_BYTES: u32 = 1500;
const SYN_BYTES: u32 = 60;
/// One of so many is a SYN, as in the benchmark of the queues.
const SYN_OF: u32 = 6;
/// Bursts before those that count.
const WARM_UP: u32 = 10;

/// Arguments of `weir-lab shape-instructions`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Qdiscs
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "none,pfifo,fq-codel,htb-fq-codel,cake,spa-fq-tc,spa-fq-bpf"
    )]
    pub qdiscs: Vec<Qdisc>,
    /// How fast the link is
    #[arg(long, value_enum, value_delimiter = ',', default_value = "free,slow")]
    pub links: Vec<Link>,
    /// Bursts of 64 packets
    #[arg(long, default_value_t = 100)]
    pub bursts: u32,
    /// What an instruction takes of the clock, ns: 2 to the `shift` that QEMU has for `-icount`
    #[arg(long, default_value_t = 2.0)]
    pub ns_per_instruction: f64,
}

/// What stands before the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Qdisc {
    /// Nothing
    None,
    /// pfifo below prio, so that the kernel does not go past it while it is empty
    Pfifo,
    /// The kernel's fq_codel below prio
    FqCodel,
    /// fq_codel below HTB, as `weir shape --discipline fq-codel` has it
    HtbFqCodel,
    /// The kernel's cake
    Cake,
    /// `weir shape` with --backend tc
    SpaFqTc,
    /// `weir shape` with --backend bpf
    SpaFqBpf,
}

/// The link's rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Link {
    /// 100 Gbit/s: no packet waits
    Free,
    /// 60 Mbit/s: most of a burst waits
    Slow,
}

impl Link {
    fn bits_per_s(self) -> u64 {
        match self {
            Link::Free => 100_000_000_000,
            Link::Slow => 60_000_000,
        }
    }

    /// From the begin of a burst to that of the next: then it has left.
    fn period(self) -> Duration {
        Duration::from_millis(match self {
            Link::Free => 2,
            Link::Slow => 16,
        })
    }
}

impl Qdisc {
    /// Whether it has a rate.
    fn shapes(self) -> bool {
        !matches!(self, Qdisc::None | Qdisc::Pfifo | Qdisc::FqCodel)
    }

    fn put(self, netns: &Netns, bits_per_s: u64, weir: &Path) -> Result<()> {
        let prio =
            format!("qdisc add dev {OUT} root handle 1: prio bands 2 priomap") + &" 0".repeat(16);
        let words = match self {
            Qdisc::None => return Ok(()),
            Qdisc::Cake => return limit(netns, OUT, bits_per_s, Discipline::Cake),
            Qdisc::Pfifo => return tc(netns, &prio).map(drop),
            Qdisc::FqCodel => {
                tc(netns, &prio)?;
                return tc(netns, &format!("qdisc add dev {OUT} parent 1:1 fq_codel")).map(drop);
            }
            Qdisc::HtbFqCodel => "--discipline fq-codel --backend tc",
            Qdisc::SpaFqTc => "--backend tc",
            Qdisc::SpaFqBpf => "--backend bpf",
        };
        let rate = bits_per_s / 1_000_000;
        let words = format!("shape install --dev {OUT} --rate {rate}mbit {words}");
        run_in(netns, Command::new(weir), &words).map(drop)
    }
}

impl Flags for Args {
    fn experiment(self, program: &Program) -> Result<Box<dyn Experiment>> {
        if self.bursts == 0 {
            let cause = "it must be at least 1";
            return Err(Error::usage("bad --bursts 0".to_owned(), cause));
        }
        let weir = program.path().map(Path::to_owned);
        Ok(Box::new(Instructions { args: self, weir }))
    }
}

struct Instructions {
    args: Args,
    /// `weir`, if not the one found by [`program::find`].
    weir: Option<PathBuf>,
}

impl Experiment for Instructions {
    fn groups(&self) -> Vec<Vec<Parameters>> {
        let group = |link: &Link, packets: &str| {
            let qdiscs = self.args.qdiscs.iter();
            let can = |qdisc: &&Qdisc| *link == Link::Free || qdisc.shapes();
            let case = |qdisc: &Qdisc| {
                parameters([
                    ("link", word(link)),
                    ("packets", packets.to_owned()),
                    ("qdisc", word(qdisc)),
                ])
            };
            qdiscs.filter(can).map(case).collect()
        };
        let links = self.args.links.iter();
        links
            .flat_map(|link| ["data", "syns"].map(|packets| group(link, packets)))
            .collect()
    }

    fn open(&mut self, facts: &mut Facts) -> Result<()> {
        note_kernel(facts)
    }

    fn measure(&mut self, case: &Parameters, _turn: Turn) -> Result<Sample> {
        let link = chosen::<Link>(case, "link")?;
        let qdisc = chosen::<Qdisc>(case, "qdisc")?;
        let weir = match &self.weir {
            Some(path) => path.clone(),
            None => program::find("weir")?,
        };
        let netns = Netns::create("sender")?;
        // A device with IPv6 sends packets of its own.
        netns.set_sysctl("net/ipv6/conf/default/disable_ipv6", "1")?;
        netns.ip_batch(&format!(
            "link add {OUT} type dummy
             link set {OUT} mtu {DATA_BYTES} up
             addr add 10.1.1.1/32 dev {OUT}
             route add 10.2.0.0/16 dev {OUT}"
        ))?;
        qdisc.put(&netns, link.bits_per_s(), &weir)?;
        let packets = packets(case["packets"] == "syns");
        let before = sent(&netns)?;
        let busy = netns.run(|| busy_ns(&packets, link.period(), self.args.bursts))?;
        let (wanted, sent) = (
            u64::from(self.args.bursts + WARM_UP) * u64::from(PACKETS),
            sent(&netns)? - before,
        );
        if sent != wanted {
            let what = format!("the device has sent {sent} of {wanted} packets");
            return Err(Error::failed(
                what,
                "one was dropped, or a burst took longer than its period",
            ));
        }
        let ns = busy / f64::from(PACKETS);
        Ok(Sample::of([(
            "instructions",
            ns / self.args.ns_per_instruction,
        )]))
    }

    fn compare(&self, round: &mut [(Parameters, Sample)]) {
        let all = round.to_vec();
        for (case, sample) in round.iter_mut() {
            let of = |link: &str, qdisc: &str| {
                let wanted = |one: &Parameters| {
                    one["link"] == link
                        && one["packets"] == case["packets"]
                        && one["qdisc"] == qdisc
                };
                let found = all.iter().find(|(one, _)| wanted(one));
                found.map_or(f64::NAN, |(_, sample)| sample.get("instructions"))
            };
            let none = of("free", "none");
            let own = sample.get("instructions") - none;
            let of_kernel = own / (of(&case["link"], "htb-fq-codel") - none);
            for (name, value) in [("own", own), ("of_htb-fq-codel", of_kernel)] {
                if value.is_finite() {
                    sample.metrics.insert(name.to_owned(), value);
                }
            }
        }
    }

    fn claims(&self, results: &Results) -> Vec<Claim> {
        let cases = results.cases.iter();
        let own = cases.filter(|case| case.parameter("qdisc") == "spa-fq-bpf");
        let claim = |case| {
            let what = "weir's qdisc costs at most what HTB with fq_codel costs";
            let holds = |ratio: Spread| ratio.median <= 1.0;
            Claim::about(what, case, "of_htb-fq-codel", holds)
        };
        own.map(claim).collect()
    }

    fn show(&self) -> Show {
        Show::columns(&[
            ("link", "{link}"),
            ("packets", "{packets}"),
            ("qdisc", "{qdisc}"),
            ("instructions of a packet", "{instructions|n}"),
            ("without those of no qdisc", "{own|n}"),
            ("of HTB's with fq_codel", "{of_htb-fq-codel|.2}"),
        ])
    }
}

/// Those of a burst, with their destinations.
fn packets(has_syns: bool) -> Vec<(Vec<u8>, SockaddrIn)> {
    let one = |number: u32| {
        let is_syn = has_syns && number.is_multiple_of(SYN_OF);
        let (bytes, flags) = if is_syn {
            (SYN_BYTES, SYN)
        } else {
            (DATA_BYTES, ACK)
        };
        let arrival = Arrival {
            at_ns: 0,
            flow: number % FLOWS,
            flow_hash: 0,
            bytes,
            flags,
        };
        let mut buffer = [0; 2048];
        let bytes = packet(number, &arrival, &mut buffer).to_vec();
        let [a, b, c, d] = [16, 17, 18, 19].map(|at| bytes[at]);
        (
            bytes,
            SockaddrIn::from(std::net::SocketAddrV4::new(Ipv4Addr::new(a, b, c, d), 0)),
        )
    };
    (0..PACKETS).map(one).collect()
}

/// How long the packets of a burst keep the processor busy, ns.
fn busy_ns(packets: &[(Vec<u8>, SockaddrIn)], period: Duration, bursts: u32) -> Result<f64> {
    let sender = socket(
        AddressFamily::Inet,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
        SockProtocol::Raw,
    );
    let sender = sender.context("cannot create a raw socket")?;
    reads(&sender, packets, period, WARM_UP)?;
    let beside_packets = reads(&sender, packets, period, bursts)?;
    let alone = reads(&sender, &[], period, bursts)?;
    let idle = beside_packets as f64 / alone.max(1) as f64;
    Ok((1.0 - idle) * period.as_nanos() as f64)
}

/// How often the clock is read in so many periods, after the burst of each.
fn reads(
    sender: &OwnedFd,
    packets: &[(Vec<u8>, SockaddrIn)],
    period: Duration,
    count: u32,
) -> Result<u64> {
    let (mut reads, mut end) = (0, Instant::now());
    for _ in 0..count {
        end += period;
        for (packet, to) in packets {
            let result = sendto(sender.as_raw_fd(), packet, to, MsgFlags::empty());
            result.context("cannot send a packet")?;
        }
        while Instant::now() < end {
            reads += 1;
        }
        crate::interrupt::check()?;
    }
    Ok(reads)
}

/// Packets that the device has sent.
fn sent(netns: &Netns) -> Result<u64> {
    let words = format!("-j -s link show dev {OUT}");
    let text = run_in(netns, needs::command("ip"), &words)?;
    let what = "cannot read the counters of a device";
    let all: Value = serde_json::from_str(&text).context(what)?;
    let count = all[0]["stats64"]["tx"]["packets"].as_u64();
    count.ok_or_else(|| Error::failed(what, text))
}
