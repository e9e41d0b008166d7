//! SPA, SYN Priority AQM (BHD18, Section V), and what weir makes of it.
//!
//! Control segments wait in a high queue, everything else in a low one, and the high queue is always served first. The
//! SYN whose loss costs a client a second of waiting is neither dropped for the data's delay nor waits behind it.
//!
//! As the paper has it (`spa-paper`): SYN and FIN are high, and both queues are CoDel's. weir's (`spa`) differs:
//!
//! - *SYN and SYN/ACK only.* A bare FIN that overtakes the last data of its own flow looks to the other end like a
//!   loss, and costs time-outs. FIN by option.
//! - *A [`limit`](super::limit) of the high queue*, for each source and for all, of SYNs and SYN/ACKs apart. A SYN
//!   over it is demoted: it waits in a third queue, which sends one byte for each 2^[`SpaParams::demoted_log`] bytes of
//!   data, or whatever it has when nothing else waits. So a SYN flood takes the high queue's share and a ninth part of the
//!   rest, and no more; and honest SYNs over the limit, which are many where connections are short and the link is slow,
//!   do not wait for it.
//! - *Marks instead of drops* in the low queue, where the sender understands them.
//!
//! `spa-fq` has one low queue for each flow.
//!
//! A discipline keeps the order of each flow, but a control segment may overtake earlier packets of its own flow; a
//! SYN of a new connection has none.

use weir_core::aqm::{CodelParams, FlowParams, SpaParams};

use super::codel::{CodelQueue, LimitedCodel};
use super::control::Control;
use super::flows::Flows;
use super::limit::LimitVars;
use super::packet::Packet;
use super::pool::Pool;
use super::queue::{Aqm, Cause, Count, Hooks, Stats, discard, sent};
use super::subqueue::SubQueue;

/// Most bytes that the demoted queue may save up of its share, and that it may owe. More than a full packet lends it, so
/// that it loses nothing of its share.
const CREDIT_MAX: i32 = 256;

/// Which queue a packet waits in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Before all data.
    High,
    /// With the data.
    Low,
    /// A control segment over the limit.
    Demoted,
}

/// Which queue a packet belongs in. `admitted` is asked only for control segments: whether the limit lets one pass.
pub fn level_of(control: Control, fin: bool, admitted: impl FnOnce() -> bool) -> Level {
    match control.is_high(fin) {
        false => Level::Low,
        true if admitted() => Level::High,
        true => Level::Demoted,
    }
}

/// Which queue sends next, given which have packets and the demoted queue's credit in bytes; `None`: all are empty.
pub fn next_level(high: bool, low: bool, demoted: bool, credit: i32) -> Option<Level> {
    if high {
        Some(Level::High)
    } else if demoted && (!low || credit > 0) {
        Some(Level::Demoted)
    } else if low {
        Some(Level::Low)
    } else {
        None
    }
}

/// The demoted queue's credit after a packet of this queue left, of so many bytes. Asked only while the demoted queue
/// has packets.
pub fn credit_after(credit: i32, level: Level, len_bytes: u32, demoted_log: u32) -> i32 {
    match level {
        Level::High => credit,
        Level::Low => (credit + (len_bytes >> demoted_log) as i32).min(CREDIT_MAX),
        // What it sends while nothing else waits is not held against it.
        Level::Demoted => (credit - len_bytes as i32).max(-CREDIT_MAX),
    }
}

/// The discipline.
#[derive(Debug)]
pub struct Spa<P, L> {
    params: SpaParams,
    high: CodelQueue,
    demoted: CodelQueue,
    low: L,
    limit: Option<LimitVars>,
    credit: i32,
    stats: Stats,
    pool: Pool<P>,
}

/// Over one low queue.
impl<P> Spa<P, LimitedCodel> {
    /// An empty one.
    pub fn new(params: SpaParams, low: CodelParams, low_packets: u32) -> Self {
        Spa::over(params, LimitedCodel::new(low, low_packets))
    }
}

/// Over flow queues.
impl<P> Spa<P, Flows> {
    /// An empty one.
    pub fn with_flows(params: SpaParams, flows: FlowParams) -> Self {
        Spa::over(params, Flows::new(flows))
    }
}

impl<P, L> Spa<P, L> {
    fn over(params: SpaParams, low: L) -> Self {
        Spa {
            high: CodelQueue::default(),
            demoted: CodelQueue::default(),
            low,
            limit: params.limit.map(|_| LimitVars::default()),
            params,
            credit: 0,
            stats: Stats::default(),
            pool: Pool::default(),
        }
    }
}

impl<P: Packet, L: SubQueue> Spa<P, L> {
    fn level(&mut self, packet: &P, now_ns: u64) -> Level {
        level_of(packet.control(), self.params.fin, || {
            match (&self.params.limit, &mut self.limit) {
                (Some(params), Some(vars)) => {
                    let (source, len) = (packet.source_hash(), packet.len_bytes());
                    vars.admits(params, packet.control(), source, len, now_ns)
                }
                _ => true,
            }
        })
    }

