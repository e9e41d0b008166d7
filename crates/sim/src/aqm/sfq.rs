//! Stochastic fair queueing (McKenney 1990), as the kernel's `net/sched/sch_sfq.c` has it by default: 127 packets in
//! all, 1024 hashes, turns of one quantum, and a full queue loses the newest packet of the longest flow.
//!
//! Hashes are not perturbed over time, which is the kernel's default as well: it would reorder flows.

use weir_core::aqm::SfqParams;
use weir_models::aqm::packet::Packet;
use weir_models::aqm::pool::{List, Pool};
use weir_models::aqm::queue::{Aqm, Cause, Count, Hooks, Stats, discard, sent};

/// No slot.
const NONE: u8 = u8::MAX;
/// Flows at once (SFQ_DEFAULT_FLOWS less the end of the kernel's list).
const SLOTS: usize = 127;
/// SFQ_DEFAULT_HASH_DIVISOR.
const HASHES: usize = 1024;

/// A flow that has packets.
#[derive(Debug, Clone, Copy)]
struct Slot {
    list: List,
    /// Bytes that it may still send in its turn.
    allot: i32,
    /// Its hash, to free that with the slot.
    hash: u16,
    /// The next flow in the ring of turns.
    next: u8,
}

/// The discipline.
#[derive(Debug)]
pub struct Sfq<P> {
    params: SfqParams,
    /// Slot of each hash.
    table: Box<[u8; HASHES]>,
    slots: Box<[Slot; SLOTS]>,
    /// The flow whose turn was last; the ring goes on behind it.
    tail: u8,
    stats: Stats,
    pool: Pool<P>,
}

impl<P> Sfq<P> {
    /// An empty one.
    pub fn new(params: SfqParams) -> Sfq<P> {
        let slot = Slot {
            list: List::default(),
            allot: 0,
            hash: 0,
            next: NONE,
        };
        Sfq {
            params,
            table: Box::new([NONE; HASHES]),
            slots: Box::new([slot; SLOTS]),
            tail: NONE,
            stats: Stats::default(),
            pool: Pool::default(),
        }
    }

    fn slot(&mut self, at: u8) -> &mut Slot {
        &mut self.slots[usize::from(at)]
    }

    /// Puts a flow at the end of the ring.
    fn join(&mut self, at: u8) {
        let next = match self.tail {
            NONE => at,
            tail => std::mem::replace(&mut self.slot(tail).next, at),
        };
        let quantum = self.params.quantum_bytes as i32;
        let slot = self.slot(at);
        (slot.next, slot.allot) = (next, quantum);
        self.tail = at;
    }

    /// Takes the flow behind `before` out of the ring.
    fn leave(&mut self, before: u8, at: u8) {
        let slot = *self.slot(at);
        self.table[usize::from(slot.hash)] = NONE;
        if before == at {
            self.tail = NONE;
            return;
        }
        self.slot(before).next = slot.next;
        if self.tail == at {
            self.tail = before;
        }
    }
}

impl<P: Packet> Sfq<P> {
    /// The slot of a flow; `None` if all are taken by others.
    fn slot_of(&mut self, hash: u16) -> Option<u8> {
        let at = self.table[usize::from(hash)];
        if at != NONE {
            return Some(at);
        }
        let free = self.slots.iter().position(|slot| slot.list.is_empty())? as u8;
        self.table[usize::from(hash)] = free;
        self.slot(free).hash = hash;
        Some(free)
    }

    /// Drops the newest packet of the longest flow (sfq_drop()).
    fn drop_from_longest<H: Hooks<P>>(&mut self, hooks: &mut H) {
        let lengths = self.slots.iter().map(|slot| slot.list.packets());
        let Some((longest, _)) = (0u8..).zip(lengths).max_by_key(|(_, length)| *length) else {
            return;
        };
        let slot = &mut self.slots[usize::from(longest)];
        if let Some(packet) = slot.list.pop_newest(&mut self.pool) {
            discard(&mut self.stats, hooks, packet, Cause::Full);
        }
        if self.slot(longest).list.is_empty() {
            let mut before = self.tail;
            while self.slot(before).next != longest {
                before = self.slot(before).next;
            }
            self.leave(before, longest);
        }
    }
}

impl<P: Packet> Aqm<P> for Sfq<P> {
    fn enqueue<H: Hooks<P>>(&mut self, packet: P, now_ns: u64, hooks: &mut H) {
        self.stats.received.add(packet.len_bytes());
        let hash = (packet.flow_hash() >> (32 - HASHES.ilog2())) as u16;
        let Some(at) = self.slot_of(hash) else {
            return discard(&mut self.stats, hooks, packet, Cause::Full);
        };
        let slot = &mut self.slots[usize::from(at)];
        slot.list.push(&mut self.pool, packet, now_ns);
        if slot.list.packets() == 1 {
            self.join(at);
        }
        if self.pool.count().packets > u64::from(self.params.limit_packets) {
            self.drop_from_longest(hooks);
        }
    }

    fn dequeue<H: Hooks<P>>(&mut self, _now_ns: u64, _hooks: &mut H) -> Option<P> {
        if self.tail == NONE {
            return None;
        }
        let at = loop {
            let at = self.slots[usize::from(self.tail)].next;
            let slot = &mut self.slots[usize::from(at)];
            if slot.allot > 0 {
                break at;
            }
            slot.allot += self.params.quantum_bytes as i32;
            self.tail = at;
        };
        let slot = &mut self.slots[usize::from(at)];
        let (packet, _) = slot.list.pop(&mut self.pool)?;
        slot.allot -= packet.len_bytes() as i32;
        if slot.list.is_empty() {
            self.leave(self.tail, at);
        }
        sent(&mut self.stats, Some(packet))
    }

    fn backlog(&self) -> Count {
        self.pool.count()
    }

    fn stats(&self) -> &Stats {
        &self.stats
    }

    fn state_bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.table) + size_of_val(&*self.slots)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_models::aqm::testing::{Segment, World};

    const PARAMS: SfqParams = SfqParams {
        limit_packets: 127,
        quantum_bytes: 1514,
    };

    #[test]
    fn flows_take_turns_and_the_longest_pays_for_an_overflow() {
        let (mut sfq, mut world) = (Sfq::new(PARAMS), World::new(1));
        for n in 0..120 {
            sfq.enqueue(Segment::data(1, n), 0, &mut world);
        }
        for n in 0..20 {
            sfq.enqueue(Segment::data(2, n), 0, &mut world);
        }
        assert_eq!(world.dropped.len(), 13);
        assert!(
            world
                .dropped
                .iter()
                .all(|(packet, _)| packet.flow == 1 && packet.number >= 107)
        );
        let flows: Vec<u32> = (0..20)
            .map(|_| sfq.dequeue(0, &mut world).unwrap().flow)
            .collect();
        let of_second = flows.iter().filter(|flow| **flow == 2).count();
        assert!((9..=11).contains(&of_second), "{flows:?}");
    }

    #[test]
    fn with_one_packet_each_an_overflow_still_finds_one() {
        let (mut sfq, mut world) = (
            Sfq::new(SfqParams {
                limit_packets: 5,
                ..PARAMS
            }),
            World::new(1),
        );
        for flow in 0..200 {
            sfq.enqueue(Segment::data(flow, 0), 0, &mut world);
        }
        assert_eq!(sfq.backlog().packets, 5);
        assert_eq!(world.dropped.len(), 195);
        let left = std::iter::from_fn(|| sfq.dequeue(0, &mut world)).count();
        assert_eq!((left, sfq.backlog().packets), (5, 0));
    }
}
