//! Queues that are parts of a discipline: they share its pool and what it has counted. [`Single`] is one of them alone;
//! SPA has one for its low packets.

use super::packet::Packet;
use super::pool::Pool;
use super::queue::{Aqm, Count, Hooks, Stats, sent};

/// A part of a discipline that holds packets.
pub trait SubQueue {
    /// Takes a packet in. Packets that it drops, this one or others, go to [`Hooks::dropped`].
    fn push<P: Packet, H: Hooks<P>>(
        &mut self,
        packet: P,
        now_ns: u64,
        pool: &mut Pool<P>,
        stats: &mut Stats,
        hooks: &mut H,
    );

    /// The packet that leaves next; it may drop all that wait.
    fn pop<P: Packet, H: Hooks<P>>(
        &mut self,
        now_ns: u64,
        pool: &mut Pool<P>,
        stats: &mut Stats,
        hooks: &mut H,
    ) -> Option<P>;

    /// Whether none waits.
    fn is_empty(&self) -> bool;

    /// Bytes of its tables.
    fn table_bytes(&self) -> usize;
}

/// A discipline that has one such queue and nothing else.
#[derive(Debug)]
pub struct Single<P, Q> {
    /// The queue.
    pub queue: Q,
    pub(super) stats: Stats,
    pub(super) pool: Pool<P>,
}

impl<P, Q> Single<P, Q> {
    /// Over an empty queue.
    pub fn over(queue: Q) -> Single<P, Q> {
        Single {
            queue,
            stats: Stats::default(),
            pool: Pool::default(),
        }
    }
}

impl<P: Packet, Q: SubQueue> Aqm<P> for Single<P, Q> {
    fn enqueue<H: Hooks<P>>(&mut self, packet: P, now_ns: u64, hooks: &mut H) {
        self.stats.received.add(packet.len_bytes());
        let (pool, stats) = (&mut self.pool, &mut self.stats);
        self.queue.push(packet, now_ns, pool, stats, hooks);
    }

    fn dequeue<H: Hooks<P>>(&mut self, now_ns: u64, hooks: &mut H) -> Option<P> {
        let (pool, stats) = (&mut self.pool, &mut self.stats);
        let packet = self.queue.pop(now_ns, pool, stats, hooks);
        sent(stats, packet)
    }

    fn backlog(&self) -> Count {
        self.pool.count()
    }

    fn stats(&self) -> &Stats {
        &self.stats
    }

    fn state_bytes(&self) -> usize {
        size_of::<Self>() + self.queue.table_bytes()
    }
}
