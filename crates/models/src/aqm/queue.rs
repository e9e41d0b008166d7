//! What all disciplines have in common: the trait, what they count, and why they drop.

use super::packet::Packet;

/// A queueing discipline.
///
/// `now_ns` is the time of any clock that does not go back, ns. Calls with a time before that of an earlier call are
/// safe, but their delays count as 0.
pub trait Aqm<P: Packet> {
    /// Takes a packet in. Packets that it drops, this one or others, go to [`Hooks::dropped`].
    fn enqueue<H: Hooks<P>>(&mut self, packet: P, now_ns: u64, hooks: &mut H);

    /// The packet that leaves next; `None` if none waits. May drop others before it.
    fn dequeue<H: Hooks<P>>(&mut self, now_ns: u64, hooks: &mut H) -> Option<P>;

    /// What waits.
    fn backlog(&self) -> Count;

    /// What it has counted.
    fn stats(&self) -> &Stats;

    /// Bytes of its state: parameters, variables, tables. Packets that wait and what links them are not in it, since
    /// each discipline needs as much for each.
    fn state_bytes(&self) -> usize;
}

/// What a discipline asks of its surroundings.
pub trait Hooks<P> {
    /// A random number, evenly distributed.
    fn random(&mut self) -> u32;

    /// Takes a packet that the discipline drops.
    fn dropped(&mut self, packet: P, cause: Cause);
}

/// Why a packet was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The queue had no room.
    Full,
    /// At enqueue, by RED's or PIE's probability.
    Early,
    /// At dequeue, by CoDel: it had waited too long.
    Delay,
}

/// Packets and their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Count {
    /// Packets.
    pub packets: u64,
    /// Their lengths together, bytes.
    pub bytes: u64,
}

impl Count {
    /// One packet more.
    pub fn add(&mut self, len_bytes: u32) {
        self.packets += 1;
        self.bytes += u64::from(len_bytes);
    }

    /// One packet less.
    pub fn sub(&mut self, len_bytes: u32) {
        self.packets -= 1;
        self.bytes -= u64::from(len_bytes);
    }
}

/// What a discipline has counted since it was made. Each packet that came in is sent, dropped or waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Packets that came.
    pub received: Count,
    /// Packets that left.
    pub sent: Count,
    /// Packets dropped for want of room.
    pub dropped_full: u64,
    /// Packets dropped by a probability.
    pub dropped_early: u64,
    /// Packets dropped for their delay.
    pub dropped_delay: u64,
    /// Packets marked instead of dropped.
    pub marked: u64,
    /// Packets that went to the high queue.
    pub high: u64,
    /// Control segments that did not, because a rate was used up.
    pub demoted: u64,
}

impl Stats {
    /// Packets dropped for any cause.
    pub fn dropped(&self) -> u64 {
        self.dropped_full + self.dropped_early + self.dropped_delay
    }
}

impl std::iter::Sum for Stats {
    fn sum<I: Iterator<Item = Stats>>(all: I) -> Stats {
        let both = |a: Count, b: Count| Count {
            packets: a.packets + b.packets,
            bytes: a.bytes + b.bytes,
        };
        all.fold(Stats::default(), |sum, one| Stats {
            received: both(sum.received, one.received),
            sent: both(sum.sent, one.sent),
            dropped_full: sum.dropped_full + one.dropped_full,
            dropped_early: sum.dropped_early + one.dropped_early,
            dropped_delay: sum.dropped_delay + one.dropped_delay,
            marked: sum.marked + one.marked,
            high: sum.high + one.high,
            demoted: sum.demoted + one.demoted,
        })
    }
}

/// Counts a packet that is dropped, and hands it over.
pub fn discard<P, H: Hooks<P>>(stats: &mut Stats, hooks: &mut H, packet: P, cause: Cause) {
    match cause {
        Cause::Full => stats.dropped_full += 1,
        Cause::Early => stats.dropped_early += 1,
        Cause::Delay => stats.dropped_delay += 1,
    }
    hooks.dropped(packet, cause);
}

/// Counts a packet that leaves.
pub fn sent<P: Packet>(stats: &mut Stats, packet: Option<P>) -> Option<P> {
    if let Some(packet) = &packet {
        stats.sent.add(packet.len_bytes());
    }
    packet
}
