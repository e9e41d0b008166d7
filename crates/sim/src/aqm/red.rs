//! RED (Floyd and Jacobson 1993), its adaptive form ARED (Floyd, Gummadi, Shenker 2001), and REDFavor, which spares
//! SYNs (Anelli, Harivelo, Lorion 2012). In bytes and integers, as the kernel's `include/net/red.h` has it.
//!
//! At each packet that comes RED averages the queue's length. Under the lower threshold it lets the packet in, over
//! the upper one it drops it, and between them it drops with a probability that grows with the average and with the
//! packets since the last drop, so that drops are spread evenly.
//!
//! REDFavor never drops a SYN early: a SYN is dropped only if the buffer is full.

use weir_core::aqm::Setup;
use weir_models::aqm::control::Control;
use weir_models::aqm::packet::{Packet, mark};
use weir_models::aqm::pool::{List, Pool};
use weir_models::aqm::queue::{Aqm, Cause, Count, Hooks, Stats, discard, sent};

/// How often ARED adapts its probability, ns.
const ADAPT_NS: u64 = 500_000_000;
/// Between these ARED keeps its probability, in 2^-32: 1 % and 50 %.
const MAX_P_RANGE: (u32, u32) = (u32::MAX / 100, u32::MAX / 2);

/// What only the operator changes (`struct red_parms`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RedParams {
    /// Average under which nothing is dropped early, bytes.
    pub min_bytes: u32,
    /// Average from which everything is dropped, bytes; above `min_bytes`.
    pub max_bytes: u32,
    /// Room, bytes.
    pub limit_bytes: u32,
    /// The newest length weighs 2^-`weight_log` in the average; 1..=16.
    pub weight_log: u32,
    /// Probability at `max_bytes`, in 2^-32. ARED begins with it.
    pub max_p: u32,
    /// Time of one average packet on the link, ns: so many could have left while the queue was empty.
    pub packet_ns: u64,
    /// ARED: the probability follows the average.
    pub adaptive: bool,
    /// REDFavor: SYNs are not dropped early.
    pub spare_syn: bool,
    /// Mark ECN-capable packets instead of dropping them early.
    pub ecn: bool,
}

impl RedParams {
    /// For a link, with the room of [`Setup::buffer_packets`].
    pub fn of(setup: &Setup) -> RedParams {
        // tc-red(8): limit = 4 max, max = 3 min, and the weight that a burst of (2 min + max) / 3 needs.
        let limit_bytes = setup.buffer_packets * setup.mtu_bytes;
        RedParams {
            min_bytes: limit_bytes / 12,
            max_bytes: limit_bytes / 4,
            limit_bytes,
            weight_log: 4,
            max_p: u32::MAX / 50,
            packet_ns: 1000 * 1_000_000_000 / setup.rate_bytes_per_s.max(1),
            adaptive: false,
            spare_syn: false,
            ecn: setup.ecn,
        }
    }
}

/// The state (`struct red_vars`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RedVars {
    /// Average length in bytes, shifted left by `weight_log`.
    pub average: u64,
    /// Packets since the last early drop; `None` while the average is out of the thresholds.
    pub since_drop: Option<u32>,
    /// What the next drop waits for: a random number.
    pub threshold: u32,
    /// Since when the queue is empty, ns.
    pub idle_ns: Option<u64>,
    /// Probability at `max_bytes`, in 2^-32.
    pub max_p: u32,
    /// ARED's next look, ns.
    pub adapt_at_ns: u64,
}

impl RedVars {
    /// The average as a packet finds `backlog_bytes` in the queue.
    fn look(&mut self, params: &RedParams, now_ns: u64, backlog_bytes: u32) {
        match self.idle_ns.take() {
            None => {
                let falls = self.average >> params.weight_log;
                self.average = (self.average + u64::from(backlog_bytes)).saturating_sub(falls);
            }
            Some(since_ns) => {
                let packets = now_ns.saturating_sub(since_ns) / params.packet_ns.max(1);
                self.average = decayed(self.average, params.weight_log, packets);
            }
        }
    }

