//! A link: a queue, a rate, a delay, and loss on the wire.

use crate::aqm::control::SYN;
use crate::aqm::{AnyQueue, Aqm, Cause, Count, Discipline, Hooks, Packet, Setup, Stats};

use crate::segment::Segment;

/// Loss on the wire, behind the queue (RR02, Section 3): a packet is lost more often right after a lost one.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Loss {
    /// Probability after a packet that arrived, 0..=1.
    pub first: f64,
    /// Probability after a packet that was lost, 0..=1.
    pub next: f64,
}

/// What a link is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkSpec {
    /// Discipline of its queue.
    pub discipline: Discipline,
    /// Its parameters, with the rate.
    pub setup: Setup,
    /// Delay of the wire, ns.
    pub delay_ns: u64,
    /// Loss of the wire.
    pub loss: Loss,
    /// It is a shaper before a faster link, as HTB: a packet passes at once when it is its turn, and the time that the rate
    /// gives to it keeps the next one waiting. If not, a packet arrives after that time.
    pub passes_at_once: bool,
}

/// Loses packets by [`Loss`].
#[derive(Debug)]
pub struct Wire {
    loss: Loss,
    rng: fastrand::Rng,
    last_was_lost: bool,
}

impl Wire {
    /// One that has lost nothing yet; which packets it loses comes from the seed.
    pub fn new(loss: Loss, seed: u64) -> Wire {
        Wire {
            loss,
            rng: fastrand::Rng::with_seed(seed),
            last_was_lost: false,
        }
    }

    /// Whether it loses the next packet.
    pub fn loses(&mut self) -> bool {
        let share = if self.last_was_lost {
            self.loss.next
        } else {
            self.loss.first
        };
        self.last_was_lost = share > 0.0 && self.rng.f64() < share;
        self.last_was_lost
    }
}

/// Randomness of a queue, and the SYNs that it has dropped.
#[derive(Debug)]
pub struct Drops {
    rng: fastrand::Rng,
    /// SYNs and SYN/ACKs of connections that it has dropped.
    pub syns: u64,
}

impl Drops {
    /// None yet; everything random comes from the seed.
    pub fn new(seed: u64) -> Drops {
        Drops {
            rng: fastrand::Rng::with_seed(seed),
            syns: 0,
        }
    }
}

impl Hooks<Segment> for Drops {
    fn random(&mut self) -> u32 {
        self.rng.u32(..)
    }

    fn dropped(&mut self, segment: Segment, _cause: Cause) {
        self.syns += u64::from(segment.has(SYN) && segment.connection.is_some());
    }
}

/// A link at work, for any kind of packet and clock: the simulation calls it at virtual times, the emulated link of the
/// lab at those of the machine.
#[derive(Debug)]
pub struct Link<P, H> {
    spec: LinkSpec,
    queue: AnyQueue<P>,
    hooks: H,
    wire: Wire,
    is_busy: bool,
}

/// A packet that begins to leave.
#[derive(Debug, Clone, Copy)]
pub struct Departure<P> {
    /// The packet.
    pub packet: P,
    /// When it began, ns: it had waited until then.
    pub began_ns: u64,
    /// When the link is free again, ns.
    pub free_ns: u64,
    /// When it arrives, ns; `None` if the wire loses it.
    pub arrives_ns: Option<u64>,
}

impl<P: Packet, H: Hooks<P>> Link<P, H> {
    /// An idle one. `hooks` have what the queue drops; which packets the wire loses comes from the seed.
    pub fn new(spec: LinkSpec, hooks: H, seed: u64) -> Link<P, H> {
        Link {
            queue: AnyQueue::new(&spec.setup, spec.discipline),
            spec,
            hooks,
            wire: Wire::new(spec.loss, seed),
            is_busy: false,
        }
    }

