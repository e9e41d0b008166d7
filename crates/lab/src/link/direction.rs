//! One direction of an emulated link: its queues and transmitters, and the wire behind them.
//!
//! All packets share a queue and a rate, or each connection has its own ([`Lanes`]), as RR02's modems. The delay is the
//! same for all.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use hdrhistogram::Histogram;
use nix::errno::Errno;
use weir_sim::LinkSpec;
use weir_sim::aqm::{Cause, Hooks, Packet, Stats};
use weir_sim::link::{Departure, Link};

use super::clock::Clock;
use super::packet::Frame;
use super::report;
use super::spec::Lanes;
use crate::bed::Tap;
use crate::error::{Error, Result};

/// Packets of one direction that are taken before the other has its turn.
const BATCH: usize = 32;
/// Longest time that the histograms tell apart, ns.
const LONGEST_NS: u64 = 600_000_000_000;
/// The lane of all packets that share one.
const SHARED: u32 = 0;

/// Randomness of a queue, and what it dropped.
#[derive(Debug)]
pub struct Drops {
    rng: fastrand::Rng,
    syns: u64,
}

impl Hooks<Frame> for Drops {
    fn random(&mut self) -> u32 {
        self.rng.u32(..)
    }

    fn dropped(&mut self, frame: Frame, _cause: Cause) {
        // Without FIN: SYN and SYN/ACK.
        self.syns += u64::from(frame.control().is_high(false));
    }
}

/// One direction of the link.
#[derive(Debug)]
pub struct Direction {
    spec: LinkSpec,
    lanes: Lanes,
    seed: u64,
    /// Queue and transmitter of each lane, by the hash of its connection. Those of ended connections stay: their next
    /// packet would find the state of its losses, and they are small.
    links: HashMap<u32, Link<Frame, Drops>>,
    /// When the transmitters that are busy are free, ns, and whose they are.
    busy: BTreeSet<(u64, u32)>,
    /// On the wire, by the time at which each arrives, ns, and the order in which they left.
    wire: BTreeMap<(u64, u64), Frame>,
    /// Packets that have left.
    left: u64,
    lost: u64,
    delivered: u64,
    refused: u64,
    /// Time in the queue, ns.
    waits: Histogram<u64>,
    /// How much after its time a packet was delivered, ns.
    late: Histogram<u64>,
}

impl Direction {
    /// An idle one; everything random comes from the seed.
    pub fn new(spec: LinkSpec, lanes: Lanes, seed: u64) -> Direction {
        let histogram = || Histogram::new_with_max(LONGEST_NS, 3).expect("valid bounds");
        Direction {
            spec,
            lanes,
            seed,
            links: HashMap::new(),
            busy: BTreeSet::new(),
            wire: BTreeMap::new(),
            left: 0,
            lost: 0,
            delivered: 0,
            refused: 0,
            waits: histogram(),
            late: histogram(),
        }
    }

    /// The queue and the transmitter of a lane.
    fn link(&mut self, lane: u32) -> &mut Link<Frame, Drops> {
        let Direction { spec, seed, .. } = *self;
        self.links.entry(lane).or_insert_with(|| {
            let seed = seed ^ u64::from(lane) << u32::BITS;
            let hooks = Drops {
                rng: fastrand::Rng::with_seed(seed),
                syns: 0,
            };
            Link::new(spec, hooks, !seed)
        })
    }

    /// Does what the transmitters had to do until this time.
    pub fn advance(&mut self, now_ns: u64) {
        let is_due = |busy: &&(u64, u32)| busy.0 <= now_ns;
        while let Some(busy) = self.busy.first().filter(is_due).copied() {
            self.busy.remove(&busy);
            let (free_ns, lane) = busy;
            let next = self.link(lane).free(free_ns);
            self.begin(lane, next);
        }
    }

    /// Takes a packet in that came at this time, up to which [`Direction::advance`] has been called.
    fn offer(&mut self, frame: Frame) {
        let now_ns = frame.came_ns;
        let lane = match self.lanes {
            Lanes::Shared => SHARED,
            Lanes::Each => frame.flow_hash(),
        };
        let next = self.link(lane).offer(frame, now_ns);
        self.begin(lane, next);
    }