    /// Whether this packet is to be dropped early (`red_action()`).
    fn drops(&mut self, params: &RedParams, random: impl FnOnce() -> u32) -> bool {
        let average = self.average >> params.weight_log;
        if average < u64::from(params.min_bytes) {
            self.since_drop = None;
            return false;
        }
        if average >= u64::from(params.max_bytes) {
            self.since_drop = None;
            return true;
        }
        let Some(since) = self.since_drop else {
            self.since_drop = Some(0);
            self.threshold = random();
            return false;
        };
        let since = since + 1;
        let over = average - u64::from(params.min_bytes);
        let step = u64::from(self.max_p / (params.max_bytes - params.min_bytes)).max(1);
        if over * u64::from(since) * step < u64::from(self.threshold) {
            self.since_drop = Some(since);
            return false;
        }
        self.since_drop = Some(0);
        self.threshold = random();
        true
    }

    /// Moves the average towards the middle of the thresholds (`red_adaptative_algo()`).
    fn adapt(&mut self, params: &RedParams, now_ns: u64) {
        if now_ns < self.adapt_at_ns {
            return;
        }
        self.adapt_at_ns = now_ns + ADAPT_NS;
        let average = self.average >> params.weight_log;
        let fifth = (params.max_bytes - params.min_bytes) / 5;
        let (low, high) = (params.min_bytes + 2 * fifth, params.min_bytes + 3 * fifth);
        let (least, most) = MAX_P_RANGE;
        if average > u64::from(high) && self.max_p <= most {
            self.max_p += least.min(self.max_p / 4);
        } else if average < u64::from(low) && self.max_p >= least {
            self.max_p = self.max_p / 10 * 9;
        }
    }
}

/// An average after so many looks at an empty queue: times (1 - 2^-`weight_log`)^`looks`, by squaring.
fn decayed(average: u64, weight_log: u32, looks: u64) -> u64 {
    const ONE: u64 = 1 << 32;
    let (mut factor, mut square, mut left) = (ONE, ONE - (ONE >> weight_log), looks);
    while left > 0 && factor > 0 {
        if left & 1 == 1 {
            factor = (factor * square) >> 32;
        }
        square = (square * square) >> 32;
        left >>= 1;
    }
    ((u128::from(average) * u128::from(factor)) >> 32) as u64
}

/// The discipline.
#[derive(Debug)]
pub struct Red<P> {
    params: RedParams,
    vars: RedVars,
    list: List,
    stats: Stats,
    pool: Pool<P>,
}

impl<P> Red<P> {
    /// An empty one.
    pub fn new(params: RedParams) -> Red<P> {
        Red {
            params,
            vars: RedVars {
                max_p: params.max_p,
                idle_ns: Some(0),
                ..RedVars::default()
            },
            list: List::default(),
            stats: Stats::default(),
            pool: Pool::default(),
        }
    }
}

impl<P: Packet> Aqm<P> for Red<P> {
    fn enqueue<H: Hooks<P>>(&mut self, mut packet: P, now_ns: u64, hooks: &mut H) {
        let len = packet.len_bytes();
        self.stats.received.add(len);
        if self.params.adaptive {
            self.vars.adapt(&self.params, now_ns);
        }
        self.vars.look(&self.params, now_ns, self.list.bytes());
        let is_spared =
            self.params.spare_syn && matches!(packet.control(), Control::Syn | Control::SynAck);
        if !is_spared && self.vars.drops(&self.params, || hooks.random()) {
            if !(self.params.ecn && mark(&mut packet)) {
                return discard(&mut self.stats, hooks, packet, Cause::Early);
            }
            self.stats.marked += 1;
        }
        if self.list.bytes().saturating_add(len) > self.params.limit_bytes {
            return discard(&mut self.stats, hooks, packet, Cause::Full);
        }
        self.list.push(&mut self.pool, packet, now_ns);
    }