    /// Takes a packet into the queue; what leaves at once, if the link was idle.
    pub fn offer(&mut self, packet: P, now_ns: u64) -> Option<Departure<P>> {
        self.queue.enqueue(packet, now_ns, &mut self.hooks);
        match self.is_busy {
            true => None,
            false => self.free(now_ns),
        }
    }

    /// The link is free: the next one leaves.
    pub fn free(&mut self, now_ns: u64) -> Option<Departure<P>> {
        let packet = self.queue.dequeue(now_ns, &mut self.hooks);
        self.is_busy = packet.is_some();
        let packet = packet?;
        let len = u64::from(packet.len_bytes());
        let free_ns = now_ns + len * 1_000_000_000 / self.spec.setup.rate_bytes_per_s;
        let sent_ns = if self.spec.passes_at_once {
            now_ns
        } else {
            free_ns
        };
        Some(Departure {
            packet,
            began_ns: now_ns,
            free_ns,
            arrives_ns: (!self.wire.loses()).then_some(sent_ns + self.spec.delay_ns),
        })
    }

    /// What its queue has counted.
    pub fn stats(&self) -> &Stats {
        self.queue.stats()
    }

    /// What waits in its queue.
    pub fn backlog(&self) -> Count {
        self.queue.backlog()
    }

    /// What the queue has called.
    pub fn hooks(&self) -> &H {
        &self.hooks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aqm::Ecn;
    use crate::segment::{SACK_BLOCKS, Side};

    fn link(passes_at_once: bool) -> Link<Segment, Drops> {
        let spec = LinkSpec {
            discipline: Discipline::Fifo,
            setup: Setup::new(150_000),
            delay_ns: 7,
            loss: Loss::default(),
            passes_at_once,
        };
        Link::new(spec, Drops::new(1), 1)
    }

    fn full() -> Segment {
        Segment {
            connection: None,
            from: Side::Server,
            flags: 0x10,
            seq: 0,
            payload: 1448,
            ack: 0,
            sack: [(0, 0); SACK_BLOCKS],
            sent_ns: 0,
            echo_ns: 0,
            ece: false,
            cwr: false,
            ecn: Ecn::NotEct,
            flow_hash: 0,
            source_hash: 0,
            destination_hash: 0,
        }
    }

    #[test]
    fn a_link_sends_at_its_rate_and_delivers_after_its_delay() {
        let mut link = link(false);
        let first = link.offer(full(), 100).unwrap();
        assert!(link.offer(full(), 100).is_none());
        // 1500 bytes at 150 kB/s are 10 ms.
        assert_eq!(first.free_ns, 10_000_100);
        assert_eq!(first.arrives_ns, Some(10_000_107));
        let second = link.free(first.free_ns).unwrap();
        assert_eq!((second.began_ns, second.free_ns), (10_000_100, 20_000_100));
        assert!(link.free(second.free_ns).is_none());
    }

    #[test]
    fn a_shaper_delivers_at_once_and_keeps_the_next_one_waiting() {
        let mut link = link(true);
        let first = link.offer(full(), 100).unwrap();
        assert_eq!((first.free_ns, first.arrives_ns), (10_000_100, Some(107)));
        assert!(link.offer(full(), 100).is_none());
    }

    #[test]
    fn the_wire_loses_more_after_a_loss() {
        let loss = Loss {
            first: 0.02,
            next: 0.4,
        };
        let mut wire = Wire::new(loss, 1);
        let lost: Vec<bool> = (0..200_000).map(|_| wire.loses()).collect();
        let after = |before: bool| {
            let pairs = lost.windows(2).filter(|pair| pair[0] == before);
            let (mut all, mut of_them) = (0.0, 0.0);
            for pair in pairs {
                all += 1.0;
                of_them += f64::from(u8::from(pair[1]));
            }
            of_them / all
        };
        assert!((after(false) - 0.02f64).abs() < 0.003);
        assert!((after(true) - 0.4f64).abs() < 0.03);
    }
}
