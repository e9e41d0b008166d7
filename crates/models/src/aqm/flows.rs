//! Flow queues with deficit round robin and CoDel in each: the part that FQ-CoDel (RFC 8290) and `spa-fq` share.
//!
//! A flow is a hash of the 5-tuple. In FQ-CoDel the hash says which queue is its own, and flows that have the same share
//! one. `spa-fq` has sets of [`WAYS`] queues, and a flow has any queue of its set that no other uses, as in CAKE: only
//! the flows beyond so many in one set share. A queue that gets its first packet is *new*: new queues are served before
//! old ones, for one turn. So a flow that sends less than that at a time never waits behind bulk transfers.

use weir_core::aqm::FlowParams;

use super::codel::{self, CodelVars, ListSource};
use super::packet::Packet;
use super::pool::{List, Pool};
use super::queue::{Cause, Hooks, Stats, discard};
use super::subqueue::SubQueue;

/// No flow.
const NONE: u32 = u32::MAX;
/// How many packets one overflow drops at most (the kernel's drop_batch_size): looking for the longest queue is dear.
const DROP_BATCH: u32 = 64;

/// Queues of a set; a power of two.
pub const WAYS: u32 = 8;

/// One flow's queue.
#[derive(Debug, Clone, Copy)]
struct Flow {
    list: List,
    vars: CodelVars,
    /// Bytes that it may still send in its turn; below 1: its turn is over.
    deficit: i32,
    /// The next flow of its turn list.
    next: u32,
    /// Whether it is in a turn list.
    listed: bool,
    /// Whether another flow of the set has come to share it. Of no meaning while it is empty.
    shared: bool,
    /// In sets: the hash of the flow whose queue it is, or was last.
    tag: u32,
}

/// Flows in the order of their turns.
#[derive(Debug, Clone, Copy)]
struct Turns {
    head: u32,
    tail: u32,
}

impl Turns {
    const EMPTY: Turns = Turns {
        head: NONE,
        tail: NONE,
    };

    fn push(&mut self, flows: &mut [Flow], at: u32) {
        flows[at as usize].next = NONE;
        match self.head {
            NONE => self.head = at,
            _ => flows[self.tail as usize].next = at,
        }
        self.tail = at;
    }

    fn pop(&mut self, flows: &[Flow]) {
        self.head = flows[self.head as usize].next;
    }
}

/// The flow queues.
#[derive(Debug)]
pub struct Flows {
    params: FlowParams,
    flows: Box<[Flow]>,
    new: Turns,
    old: Turns,
    packets: u32,
}

impl Flows {
    /// Empty ones.
    pub fn new(params: FlowParams) -> Flows {
        let flow = Flow {
            list: List::default(),
            vars: CodelVars::default(),
            deficit: 0,
            next: NONE,
            listed: false,
            shared: false,
            tag: 0,
        };
        Flows {
            flows: vec![flow; params.flows as usize].into(),
            params,
            new: Turns::EMPTY,
            old: Turns::EMPTY,
            packets: 0,
        }
    }

    /// The queue of a flow.
    fn place(&mut self, hash: u32) -> u32 {
        // The hash's upper bits, scaled: no division.
        let home = ((u64::from(hash) * u64::from(self.params.flows)) >> 32) as u32;
        match self.params.in_sets && self.flows[home as usize].tag != hash {
            true => self.place_in_set(home, hash),
            false => home,
        }
    }

    /// The same for a flow that is not at home. Not in line: most are.
    ///
    /// A flow that shares stays where it is until all that waits there has left. So it is never reordered.
    #[inline(never)]
    fn place_in_set(&mut self, home: u32, hash: u32) -> u32 {
        let mut free = NONE;
        // From the last one to the one at home: the one nearest to home wins.
        for way in (0..WAYS).rev() {
            let flow = &self.flows[(home ^ way) as usize];
            if flow.tag == hash {
                return home ^ way;
            }
            if !flow.listed {
                free = home ^ way;
            }
        }
        let at_home = &mut self.flows[home as usize];
        if free == NONE || at_home.shared && !at_home.list.is_empty() {
            at_home.shared = true;
            return home;
        }
        let flow = &mut self.flows[free as usize];
        flow.tag = hash;
        flow.shared = false;
        flow.vars = CodelVars::default();
        free
    }