    fn dequeue<H: Hooks<P>>(&mut self, now_ns: u64, _hooks: &mut H) -> Option<P> {
        let packet = self.list.pop(&mut self.pool).map(|(packet, _)| packet);
        if self.list.is_empty() && self.vars.idle_ns.is_none() {
            self.vars.idle_ns = Some(now_ns);
        }
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

    const PARAMS: RedParams = RedParams {
        min_bytes: 15_000,
        max_bytes: 45_000,
        limit_bytes: 150_000,
        weight_log: 4,
        max_p: u32::MAX / 50,
        packet_ns: 5_000_000,
        adaptive: false,
        spare_syn: false,
        ecn: false,
    };

    /// Share dropped while `bytes` wait on and on.
    fn dropped_at(bytes: u32, params: RedParams) -> f64 {
        let (mut vars, mut world) = (
            RedVars {
                max_p: params.max_p,
                ..RedVars::default()
            },
            World::new(1),
        );
        let mut dropped = 0;
        for n in 0..200_000 {
            vars.look(&params, n, bytes);
            dropped += u32::from(vars.drops(&params, || world.random()));
        }
        f64::from(dropped) / 200_000.0
    }

    #[test]
    fn the_probability_grows_between_the_thresholds() {
        assert_eq!(dropped_at(14_000, PARAMS), 0.0);
        // A drop after X packets, X even in 1..=1/p: 2p on average (Floyd and Jacobson, Section 7).
        for (bytes, p) in [
            (20_000, 0.02 / 6.0),
            (30_000, 0.01),
            (44_000, 0.02 * 29.0 / 30.0),
        ] {
            let share = dropped_at(bytes, PARAMS);
            assert!((share - 2.0 * p).abs() < 0.15 * 2.0 * p, "{bytes}: {share}");
        }
        assert!(dropped_at(46_000, PARAMS) > 0.99);
    }

    #[test]
    fn an_idle_time_ages_the_average_as_empty_looks_would() {
        for looks in [0, 1, 7, 100, 1000] {
            let mut average = 1_000_000_000u64;
            for _ in 0..looks {
                average -= average >> 4;
            }
            let (got, wanted) = (decayed(1_000_000_000, 4, looks) as f64, average as f64);
            assert!(
                (got - wanted).abs() <= wanted * 1e-4 + 20.0,
                "{looks}: {got} {wanted}"
            );
        }
    }

    #[test]
    fn red_favor_drops_no_syn_while_there_is_room() {
        for spare_syn in [false, true] {
            let params = RedParams {
                spare_syn,
                ..PARAMS
            };
            let (mut red, mut world) = (Red::new(params), World::new(3));
            for n in 0..10_000u32 {
                red.enqueue(Segment::data(1, n), u64::from(n), &mut world);
                red.enqueue(Segment::syn(2), u64::from(n), &mut world);
                if n > 30 {
                    red.dequeue(u64::from(n), &mut world);
                    red.dequeue(u64::from(n), &mut world);
                }
            }
            let syns = world.dropped.iter().filter(|(packet, _)| packet.flow == 2);
            assert_eq!(syns.count() == 0, spare_syn);
            assert!(!world.dropped.is_empty());
        }
    }

    #[test]
    fn the_adaptive_probability_follows_the_average() {
        let params = RedParams {
            adaptive: true,
            ..PARAMS
        };
        let after = |bytes: u64| {
            let mut vars = RedVars {
                max_p: params.max_p,
                average: bytes << 4,
                ..RedVars::default()
            };
            for step in 0..1000 {
                vars.adapt(&params, step * ADAPT_NS);
            }
            f64::from(vars.max_p) / f64::from(u32::MAX)
        };
        assert!((0.5..0.52).contains(&after(40_000)));
        assert!((0.009..0.01).contains(&after(20_000)));
        assert!((after(30_000) - 0.02).abs() < 1e-6);
    }
}
