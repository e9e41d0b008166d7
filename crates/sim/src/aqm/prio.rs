//! Two FIFOs, control segments first: "SYN Prio" and "SYN/FIN Prio" of BHD18, Table III. The high FIFO has no limit
//! on its share of the link; [`weir_models::aqm::spa`] has.

use super::fifo::{FifoParams, has_room};
use weir_models::aqm::packet::Packet;
use weir_models::aqm::pool::{List, Pool};
use weir_models::aqm::queue::{Aqm, Cause, Count, Hooks, Stats, discard, sent};

/// What the two FIFOs hold, and what comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrioParams {
    /// Of each FIFO.
    pub limit: FifoParams,
    /// FIN first as well.
    pub fin: bool,
}

/// The discipline.
#[derive(Debug)]
pub struct Prio<P> {
    params: PrioParams,
    high: List,
    low: List,
    stats: Stats,
    pool: Pool<P>,
}

impl<P> Prio<P> {
    /// An empty one.
    pub fn new(params: PrioParams) -> Prio<P> {
        Prio {
            params,
            high: List::default(),
            low: List::default(),
            stats: Stats::default(),
            pool: Pool::default(),
        }
    }
}

impl<P: Packet> Aqm<P> for Prio<P> {
    fn enqueue<H: Hooks<P>>(&mut self, packet: P, now_ns: u64, hooks: &mut H) {
        let len = packet.len_bytes();
        self.stats.received.add(len);
        let is_high = packet.control().is_high(self.params.fin);
        self.stats.high += u64::from(is_high);
        let list = if is_high {
            &mut self.high
        } else {
            &mut self.low
        };
        match has_room(self.params.limit, list, len) {
            true => list.push(&mut self.pool, packet, now_ns),
            false => discard(&mut self.stats, hooks, packet, Cause::Full),
        }
    }

    fn dequeue<H: Hooks<P>>(&mut self, _now_ns: u64, _hooks: &mut H) -> Option<P> {
        let first = self.high.pop(&mut self.pool);
        let packet = first.or_else(|| self.low.pop(&mut self.pool));
        sent(&mut self.stats, packet.map(|(packet, _)| packet))
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
