//! Flow queues with deficit round robin and CoDel in each: the part that FQ-CoDel (RFC 8290) and `spa-fq` share.
//!
//! A flow is a hash of the 5-tuple; two flows with the same hash share a queue. A queue that gets its first packet is
//! *new*: new queues are served before old ones, for one turn. So a flow that sends less than that at a time never waits
//! behind bulk transfers.

use super::codel::{self, CodelParams, CodelVars, ListSource};
use super::packet::Packet;
use super::pool::{List, Pool};
use super::queue::{Cause, Hooks, Stats, discard};
use super::subqueue::SubQueue;

/// No flow.
const NONE: u32 = u32::MAX;
/// How many packets one overflow drops at most (the kernel's drop_batch_size): looking for the longest queue is dear.
const DROP_BATCH: u32 = 64;

/// What only the operator changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowParams {
    /// Flow queues; 1..=65536, default 1024.
    pub flows: u32,
    /// Bytes that a queue may send in its turn; default one full packet.
    pub quantum_bytes: u32,
    /// Bytes that a new queue may send before it is old; default the quantum, as RFC 8290 has it.
    pub fresh_bytes: u32,
    /// Packets in all queues together; default 10240.
    pub limit_packets: u32,
    /// Of the CoDel in each queue.
    pub codel: CodelParams,
    /// Whether other flows' packets count as behind a packet when CoDel asks if it is the last one, as in the kernel's
    /// fq_codel. If not, a flow's last packet is never dropped: its loss could only be mended by a time-out.
    pub others_are_behind: bool,
}

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
        };
        Flows {
            flows: vec![flow; params.flows as usize].into(),
            params,
            new: Turns::EMPTY,
            old: Turns::EMPTY,
            packets: 0,
        }
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
        // The hash's upper bits, scaled: no division.
        let at = ((u64::from(packet.flow_hash()) * u64::from(self.params.flows)) >> 32) as u32;
        let flow = &mut self.flows[at as usize];
        flow.list.push(pool, packet, now_ns);
        if !flow.listed {
            flow.listed = true;
            flow.deficit = self.params.fresh_bytes as i32;
            self.new.push(&mut self.flows, at);
        }
        self.packets += 1;
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