    /// The transmitter of a lane begins with this packet, if there is one.
    fn begin(&mut self, lane: u32, next: Option<Departure<Frame>>) {
        let Some(departure) = next else {
            return;
        };
        self.busy.insert((departure.free_ns, lane));
        let waited = departure.began_ns.saturating_sub(departure.packet.came_ns);
        self.waits.saturating_record(waited);
        match departure.arrives_ns {
            Some(at_ns) => {
                self.wire.insert((at_ns, self.left), departure.packet);
            }
            None => self.lost += 1,
        }
        self.left += 1;
    }

    /// Hands over what has arrived.
    pub fn deliver(&mut self, device: &Tap, clock: &Clock) -> Result<()> {
        loop {
            let now_ns = clock.now_ns();
            self.advance(now_ns);
            let Some(first) = self.wire.first_entry() else {
                return Ok(());
            };
            let (due_ns, _) = *first.key();
            if due_ns > now_ns {
                return Ok(());
            }
            let frame = first.remove();
            match device.send(frame.bytes()) {
                Ok(()) => {
                    self.delivered += 1;
                    self.late.saturating_record(now_ns - due_ns);
                }
                // The kernel takes no such packet, or has no memory for it.
                Err(Errno::EINVAL | Errno::ENOMEM | Errno::ENOBUFS | Errno::EAGAIN) => {
                    self.refused += 1;
                }
                Err(error) => return Err(broken("deliver a packet", error)),
            }
        }
    }

    /// Takes what has come to a device; whether there may be more.
    pub fn take(&mut self, device: &Tap, clock: &Clock, buffer: &mut [u8]) -> Result<bool> {
        for _ in 0..BATCH {
            let received = device.receive(buffer);
            let Some(packet) = received.map_err(|error| broken("take a packet", error))? else {
                return Ok(false);
            };
            let now_ns = clock.now_ns();
            self.advance(now_ns);
            self.offer(Frame::read(packet.to_vec(), now_ns));
        }
        Ok(true)
    }

    /// Before this time nothing is to be done, ns.
    pub fn due_ns(&self) -> Option<u64> {
        let arrives = self.wire.keys().next().map(|(at_ns, _)| *at_ns);
        // What leaves next cannot arrive before.
        let leaves = self.busy.first();
        let leaves = leaves.map(|(free_ns, _)| free_ns + self.spec.delay_ns);
        arrives.into_iter().chain(leaves).min()
    }

    /// What it has counted.
    pub fn report(&self) -> report::Direction {
        let stats: Stats = self.links.values().map(Link::stats).copied().sum();
        let backlog = self.links.values().map(|link| link.backlog().packets);
        let syns = self.links.values().map(|link| link.hooks().syns);
        report::Direction {
            discipline: self.spec.discipline.name().to_owned(),
            rate_bits_per_s: self.spec.setup.rate_bytes_per_s * 8,
            delay_ms: self.spec.delay_ns as f64 / 1e6,
            received_packets: stats.received.packets,
            received_bytes: stats.received.bytes,
            sent_packets: stats.sent.packets,
            sent_bytes: stats.sent.bytes,
            dropped_full: stats.dropped_full,
            dropped_early: stats.dropped_early,
            dropped_delay: stats.dropped_delay,
            dropped_syns: syns.sum(),
            marked: stats.marked,
            high: stats.high,
            demoted: stats.demoted,
            waiting_packets: backlog.sum(),
            lost: self.lost,
            on_the_wire: self.wire.len() as u64,
            delivered: self.delivered,
            refused: self.refused,
            queue_delay: report::Times::of(&self.waits),
            late: report::Times::of(&self.late),
            stats,
        }
    }
}

