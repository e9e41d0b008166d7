//! CoDel, controlled delay (RFC 8289), as `include/net/codel_impl.h` of the kernel has it.
//!
//! A queue that drains is good; a queue that stands is dropped from. If each packet of one interval has waited longer
//! than the target, CoDel drops one at the head, and then one after interval/√1, interval/√2, … until a packet has
//! waited less. [`dequeue`] is the algorithm over any source of packets; FQ-CoDel and SPA use it too.

use weir_core::aqm::CodelParams;

use super::packet::{Packet, mark};
use super::pool::{List, Pool};
use super::queue::{Cause, Hooks, Stats, discard};
use super::subqueue::{Single, SubQueue};

/// Bits that the kernel keeps of 1/√count, and by how much they are shifted to make 32.
const INV_SQRT_SHIFT: u32 = 16;
/// A pause of so many intervals makes CoDel start anew (the kernel's 16).
const FORGET_INTERVALS: u64 = 16;

/// The state of one queue (`struct codel_vars`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CodelVars {
    /// When the delay will have been over the target for an interval, ns; 0: it is not over it.
    pub first_above_ns: u64,
    /// Next drop while dropping, ns.
    pub drop_next_ns: u64,
    /// Drops since dropping began.
    pub count: u32,
    /// `count` when dropping began last.
    pub last_count: u32,
    /// 1/√count in units of 2^-16.
    pub inv_sqrt: u16,
    /// Whether it drops.
    pub dropping: bool,
}

impl Default for CodelVars {
    fn default() -> Self {
        CodelVars {
            first_above_ns: 0,
            drop_next_ns: 0,
            count: 0,
            last_count: 0,
            inv_sqrt: u16::MAX,
            dropping: false,
        }
    }
}

impl CodelVars {
    /// One step of Newton's method: inv_sqrt ← inv_sqrt (3 - count inv_sqrt²) / 2.
    fn newton_step(&mut self) {
        let inv_sqrt = u32::from(self.inv_sqrt) << INV_SQRT_SHIFT;
        let squared = (u64::from(inv_sqrt) * u64::from(inv_sqrt)) >> 32;
        let mut value = (3u64 << 32).wrapping_sub(u64::from(self.count) * squared);
        // Two bits less for the product below.
        value >>= 2;
        value = value.wrapping_mul(u64::from(inv_sqrt)) >> (32 - 2 + 1);
        self.inv_sqrt = (value >> INV_SQRT_SHIFT) as u16;
    }

    /// interval/√count after a time, ns.
    fn control_law(&self, from_ns: u64, interval_ns: u64) -> u64 {
        from_ns + ((interval_ns * u64::from(self.inv_sqrt)) >> INV_SQRT_SHIFT)
    }

    /// Whether the packet that came at `enqueued_ns` may be dropped, with so many bytes behind it.
    fn should_drop(
        &mut self,
        params: &CodelParams,
        now_ns: u64,
        enqueued_ns: u64,
        behind_bytes: u64,
    ) -> bool {
        let delay_ns = now_ns.saturating_sub(enqueued_ns);
        if delay_ns < params.target_ns || behind_bytes <= u64::from(params.mtu_bytes) {
            self.first_above_ns = 0;
            return false;
        }
        if self.first_above_ns == 0 {
            self.first_above_ns = now_ns + params.interval_ns;
            return false;
        }
        now_ns > self.first_above_ns
    }

    /// The first drop, or mark, after a time without.
    fn begin_dropping(&mut self, params: &CodelParams, now_ns: u64) {
        self.dropping = true;
        let delta = self.count.wrapping_sub(self.last_count);
        let since_ns = now_ns.wrapping_sub(self.drop_next_ns);
        if delta > 1 && since_ns < FORGET_INTERVALS * params.interval_ns {
            self.count = delta;
            self.newton_step();
        } else {
            self.count = 1;
            self.inv_sqrt = u16::MAX;
        }
        self.last_count = self.count;
        self.drop_next_ns = self.control_law(now_ns, params.interval_ns);
    }
}

/// Where [`dequeue`] takes packets from.
pub trait Source<P> {
    /// The first packet and when it came, ns.
    fn pop(&mut self) -> Option<(P, u64)>;

    /// Bytes that wait behind the packet taken last.
    fn behind_bytes(&self) -> u64;

    /// Takes a packet that is dropped.
    fn drop(&mut self, packet: P);

    /// Counts a packet that was marked.
    fn marked(&mut self);
}

