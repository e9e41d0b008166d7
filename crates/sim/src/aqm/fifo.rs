//! One queue, first in, first out, with a limit in packets (the kernel's `pfifo`) or in bytes (`bfifo`).
//!
//! Both drop the packet that comes. With a limit in bytes a short packet, as a SYN is, often finds room where a full
//! one does not (BHD18, Section VI-A).

use weir_models::aqm::packet::Packet;
use weir_models::aqm::pool::{List, Pool};
use weir_models::aqm::queue::{Aqm, Cause, Count, Hooks, Stats, discard, sent};

/// What a FIFO holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FifoParams {
    /// At most so many packets.
    Packets(u32),
    /// At most so many bytes.
    Bytes(u32),
}

/// The discipline.
#[derive(Debug)]
pub struct Fifo<P> {
    params: FifoParams,
    list: List,
    stats: Stats,
    pool: Pool<P>,
}

impl<P> Fifo<P> {
    /// An empty one.
    pub fn new(params: FifoParams) -> Fifo<P> {
        Fifo {
            params,
            list: List::default(),
            stats: Stats::default(),
            pool: Pool::default(),
        }
    }
}

/// Whether a packet finds room.
pub(super) fn has_room(params: FifoParams, list: &List, len_bytes: u32) -> bool {
    match params {
        FifoParams::Packets(limit) => list.packets() < limit,
        FifoParams::Bytes(limit) => list.bytes().saturating_add(len_bytes) <= limit,
    }
}

impl<P: Packet> Aqm<P> for Fifo<P> {
    fn enqueue<H: Hooks<P>>(&mut self, packet: P, now_ns: u64, hooks: &mut H) {
        let len = packet.len_bytes();
        self.stats.received.add(len);
        match has_room(self.params, &self.list, len) {
            true => self.list.push(&mut self.pool, packet, now_ns),
            false => discard(&mut self.stats, hooks, packet, Cause::Full),
        }
    }

    fn dequeue<H: Hooks<P>>(&mut self, _now_ns: u64, _hooks: &mut H) -> Option<P> {
        let packet = self.list.pop(&mut self.pool).map(|(packet, _)| packet);
        sent(&mut self.stats, packet)
    }

    fn backlog(&self) -> Count {
        self.pool.count()
    }

    fn stats(&self) -> &Stats {
        &self.stats
    }

    fn state_bytes(&self) -> usize {
        size_of::<Self>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_models::aqm::testing::{Segment, World};

    #[test]
    fn a_limit_in_bytes_has_room_for_a_syn_where_a_limit_in_packets_has_none() {
        let fill = |params| {
            let (mut fifo, mut world) = (Fifo::new(params), World::new(1));
            for n in 0..12 {
                fifo.enqueue(Segment::data(1, n), 0, &mut world);
            }
            fifo.enqueue(Segment::syn(2), 0, &mut world);
            (fifo.backlog().packets, world.dropped.len())
        };
        assert_eq!(fill(FifoParams::Packets(10)), (10, 3));
        assert_eq!(fill(FifoParams::Bytes(15_100)), (11, 2));
    }
}