    /// Drops half of the longest queue, in bytes, from its head, and at most [`DROP_BATCH`] packets (fq_codel_drop()).
    fn drop_from_longest<P: Packet, H: Hooks<P>>(
        &mut self,
        pool: &mut Pool<P>,
        stats: &mut Stats,
        hooks: &mut H,
    ) {
        let Some(longest) = self.flows.iter_mut().max_by_key(|flow| flow.list.bytes()) else {
            return;
        };
        let half = longest.list.bytes() / 2;
        let mut dropped_bytes = 0;
        for _ in 0..DROP_BATCH {
            let Some((packet, _)) = longest.list.pop(pool) else {
                return;
            };
            dropped_bytes += packet.len_bytes();
            self.packets -= 1;
            discard(stats, hooks, packet, Cause::Full);
            if dropped_bytes >= half {
                return;
            }
        }
    }

    /// Takes the first flow of a list out of it.
    fn leave(&mut self, is_new: bool) {
        let turns = if is_new { &mut self.new } else { &mut self.old };
        turns.pop(&self.flows);
    }

    /// The first flow of a list becomes the last of the old ones.
    fn requeue(&mut self, at: u32, is_new: bool) {
        self.leave(is_new);
        self.old.push(&mut self.flows, at);
    }
}

impl SubQueue for Flows {
    /// Adds a packet to its flow's queue. If all together are too many now, the longest queue loses packets.
    fn push<P: Packet, H: Hooks<P>>(
        &mut self,
        packet: P,
        now_ns: u64,
        pool: &mut Pool<P>,
        stats: &mut Stats,
        hooks: &mut H,
    ) {
        let at = self.place(packet.flow_hash());
        let flow = &mut self.flows[at as usize];
        flow.list.push(pool, packet, now_ns);
        self.packets += 1;
        if !flow.listed {
            flow.listed = true;
            flow.deficit = match self.packets > self.params.crowd_packets {
                true => self.params.crowd_bytes,
                false => self.params.fresh_bytes,
            } as i32;
            self.new.push(&mut self.flows, at);
        }
        if self.packets > self.params.limit_packets {
            self.drop_from_longest(pool, stats, hooks);
        }
    }