/// The next packet of a source that CoDel lets through (`codel_dequeue()`).
pub fn dequeue<P: Packet, S: Source<P>>(
    params: &CodelParams,
    vars: &mut CodelVars,
    now_ns: u64,
    source: &mut S,
) -> Option<P> {
    let Some((mut packet, mut may_drop)) = judged(params, vars, now_ns, source) else {
        vars.dropping = false;
        return None;
    };
    if !vars.dropping {
        if may_drop {
            if params.ecn && mark(&mut packet) {
                source.marked();
                vars.begin_dropping(params, now_ns);
                return Some(packet);
            }
            source.drop(packet);
            let next = judged(params, vars, now_ns, source);
            vars.begin_dropping(params, now_ns);
            return next.map(|(packet, _)| packet);
        }
        return Some(packet);
    }
    if !may_drop {
        vars.dropping = false;
        return Some(packet);
    }
    while vars.dropping && now_ns >= vars.drop_next_ns {
        vars.count = vars.count.wrapping_add(1);
        vars.newton_step();
        if params.ecn && mark(&mut packet) {
            source.marked();
            vars.drop_next_ns = vars.control_law(vars.drop_next_ns, params.interval_ns);
            return Some(packet);
        }
        source.drop(packet);
        let Some(next) = judged(params, vars, now_ns, source) else {
            vars.dropping = false;
            return None;
        };
        (packet, may_drop) = next;
        match may_drop {
            true => vars.drop_next_ns = vars.control_law(vars.drop_next_ns, params.interval_ns),
            false => vars.dropping = false,
        }
    }
    Some(packet)
}

/// The first packet of a source, and whether it may be dropped.
fn judged<P, S: Source<P>>(
    params: &CodelParams,
    vars: &mut CodelVars,
    now_ns: u64,
    source: &mut S,
) -> Option<(P, bool)> {
    let Some((packet, enqueued_ns)) = source.pop() else {
        vars.first_above_ns = 0;
        return None;
    };
    let may_drop = vars.should_drop(params, now_ns, enqueued_ns, source.behind_bytes());
    Some((packet, may_drop))
}

/// A list as a source.
pub(super) struct ListSource<'a, P, H> {
    pub list: &'a mut List,
    pub pool: &'a mut Pool<P>,
    pub stats: &'a mut Stats,
    pub hooks: &'a mut H,
    /// Whether what waits in other lists of the pool is behind a packet too.
    pub others_are_behind: bool,
}

impl<P: Packet, H: Hooks<P>> Source<P> for ListSource<'_, P, H> {
    fn pop(&mut self) -> Option<(P, u64)> {
        self.list.pop(self.pool)
    }

    fn behind_bytes(&self) -> u64 {
        match self.others_are_behind {
            true => self.pool.count().bytes,
            false => u64::from(self.list.bytes()),
        }
    }

    fn drop(&mut self, packet: P) {
        discard(self.stats, self.hooks, packet, Cause::Delay);
    }

    fn marked(&mut self) {
        self.stats.marked += 1;
    }
}

/// A list with CoDel at its head: a part of a discipline.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct CodelQueue {
    pub list: List,
    pub vars: CodelVars,
}

impl CodelQueue {
    pub fn pop<P: Packet, H: Hooks<P>>(
        &mut self,
        params: &CodelParams,
        now_ns: u64,
        pool: &mut Pool<P>,
        stats: &mut Stats,
        hooks: &mut H,
    ) -> Option<P> {
        let mut source = ListSource {
            list: &mut self.list,
            pool,
            stats,
            hooks,
            others_are_behind: false,
        };
        dequeue(params, &mut self.vars, now_ns, &mut source)
    }
}

/// A CoDel queue that holds at most so many packets.
#[derive(Debug)]
pub struct LimitedCodel {
    params: CodelParams,
    limit_packets: u32,
    pub(super) queue: CodelQueue,
}

impl LimitedCodel {
    /// An empty one.
    pub fn new(params: CodelParams, limit_packets: u32) -> LimitedCodel {
        LimitedCodel {
            params,
            limit_packets,
            queue: CodelQueue::default(),
        }
    }
}

impl SubQueue for LimitedCodel {
    fn push<P: Packet, H: Hooks<P>>(
        &mut self,
        packet: P,
        now_ns: u64,
        pool: &mut Pool<P>,
        stats: &mut Stats,
        hooks: &mut H,
    ) {
        match self.queue.list.packets() < self.limit_packets {
            true => self.queue.list.push(pool, packet, now_ns),
            false => discard(stats, hooks, packet, Cause::Full),
        }
    }

    fn pop<P: Packet, H: Hooks<P>>(
        &mut self,
        now_ns: u64,
        pool: &mut Pool<P>,
        stats: &mut Stats,
        hooks: &mut H,
    ) -> Option<P> {
        self.queue.pop(&self.params, now_ns, pool, stats, hooks)
    }

    fn is_empty(&self) -> bool {
        self.queue.list.is_empty()
    }

    fn table_bytes(&self) -> usize {
        0
    }
}

/// The discipline: one queue.
pub type Codel<P> = Single<P, LimitedCodel>;

impl<P> Codel<P> {
    /// An empty one, which holds at most so many packets.
    pub fn new(params: CodelParams, limit_packets: u32) -> Codel<P> {
        Single::over(LimitedCodel::new(params, limit_packets))
    }
}

#[cfg(test)]
mod tests {
    use super::super::packet::Ecn;
    use super::super::queue::Aqm;
    use super::super::testing::{Segment, World};
    use super::*;