    /// The packet that leaves next, while control segments wait. Not in line, so that data's way stays short.
    #[inline(never)]
    fn pop_with_control<H: Hooks<P>>(&mut self, now_ns: u64, hooks: &mut H) -> Option<P> {
        let (pool, stats) = (&mut self.pool, &mut self.stats);
        // A queue may drop its last packet and have none to send: then the next one is asked.
        loop {
            let (high, demoted) = (!self.high.list.is_empty(), !self.demoted.list.is_empty());
            let level = next_level(high, !self.low.is_empty(), demoted, self.credit)?;
            let queue = match level {
                Level::High => Some(&mut self.high),
                Level::Demoted => Some(&mut self.demoted),
                Level::Low => None,
            };
            let packet = match queue {
                Some(queue) => queue.pop(&self.params.high, now_ns, pool, stats, hooks),
                None => self.low.pop(now_ns, pool, stats, hooks),
            };
            let Some(packet) = packet else {
                continue;
            };
            if demoted {
                let (len, log) = (packet.len_bytes(), self.params.demoted_log);
                self.credit = credit_after(self.credit, level, len, log);
            }
            return sent(stats, Some(packet));
        }
    }

    /// A control segment comes. Not in line either.
    #[inline(never)]
    fn push_control<H: Hooks<P>>(&mut self, packet: P, now_ns: u64, hooks: &mut H) {
        let level = self.level(&packet, now_ns);
        let (pool, stats) = (&mut self.pool, &mut self.stats);
        let (queue, limit_packets, count) = match level {
            Level::Low => return self.low.push(packet, now_ns, pool, stats, hooks),
            Level::High => (&mut self.high, self.params.limit_packets, &mut stats.high),
            Level::Demoted => (
                &mut self.demoted,
                self.params.demoted_packets,
                &mut stats.demoted,
            ),
        };
        *count += 1;
        match queue.list.packets() < limit_packets {
            true => queue.list.push(pool, packet, now_ns),
            false => discard(stats, hooks, packet, Cause::Full),
        }
    }
}

impl<P: Packet, L: SubQueue> Aqm<P> for Spa<P, L> {
    fn enqueue<H: Hooks<P>>(&mut self, packet: P, now_ns: u64, hooks: &mut H) {
        self.stats.received.add(packet.len_bytes());
        if packet.control() != Control::None {
            return self.push_control(packet, now_ns, hooks);
        }
        let (pool, stats) = (&mut self.pool, &mut self.stats);
        self.low.push(packet, now_ns, pool, stats, hooks);
    }

    fn dequeue<H: Hooks<P>>(&mut self, now_ns: u64, hooks: &mut H) -> Option<P> {
        // One branch for both queues.
        if self.high.list.packets() | self.demoted.list.packets() != 0 {
            return self.pop_with_control(now_ns, hooks);
        }
        let (pool, stats) = (&mut self.pool, &mut self.stats);
        let packet = self.low.pop(now_ns, pool, stats, hooks);
        sent(stats, packet)
    }

    fn backlog(&self) -> Count {
        self.pool.count()
    }

    fn stats(&self) -> &Stats {
        &self.stats
    }

    fn state_bytes(&self) -> usize {
        let limit = self.limit.as_ref().map_or(0, LimitVars::table_bytes);
        size_of::<Self>() + self.low.table_bytes() + limit
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Segment, World};
    use super::*;
    use weir_core::aqm::LimitParams;

    const MS: u64 = 1_000_000;
    const CODEL: CodelParams = CodelParams {
        target_ns: 5 * MS,
        interval_ns: 100 * MS,
        mtu_bytes: 1514,
        ecn: false,
    };
    /// 2.4 Mb/s: one full packet in 5 ms.
    const RATE: u64 = 300_000;

    fn spa(limit: bool, fin: bool) -> Spa<Segment, LimitedCodel> {
        let params = SpaParams {
            fin,
            high: CODEL,
            limit_packets: 1000,
            limit: limit.then(|| LimitParams::for_rate(RATE)),
            demoted_packets: 256,
            demoted_log: 3,
        };
        Spa::new(params, CODEL, 1000)
    }

    #[test]
    fn a_syn_leaves_before_data_and_a_fin_only_by_option() {
        for fin in [false, true] {
            let (mut queue, mut world) = (spa(true, fin), World::new(1));
            for n in 0..3 {
                queue.enqueue(Segment::data(1, n), 0, &mut world);
            }
            let control = |flow, control| Segment {
                control,
                ..Segment::syn(flow)
            };
            queue.enqueue(control(2, Control::Fin), 0, &mut world);
            queue.enqueue(control(3, Control::Syn), 0, &mut world);
            let order: Vec<u32> = std::iter::from_fn(|| queue.dequeue(0, &mut world))
                .map(|packet| packet.flow)
                .collect();
            assert_eq!(
                order,
                if fin {
                    [2, 3, 1, 1, 1]
                } else {
                    [3, 1, 1, 1, 2]
                }
            );
        }
    }