fn broken(what: &str, error: Errno) -> Error {
    Error::failed(format!("the emulated link cannot {what}"), error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_sim::Loss;
    use weir_sim::aqm::{Discipline, Setup};

    fn direction(loss: Loss) -> Direction {
        of_lanes(Lanes::Shared, loss)
    }

    fn of_lanes(lanes: Lanes, loss: Loss) -> Direction {
        let spec = LinkSpec {
            discipline: Discipline::Fifo,
            setup: Setup::of_ip(150_000),
            delay_ns: 1_000_000,
            loss,
            passes_at_once: false,
        };
        Direction::new(spec, lanes, 1)
    }

    /// A packet of so many bytes.
    fn frame(came_ns: u64, len: usize) -> Frame {
        Frame::read(vec![0; len], came_ns)
    }

    /// 1500 bytes take 10 ms.
    const FULL: usize = 1500;
    const TIME_NS: u64 = 10_000_000;

    #[test]
    fn a_transmitter_that_is_looked_after_late_has_sent_all_that_was_due() {
        let mut direction = direction(Loss::default());
        for _ in 0..50 {
            direction.offer(frame(0, FULL));
        }
        // Not once for a third of a second.
        direction.advance(33 * TIME_NS);
        let arrivals: Vec<u64> = direction.wire.keys().map(|(at_ns, _)| *at_ns).collect();
        let expected: Vec<u64> = (1..=34).map(|n| n * TIME_NS + 1_000_000).collect();
        assert_eq!(arrivals, expected);
        assert_eq!(direction.report().waiting_packets, 16);
        assert_eq!(direction.waits.max() / TIME_NS, 33);
    }

    #[test]
    fn the_next_thing_to_do_is_the_arrival_on_the_wire_or_of_what_leaves_next() {
        let mut direction = direction(Loss::default());
        assert_eq!(direction.due_ns(), None);
        direction.offer(frame(5, FULL));
        assert_eq!(direction.due_ns(), Some(5 + TIME_NS + 1_000_000));
        direction.wire.clear();
        assert_eq!(direction.due_ns(), Some(5 + TIME_NS + 1_000_000));
        direction.advance(5 + TIME_NS);
        assert_eq!(direction.due_ns(), None);
    }

    #[test]
    fn what_the_wire_loses_takes_its_time_and_does_not_arrive() {
        let mut direction = direction(Loss {
            first: 1.0,
            next: 1.0,
        });
        for _ in 0..3 {
            direction.offer(frame(0, FULL));
        }
        direction.advance(3 * TIME_NS);
        assert_eq!((direction.lost, direction.wire.len()), (3, 0));
        assert_eq!(direction.report().sent_packets, 3);
    }

    /// A segment of a connection with this port.
    fn segment(port: u16) -> Frame {
        let builder = etherparse::PacketBuilder::ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
        let builder = builder.tcp(port, 80, 1, 1000);
        let mut bytes = Vec::new();
        builder.write(&mut bytes, &[0; FULL - 40]).unwrap();
        Frame::read(bytes, 0)
    }

    #[test]
    fn connections_share_a_rate_or_have_one_each() {
        for (lanes, last) in [(Lanes::Shared, 6), (Lanes::Each, 3)] {
            let mut direction = of_lanes(lanes, Loss::default());
            for port in [1, 2, 1, 2, 1, 2] {
                direction.offer(segment(port));
            }
            direction.advance(u64::MAX);
            let arrivals: Vec<u64> = direction.wire.keys().map(|(at_ns, _)| *at_ns).collect();
            assert!(arrivals.is_sorted(), "{arrivals:?}");
            assert_eq!(arrivals.last(), Some(&(last * TIME_NS + 1_000_000)));
            assert_eq!(direction.report().sent_packets, 6);
        }
    }

    #[test]
    fn a_loss_makes_the_next_one_likely_on_the_same_connection_alone() {
        let after_a_loss = Loss {
            first: 0.5,
            next: 1.0,
        };
        let lost = |lanes| {
            let mut direction = of_lanes(lanes, after_a_loss);
            for port in 1..=60 {
                direction.offer(segment(port));
            }
            direction.advance(u64::MAX);
            direction.lost
        };
        assert!((10..50).contains(&lost(Lanes::Each)));
        // The first loss takes all that follow.
        assert!(lost(Lanes::Shared) > 50);
    }
}