    const MS: u64 = 1_000_000;
    const PARAMS: CodelParams = CodelParams {
        target_ns: 5 * MS,
        interval_ns: 100 * MS,
        mtu_bytes: 1514,
        ecn: false,
    };

    /// A queue that is never empty, and each of whose packets has waited 50 ms: when it drops or marks, in ms, if it
    /// sends one packet each ms.
    fn signals(ecn: Ecn, until_ms: u64) -> Vec<u64> {
        let (mut codel, mut world) = (
            Codel::new(
                CodelParams {
                    ecn: true,
                    ..PARAMS
                },
                1000,
            ),
            World::new(1),
        );
        let mut times = Vec::new();
        for n in 0..until_ms {
            let packet = Segment {
                ecn,
                ..Segment::data(1, n as u32)
            };
            // More than leave: a drop takes one more.
            codel.enqueue(packet, n * MS, &mut world);
            codel.enqueue(packet, n * MS, &mut world);
            let now = n * MS + 50 * MS;
            let before = codel.stats().dropped_delay + codel.stats().marked;
            codel.dequeue(now, &mut world);
            if codel.stats().dropped_delay + codel.stats().marked > before {
                times.push(n);
            }
            if codel.backlog().packets > 500 {
                for _ in 0..400 {
                    codel.queue.queue.list.pop(&mut codel.pool);
                }
            }
        }
        times
    }

    /// RFC 8289, Section 5.5: after one interval the first, then interval/√count.
    #[test]
    fn drops_come_after_an_interval_and_then_by_the_control_law() {
        for ecn in [Ecn::NotEct, Ecn::Ect] {
            let times = signals(ecn, 800);
            assert!((100..=102).contains(&times[0]), "{times:?}");
            let gaps: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
            assert!(gaps.len() >= 12, "{gaps:?}");
            for (count, gap) in (1u32..).zip(gaps) {
                let wanted = 100.0 / f64::from(count).sqrt();
                // Newton's first step is 30 % off, as the kernel's. A time is a whole number of ms.
                let off = if count == 2 {
                    0.3 * wanted
                } else {
                    0.04 * wanted
                };
                assert!(
                    (gap as f64 - wanted).abs() <= off + 1.0,
                    "{count}: {gap} {wanted}"
                );
            }
        }
    }

    #[test]
    fn newton_s_steps_follow_the_square_root() {
        let mut vars = CodelVars::default();
        for count in 1..10_000u32 {
            vars.count = count;
            vars.newton_step();
            let exact = 65_536.0 / f64::from(count).sqrt();
            let off = (f64::from(vars.inv_sqrt) - exact).abs() / exact;
            assert!(off < if count < 4 { 0.3 } else { 0.03 }, "{count}: {off}");
        }
    }

    #[test]
    fn a_burst_that_drains_within_an_interval_loses_nothing() {
        let (mut codel, mut world) = (Codel::new(PARAMS, 1000), World::new(1));
        for burst in 0..50u64 {
            let from = burst * 200 * MS;
            for n in 0..90 {
                codel.enqueue(Segment::data(1, n), from, &mut world);
            }
            for n in 0..90 {
                assert!(codel.dequeue(from + n * MS, &mut world).is_some());
            }
        }
        assert_eq!(world.dropped, []);
    }

    #[test]
    fn the_last_packet_is_not_dropped_however_long_it_waited() {
        let (mut codel, mut world) = (Codel::new(PARAMS, 1000), World::new(1));
        for n in 0..100u64 {
            codel.enqueue(Segment::data(1, n as u32), n * 1000 * MS, &mut world);
            assert!(codel.dequeue((n * 1000 + 900) * MS, &mut world).is_some());
        }
        assert_eq!(codel.stats().dropped(), 0);
    }

    #[test]
    fn dropping_goes_on_where_it_stopped_if_the_pause_was_short() {
        let resumed = |pause_ms: u64| {
            let mut vars = CodelVars {
                count: 10,
                last_count: 2,
                drop_next_ns: 1000 * MS,
                ..CodelVars::default()
            };
            vars.begin_dropping(&PARAMS, (1000 + pause_ms) * MS);
            vars.count
        };
        assert_eq!(resumed(1599), 8);
        assert_eq!(resumed(1600), 1);
    }

    #[test]
    fn a_marked_packet_is_not_dropped() {
        let times = signals(Ecn::Ect, 800);
        assert!(!times.is_empty());
        let (mut codel, mut world) = (
            Codel::new(
                CodelParams {
                    ecn: true,
                    ..PARAMS
                },
                1000,
            ),
            World::new(1),
        );
        for n in 0..1000u64 {
            let packet = Segment {
                ecn: Ecn::Ect,
                ..Segment::data(1, n as u32)
            };
            codel.enqueue(packet, n * MS, &mut world);
            if n > 50 {
                codel.dequeue(n * MS, &mut world);
            }
        }
        assert_eq!(codel.stats().dropped(), 0);
        assert!(codel.stats().marked > 0);
    }
}