    #[test]
    fn a_syn_that_is_too_long_to_be_a_control_segment_waits_with_the_data() {
        let long = super::super::control::control_of(super::super::control::SYN, 1000);
        assert_eq!(level_of(long, true, || true), Level::Low);
    }

    /// A flood at twice the link's rate beside data that never ends: each queue's share of the bytes that leave.
    fn shares(limit: bool, sources: u32) -> (f64, f64) {
        let (mut queue, mut world) = (spa(limit, false), World::new(1));
        let (mut data, mut syns, mut due_ns, mut flood) = (0u64, 0u64, 0, 0u64);
        for n in 0..20_000u32 {
            // The data keeps a short queue, as TCP does.
            while queue.low.queue.list.packets() < 4 {
                queue.enqueue(Segment::data(1_000_000, n), due_ns, &mut world);
            }
            while flood * 100_000 < due_ns {
                let source = flood as u32 % sources;
                queue.enqueue(Segment::syn(source), due_ns, &mut world);
                flood += 1;
            }
            let Some(packet) = queue.dequeue(due_ns, &mut world) else {
                continue;
            };
            let len = u64::from(packet.len);
            due_ns += len * 1_000_000_000 / RATE;
            match packet.control {
                Control::None => data += len,
                _ => syns += len,
            }
        }
        let all = (data + syns) as f64;
        (data as f64 / all, syns as f64 / all)
    }

    #[test]
    fn a_flood_gets_the_high_queue_s_share_and_the_demoted_queue_s() {
        assert!(
            shares(false, 1).0 < 0.01,
            "unlimited: {:?}",
            shares(false, 1)
        );
        let (data, _) = shares(true, 1);
        assert!((0.85..0.88).contains(&data), "one source: {data}");
        let (data, _) = shares(true, 100_000);
        assert!((0.83..0.86).contains(&data), "spoofed sources: {data}");
    }

    /// An uplink of 400 kbit/s with an upload, where 60 connections begin each second: their SYNs take 7 % of it, and the
    /// limit is 5 %. FQ-CoDel would let each wait for what is being sent.
    #[test]
    fn syns_over_the_limit_do_not_wait_for_it_while_they_are_few_beside_the_data() {
        let uplink = 50_000;
        let params = SpaParams {
            limit: Some(LimitParams::for_rate(uplink)),
            ..spa(true, false).params
        };
        let (mut queue, mut world) = (Spa::new(params, CODEL, 1000), World::new(1));
        let (mut due_ns, mut syns, mut longest_ns) = (0u64, 0u32, 0);
        while due_ns < 120_000 * MS {
            while queue.low.queue.list.packets() < 4 {
                queue.enqueue(Segment::data(1_000_000, 0), due_ns, &mut world);
            }
            while u64::from(syns) * 1000 * MS / 60 < due_ns {
                let syn = Segment {
                    number: syns,
                    ..Segment::syn(syns)
                };
                queue.enqueue(syn, u64::from(syns) * 1000 * MS / 60, &mut world);
                syns += 1;
            }
            let packet = queue.dequeue(due_ns, &mut world).unwrap();
            if packet.control == Control::Syn {
                let began_ns = u64::from(packet.number) * 1000 * MS / 60;
                longest_ns = longest_ns.max(due_ns - began_ns);
            }
            due_ns += u64::from(packet.len) * 1_000_000_000 / uplink;
        }
        assert!(queue.stats().demoted > 1000, "{}", queue.stats().demoted);
        let is_syn = |(packet, _): &(Segment, Cause)| packet.control == Control::Syn;
        assert_eq!(world.dropped.iter().filter(|one| is_syn(one)).count(), 0);
        // A full packet takes 30 ms: no more than two leave before, and a few SYNs.
        assert!(longest_ns < 70 * MS, "{longest_ns} ns");
    }

    #[test]
    fn demoted_segments_are_sent_at_once_while_nothing_else_waits() {
        let (mut queue, mut world) = (spa(true, false), World::new(1));
        for n in 0..100_000u64 {
            queue.enqueue(Segment::syn(1), n * MS / 10, &mut world);
            assert!(queue.dequeue(n * MS / 10, &mut world).is_some());
        }
        assert!(queue.stats().demoted > 90_000);
        assert_eq!(queue.stats().dropped(), 0);
        // And it owes nothing worth mentioning for that.
        assert!(queue.credit >= -CREDIT_MAX);
    }
}
