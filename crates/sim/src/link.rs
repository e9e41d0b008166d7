//! A link: a queue, a rate, a delay, and loss on the wire.

use weir_core::aqm::control::SYN;
use weir_core::aqm::{AnyQueue, Aqm, Cause, Discipline, Hooks, Packet, Setup, Stats};

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
}

/// Randomness of a link, and what its queue dropped.
#[derive(Debug)]
struct Surroundings {
    rng: fastrand::Rng,
    dropped_syns: u64,
}

impl Hooks<Segment> for Surroundings {
    fn random(&mut self) -> u32 {
        self.rng.u32(..)
    }

    fn dropped(&mut self, segment: Segment, _cause: Cause) {
        self.dropped_syns += u64::from(segment.has(SYN) && segment.connection.is_some());
    }
}

/// A link at work.
#[derive(Debug)]
pub struct Link {
    spec: LinkSpec,
    queue: AnyQueue<Segment>,
    surroundings: Surroundings,
    wire: fastrand::Rng,
    last_was_lost: bool,
    is_busy: bool,
}

/// A segment that begins to leave.
#[derive(Debug, Clone, Copy)]
pub struct Departure {
    /// When the link is free again, ns.
    pub free_ns: u64,
    /// The segment, and when it arrives, ns; `None` if the wire loses it.
    pub arrival: Option<(Segment, u64)>,
}

impl Link {
    /// An idle one; everything random in it comes from the seed.
    pub fn new(spec: LinkSpec, seed: u64) -> Link {
        Link {
            queue: spec.setup.build(spec.discipline),
            spec,
            surroundings: Surroundings {
                rng: fastrand::Rng::with_seed(seed),
                dropped_syns: 0,
            },
            wire: fastrand::Rng::with_seed(!seed),
            last_was_lost: false,
            is_busy: false,
        }
    }

    /// Takes a segment into the queue; what leaves at once, if the link was idle.
    pub fn offer(&mut self, segment: Segment, now_ns: u64) -> Option<Departure> {
        self.queue.enqueue(segment, now_ns, &mut self.surroundings);
        match self.is_busy {
            true => None,
            false => self.free(now_ns),
        }
    }

    /// The link is free: the next one leaves.
    pub fn free(&mut self, now_ns: u64) -> Option<Departure> {
        let segment = self.queue.dequeue(now_ns, &mut self.surroundings);
        self.is_busy = segment.is_some();
        let segment = segment?;
        let len = u64::from(segment.len_bytes());
        let free_ns = now_ns + len * 1_000_000_000 / self.spec.setup.rate_bytes_per_s;
        Some(Departure {
            free_ns,
            arrival: (!self.loses()).then_some((segment, free_ns + self.spec.delay_ns)),
        })
    }

    fn loses(&mut self) -> bool {
        let loss = self.spec.loss;
        let share = if self.last_was_lost {
            loss.next
        } else {
            loss.first
        };
        self.last_was_lost = share > 0.0 && self.wire.f64() < share;
        self.last_was_lost
    }

    /// What its queue has counted.
    pub fn stats(&self) -> &Stats {
        self.queue.stats()
    }

    /// SYNs and SYN/ACKs of connections that its queue has dropped.
    pub fn dropped_syns(&self) -> u64 {
        self.surroundings.dropped_syns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::{SACK_BLOCKS, Side};
    use weir_core::aqm::Ecn;

    fn link(loss: Loss) -> Link {
        Link::new(
            LinkSpec {
                discipline: Discipline::Fifo,
                setup: Setup::new(150_000),
                delay_ns: 7,
                loss,
            },
            1,
        )
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
        }
    }

    #[test]
    fn a_link_sends_at_its_rate_and_delivers_after_its_delay() {
        let mut link = link(Loss::default());
        let first = link.offer(full(), 100).unwrap();
        assert!(link.offer(full(), 100).is_none());
        // 1500 bytes at 150 kB/s are 10 ms.
        assert_eq!(first.free_ns, 10_000_100);
        assert_eq!(first.arrival.unwrap().1, 10_000_107);
        let second = link.free(first.free_ns).unwrap();
        assert_eq!(second.free_ns, 20_000_100);
        assert!(link.free(second.free_ns).is_none());
    }

    #[test]
    fn the_wire_loses_more_after_a_loss() {
        let mut link = link(Loss {
            first: 0.02,
            next: 0.4,
        });
        let lost: Vec<bool> = (0..200_000).map(|_| link.loses()).collect();
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