    /// The next packet (fq_codel_dequeue()).
    fn pop<P: Packet, H: Hooks<P>>(
        &mut self,
        now_ns: u64,
        pool: &mut Pool<P>,
        stats: &mut Stats,
        hooks: &mut H,
    ) -> Option<P> {
        loop {
            let is_new = self.new.head != NONE;
            let at = if is_new { self.new.head } else { self.old.head };
            if at == NONE {
                return None;
            }
            let flow = &mut self.flows[at as usize];
            if flow.deficit <= 0 {
                flow.deficit += self.params.quantum_bytes as i32;
                self.requeue(at, is_new);
                continue;
            }
            let waiting = flow.list.packets();
            let mut source = ListSource {
                list: &mut flow.list,
                pool,
                stats,
                hooks,
                others_are_behind: self.params.others_are_behind,
            };
            let packet = codel::dequeue(&self.params.codel, &mut flow.vars, now_ns, &mut source);
            self.packets -= waiting - flow.list.packets();
            if let Some(packet) = packet {
                flow.deficit -= packet.len_bytes() as i32;
                return Some(packet);
            }
            // An empty new queue becomes old, so that a flow is not new again with each packet (RFC 8290, 4.2).
            if is_new && self.old.head != NONE {
                self.requeue(at, is_new);
            } else {
                flow.listed = false;
                self.leave(is_new);
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.packets == 0
    }

    fn table_bytes(&self) -> usize {
        size_of_val(&*self.flows)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use weir_core::aqm::Setup;

    use super::super::fq_codel::FqCodel;
    use super::super::queue::Aqm;
    use super::super::testing::{Segment, World};
    use super::*;

    /// Segment::flow_hash() of this many times a number is the number.
    const OF_HASH: u32 = 0x0e8b_2f51;

    fn queue(in_sets: bool) -> FqCodel<Segment> {
        FqCodel::new(FlowParams {
            in_sets,
            // One packet in a turn.
            fresh_bytes: 1500,
            ..Setup::new(300_000).own_flows()
        })
    }

    fn data(hash: u32, number: u32) -> Segment {
        Segment::data(hash.wrapping_mul(OF_HASH), number)
    }

    /// The flows of the first packets to leave, of as many flows that are at home in one queue.
    fn first(in_sets: bool, flows: u32) -> Vec<u32> {
        let (mut queue, mut world) = (queue(in_sets), World::new(1));
        for flow in 1..=flows {
            for number in 0..4 {
                queue.enqueue(data(flow, number), 0, &mut world);
            }
        }
        let next = |_| queue.dequeue(0, &mut world).map(|one| one.flow_hash());
        (0..flows).filter_map(next).collect()
    }

    #[test]
    fn flows_of_one_home_have_a_queue_each_while_their_set_has_room() {
        assert_eq!(first(false, 4), [1, 1, 1, 1]);
        assert_eq!(first(true, 8), [1, 2, 3, 4, 5, 6, 7, 8]);
        // The ninth waits behind the first one.
        assert_eq!(first(true, 9), [1, 2, 3, 4, 5, 6, 7, 8, 1]);
    }

    #[test]
    fn a_flow_finds_its_queue_again_though_one_nearer_to_home_is_free() {
        let (mut queue, mut world) = (queue(true), World::new(1));
        queue.enqueue(data(1, 0), 0, &mut world);
        queue.enqueue(data(2, 0), 0, &mut world);
        queue.enqueue(data(2, 1), 0, &mut world);
        // The first flow's queue is empty and has no turn.
        let [one, two] = [(); 2].map(|()| queue.dequeue(0, &mut world).unwrap());
        assert_eq!((one.flow_hash(), two.flow_hash()), (1, 2));
        queue.enqueue(data(2, 2), 0, &mut world);
        let left = std::iter::from_fn(|| queue.dequeue(0, &mut world));
        assert_eq!(left.map(|one| one.number).collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn while_many_packets_wait_a_new_flow_sends_less_before_it_is_old() {
        let first_of_new = |waiting| {
            let params = Setup::new(300_000).own_flows();
            let (mut queue, mut world) = (FqCodel::new(params), World::new(1));
            for number in 0..waiting {
                queue.enqueue(data(1 + number % 2, number), 0, &mut world);
            }
            for _ in 0..5 {
                queue.dequeue(0, &mut world);
            }
            for number in 0..3 {
                queue.enqueue(data(9, number), 0, &mut world);
            }
            let next = |_| queue.dequeue(0, &mut world).map(|one| one.flow_hash());
            (0..3).filter_map(next).collect::<Vec<_>>()
        };
        // Two fifths of the room are 23 packets.
        assert_eq!(first_of_new(27), [9, 9, 2]);
        assert_eq!(first_of_new(28), [9, 2, 9]);
    }

    /// Of one set, more flows than it has queues: they come, share, and go.
    #[test]
    fn no_flow_is_reordered_in_a_set_that_is_full_now_and_then() {
        let (mut queue, mut world) = (queue(true), World::new(1));
        let (mut sent, mut shared) = (HashMap::new(), 0);
        for number in 0..100_000u32 {
            // Queues of two homes, with phases of more packets than leave, and of fewer.
            let random = world.random();
            let now_ns = u64::from(number) * 1000;
            let fills = world.random() % 100 < if number & 512 == 0 { 70 } else { 30 };
            if fills {
                let packet = data(((random % 2) << 22) | ((random >> 8) % 8), number);
                queue.enqueue(packet, now_ns, &mut world);
            } else if let Some(packet) = queue.dequeue(now_ns, &mut world) {
                let before = sent.insert(packet.flow, packet.number);
                assert!(before < Some(packet.number), "{packet:?} {before:?}");
            }
            let flows = queue.queue.flows.iter();
            shared += flows.filter(|flow| flow.shared).count();
        }
        assert!(shared > 1000, "{shared}");
    }
}
