//! CAKE (Høiland-Jørgensen, Täht, Morton 2018), as far as it is a queue: deficit round robin over flows that shares by
//! hosts first, and COBALT in each flow, as the kernel's `net/sched/sch_cake.c` has it by default. It is here to be
//! compared with; `weir shape` does not install it.
//!
//! Left out: the shaper, since the link has the rate; the tins, since all traffic is of one class; the filter for ACKs
//! and `ingress`, which are off by default.
//!
//! COBALT is CoDel that does not start anew: its count falls as it has risen. BLUE beside it drops with a probability
//! that rises with each overflow, for flows that no single drop slows down. In a queue where nothing was dropped before, the
//! kernel's does not wait for an interval: its 1/sqrt(count) is 0 until count has changed.

use std::collections::VecDeque;

use weir_core::aqm::Setup;
use weir_models::aqm::packet::{Packet, mark};
use weir_models::aqm::pool::{List, Pool};
use weir_models::aqm::queue::{Cause, Hooks, Stats, discard};
use weir_models::aqm::subqueue::{Single, SubQueue};

/// Flow queues, and hosts of each side.
const FLOWS: u32 = 1024;
/// So many queues are a set. A flow has any of that set which no other flow uses.
const WAYS: usize = 8;
const HOSTS: u32 = 1024;
/// By how much BLUE's probability rises and falls, in 2^-32.
const BLUE_UP: u32 = 1 << 24;
const BLUE_DOWN: u32 = 1 << 20;
/// What a packet takes of the room besides its bytes: the kernel counts memory.
const SKB_BYTES: u32 = 256;
const SKB_TAIL_BYTES: u32 = 320;

/// What only the operator changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CakeParams {
    /// Delay that may stand, ns.
    pub target_ns: u64,
    /// How long it must stand before the first drop, ns.
    pub interval_ns: u64,
    /// Time of a full packet on the link, ns.
    pub packet_ns: u64,
    /// Bytes that a flow alone on its hosts may send in its turn.
    pub quantum_bytes: u32,
    /// Room, bytes of the kernel's memory.
    pub room_bytes: u64,
}

impl CakeParams {
    /// CAKE as the kernel has it by default (cake_set_rate()), with a target like `spa-fq`'s.
    pub fn of(setup: &Setup) -> CakeParams {
        const NORMAL_TARGET_NS: u64 = 5_000_000;
        let (packet_ns, rate) = (setup.packet_ns(), setup.rate_bytes_per_s);
        let target_ns = NORMAL_TARGET_NS.max(packet_ns * 3 / 2);
        CakeParams {
            target_ns,
            interval_ns: (100_000_000 + target_ns - NORMAL_TARGET_NS).max(2 * target_ns),
            packet_ns,
            quantum_bytes: (rate >> 12).clamp(300, 1514) as u32,
            // Four times what the link carries in 100 ms, and at least 4 MiB.
            room_bytes: (rate / 10 * 4).max(4 << 20),
        }
    }
}

/// The state of COBALT in one flow.
#[derive(Debug, Clone, Copy, Default)]
struct Cobalt {
    count: u32,
    /// The next drop while dropping; else until when the flow is remembered, ns.
    drop_next_ns: u64,
    dropping: bool,
    /// Whether the count has changed since the queue was made.
    has_counted: bool,
    /// BLUE's probability, in 2^-32, and when it changed last, ns.
    probability: u32,
    changed_ns: u64,
}

impl Cobalt {
    fn control_law(&self, from_ns: u64, params: &CakeParams) -> u64 {
        if !self.has_counted {
            return from_ns;
        }
        let divisor = f64::from(self.count.max(1)).sqrt();
        from_ns + (params.interval_ns as f64 / divisor) as u64
    }

    fn is_due(&self, now_ns: u64) -> bool {
        self.count > 0 && now_ns >= self.drop_next_ns
    }

    /// One drop less, and the time of the next.
    fn decay(&mut self, params: &CakeParams) {
        self.count -= 1;
        self.has_counted = true;
        self.drop_next_ns = self.control_law(self.drop_next_ns, params);
    }

    /// The room was exceeded, and a packet of this flow was dropped.
    fn full(&mut self, params: &CakeParams, now_ns: u64) {
        if now_ns.saturating_sub(self.changed_ns) > params.target_ns {
            self.probability = self.probability.saturating_add(BLUE_UP);
            self.changed_ns = now_ns;
        }
        self.dropping = true;
        self.drop_next_ns = now_ns;
        self.count = self.count.max(1);
    }

    /// The flow's queue was empty when its turn came.
    fn empty(&mut self, params: &CakeParams, now_ns: u64) {
        if self.probability > 0 && now_ns.saturating_sub(self.changed_ns) > params.target_ns {
            self.probability = self.probability.saturating_sub(BLUE_DOWN);
            self.changed_ns = now_ns;
        }
        self.dropping = false;
        if self.is_due(now_ns) {
            self.decay(params);
        }
    }

    fn is_at_rest(&self, now_ns: u64) -> bool {
        self.probability == 0 && self.count == 0 && now_ns >= self.drop_next_ns
    }

    /// Whether a packet that has waited so long is to be dropped; `signal` marks it, if it can be marked.
    fn drops(
        &mut self,
        params: &CakeParams,
        now_ns: u64,
        waited_ns: u64,
        signal: impl FnOnce() -> bool,
        random: impl FnOnce() -> u32,
    ) -> bool {
        let is_over = waited_ns > params.target_ns && waited_ns > params.packet_ns * 4;
        let is_due = self.is_due(now_ns);
        let mut is_late = now_ns > self.drop_next_ns;
        if is_over && !self.dropping {
            self.drop_next_ns = self.control_law(now_ns, params);
        }
        self.dropping = is_over;
        if is_over {
            self.count = self.count.max(1);
        }
        let mut drops = false;
        if is_due && self.dropping {
            drops = !signal();
            self.count = self.count.saturating_add(1);
            self.has_counted = true;
            self.drop_next_ns = self.control_law(self.drop_next_ns, params);
            is_late = now_ns > self.drop_next_ns;
        } else if is_due {
            while self.is_due(now_ns) {
                self.decay(params);
            }
            is_late = now_ns > self.drop_next_ns;
        }
        drops |= self.probability > 0 && random() < self.probability;
        // While it does not drop, this is how long the flow is remembered.
        if self.count == 0 {
            self.drop_next_ns = now_ns + params.interval_ns;
        } else if is_late && !drops {
            self.drop_next_ns = now_ns;
        }
        drops
    }
}

/// Where a flow is in the turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Set {
    /// Nowhere.
    None,
    /// It has begun, and has not used up its first turn.
    Sparse,
    /// The same, but its turn is over and it has nothing to send.
    SparseWait,
    /// It has more to send than its turn lets it.
    Bulk,
    /// It has nothing to send, and COBALT remembers it.
    Decaying,
}

#[derive(Debug, Clone, Copy)]
struct Flow {
    list: List,
    cobalt: Cobalt,
    set: Set,
    deficit: i32,
    /// The hash of the flow that has it, or had it last.
    tag: u32,
    /// Its source and its destination.
    hosts: [usize; 2],
}

/// The queue.
#[derive(Debug)]
pub struct Flows {
    params: CakeParams,
    flows: Box<[Flow]>,
    /// Bulk flows of each source, and of each destination.
    loads: [Box<[u32]>; 2],
    new: VecDeque<usize>,
    old: VecDeque<usize>,
    decaying: VecDeque<usize>,
    packets: u32,
    used_bytes: u64,
}

/// The discipline.
pub type Cake<P> = Single<P, Flows>;

/// An empty one.
pub fn new<P>(params: CakeParams) -> Cake<P> {
    let flow = Flow {
        list: List::default(),
        cobalt: Cobalt::default(),
        set: Set::None,
        deficit: 0,
        tag: 0,
        hosts: [0; 2],
    };
    let loads = || vec![0; HOSTS as usize].into_boxed_slice();
    Single::over(Flows {
        params,
        flows: vec![flow; FLOWS as usize].into(),
        loads: [loads(), loads()],
        new: VecDeque::new(),
        old: VecDeque::new(),
        decaying: VecDeque::new(),
        packets: 0,
        used_bytes: 0,
    })
}

/// The hash's upper bits, scaled.
fn index(hash: u32, places: u32) -> usize {
    ((u64::from(hash) * u64::from(places)) >> 32) as usize
}

/// What a packet takes of the room, bytes.
fn memory_bytes(len_bytes: u32) -> u64 {
    u64::from((len_bytes + SKB_TAIL_BYTES).next_power_of_two() + SKB_BYTES)
}

impl Flows {
    /// The queue of a flow (cake_hash()).
    fn place(&self, hash: u32) -> usize {
        let at = hash as usize % self.flows.len();
        let set = at - at % WAYS;
        let mut ways = (at..at + WAYS).map(|way| set + way % WAYS);
        ways.clone()
            .find(|way| self.flows[*way].tag == hash)
            .or_else(|| ways.find(|way| self.flows[*way].set == Set::None))
            .unwrap_or(at)
    }

    /// What a flow may send in its turn: its share of the host that has more flows to serve.
    fn quantum(&self, at: usize, random: u32) -> i32 {
        let [source, destination] = self.flows[at].hosts;
        let load = self.loads[0][source].max(self.loads[1][destination]).max(1);
        let share = u64::from(self.params.quantum_bytes) * u64::from(65_535 / load);
        // Rounded up as often as it should be.
        ((share + u64::from(random >> 16)) >> 16) as i32
    }

    fn enter_bulk(&mut self, at: usize) {
        self.flows[at].set = Set::Bulk;
        for (loads, host) in self.loads.iter_mut().zip(self.flows[at].hosts) {
            loads[host] += 1;
        }
    }

    /// Out of the bulk flows, if it is one.
    fn leave_bulk(&mut self, at: usize, set: Set) {
        if std::mem::replace(&mut self.flows[at].set, set) == Set::Bulk {
            for (loads, host) in self.loads.iter_mut().zip(self.flows[at].hosts) {
                loads[host] -= 1;
            }
        }
    }

    /// A flow has got a packet.
    fn wake(&mut self, at: usize, random: u32) {
        match self.flows[at].set {
            Set::SparseWait => return self.enter_bulk(at),
            Set::Sparse | Set::Bulk => return,
            Set::Decaying => self.decaying.retain(|flow| *flow != at),
            Set::None => {}
        }
        self.new.push_back(at);
        self.flows[at].set = Set::Sparse;
        self.flows[at].deficit = self.quantum(at, random);
    }

    fn take<P: Packet>(&mut self, at: usize, pool: &mut Pool<P>) -> Option<(P, u64)> {
        let (packet, enqueued_ns) = self.flows[at].list.pop(pool)?;
        self.packets -= 1;
        self.used_bytes -= memory_bytes(packet.len_bytes());
        Some((packet, enqueued_ns))
    }

    fn drop_from_longest<P: Packet, H: Hooks<P>>(
        &mut self,
        now_ns: u64,
        pool: &mut Pool<P>,
        stats: &mut Stats,
        hooks: &mut H,
    ) {
        let flows = self.flows.iter().enumerate();
        let Some((at, _)) = flows.max_by_key(|(_, flow)| flow.list.bytes()) else {
            return;
        };
        if let Some((packet, _)) = self.take(at, pool) {
            self.flows[at].cobalt.full(&self.params, now_ns);
            discard(stats, hooks, packet, Cause::Full);
        }
    }

    /// The list whose first flow has its turn.
    fn turn(&mut self, is_first: bool) -> &mut VecDeque<usize> {
        if is_first && !self.decaying.is_empty() {
            &mut self.decaying
        } else if !self.new.is_empty() {
            &mut self.new
        } else if !self.old.is_empty() {
            &mut self.old
        } else {
            &mut self.decaying
        }
    }

    /// The turn of a flow, already out of its list, is over.
    fn end_turn(&mut self, at: usize, random: u32) {
        if self.flows[at].set == Set::Sparse {
            match self.flows[at].list.is_empty() {
                false => self.enter_bulk(at),
                true => self.flows[at].set = Set::SparseWait,
            }
        }
        self.flows[at].deficit += self.quantum(at, random);
        self.old.push_back(at);
    }

    /// A flow, already out of its list, has nothing to send.
    fn rest(&mut self, at: usize, now_ns: u64) {
        self.flows[at].cobalt.empty(&self.params, now_ns);
        if self.flows[at].cobalt.is_at_rest(now_ns) {
            self.leave_bulk(at, Set::None);
        } else {
            self.leave_bulk(at, Set::Decaying);
            self.decaying.push_back(at);
        }
    }
}

impl SubQueue for Flows {
    fn push<P: Packet, H: Hooks<P>>(
        &mut self,
        packet: P,
        now_ns: u64,
        pool: &mut Pool<P>,
        stats: &mut Stats,
        hooks: &mut H,
    ) {
        let at = self.place(packet.flow_hash());
        let flow = &mut self.flows[at];
        flow.tag = packet.flow_hash();
        if matches!(flow.set, Set::None | Set::Decaying) {
            let hosts = [packet.source_hash(), packet.destination_hash()];
            flow.hosts = hosts.map(|hash| index(hash, HOSTS));
        }
        self.packets += 1;
        self.used_bytes += memory_bytes(packet.len_bytes());
        flow.list.push(pool, packet, now_ns);
        self.wake(at, hooks.random());
        while self.used_bytes > self.params.room_bytes {
            self.drop_from_longest(now_ns, pool, stats, hooks);
        }
    }

    /// The next packet (cake_dequeue()).
    fn pop<P: Packet, H: Hooks<P>>(
        &mut self,
        now_ns: u64,
        pool: &mut Pool<P>,
        stats: &mut Stats,
        hooks: &mut H,
    ) -> Option<P> {
        let mut is_first = true;
        while self.packets > 0 {
            let at = *self.turn(is_first).front()?;
            if self.flows[at].deficit <= 0 {
                self.turn(is_first).pop_front();
                is_first = false;
                self.end_turn(at, hooks.random());
                continue;
            }
            while let Some((mut packet, enqueued_ns)) = self.take(at, pool) {
                let is_last = self.flows[at].list.is_empty();
                let mut is_marked = false;
                let drops = self.flows[at].cobalt.drops(
                    &self.params,
                    now_ns,
                    now_ns.saturating_sub(enqueued_ns),
                    || {
                        is_marked = mark(&mut packet);
                        is_marked
                    },
                    || hooks.random(),
                );
                stats.marked += u64::from(is_marked);
                // A flow's last packet is never dropped.
                if !drops || is_last {
                    self.flows[at].deficit -= packet.len_bytes() as i32;
                    return Some(packet);
                }
                discard(stats, hooks, packet, Cause::Delay);
            }
            self.turn(is_first).pop_front();
            is_first = false;
            self.rest(at, now_ns);
        }
        None
    }

    fn is_empty(&self) -> bool {
        self.packets == 0
    }

    fn table_bytes(&self) -> usize {
        let loads = self.loads.iter().map(|loads| size_of_val(&**loads));
        size_of_val(&*self.flows) + loads.sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_models::aqm::queue::Aqm;
    use weir_models::aqm::testing::{Segment, World};

    const MS: u64 = 1_000_000;
    /// 10 Mb/s.
    const PARAMS: CakeParams = CakeParams {
        target_ns: 5 * MS,
        interval_ns: 100 * MS,
        packet_ns: 1_211_200,
        quantum_bytes: 305,
        room_bytes: 4 << 20,
    };

    fn order(queue: &mut Cake<Segment>, world: &mut World, count: usize) -> Vec<u32> {
        let next = |_| queue.dequeue(MS, world).map(|packet| packet.flow);
        (0..count).filter_map(next).collect()
    }

    #[test]
    fn a_sparse_flow_leaves_before_bulk_and_bulk_flows_take_turns() {
        let (mut queue, mut world) = (new(PARAMS), World::new(1));
        for n in 0..20 {
            queue.enqueue(Segment::data(1, n), 0, &mut world);
            queue.enqueue(Segment::data(2, n), 0, &mut world);
        }
        let mut first = order(&mut queue, &mut world, 10);
        first.sort_unstable();
        assert_eq!(first, [1, 1, 1, 1, 1, 2, 2, 2, 2, 2]);
        queue.enqueue(Segment::syn(3), 0, &mut world);
        assert_eq!(order(&mut queue, &mut world, 1), [3]);
    }

    /// Four flows of one source against one of another: half for each source.
    #[test]
    fn hosts_share_before_flows_do() {
        let (mut queue, mut world) = (new(PARAMS), World::new(1));
        for n in 0..200 {
            for flow in 1..=4 {
                let packet = Segment {
                    source: Some(7),
                    ..Segment::data(flow, n)
                };
                queue.enqueue(packet, 0, &mut world);
            }
            queue.enqueue(Segment::data(5, n), 0, &mut world);
        }
        let left = order(&mut queue, &mut world, 200);
        let of_fifth = left.iter().filter(|flow| **flow == 5).count();
        assert!((90..=110).contains(&of_fifth), "{of_fifth}");
    }

    /// The control law is CoDel's, and after a pause the count falls as it has risen.
    #[test]
    fn drops_come_after_an_interval_and_their_count_decays() {
        let used = Cobalt {
            has_counted: true,
            ..Cobalt::default()
        };
        let (mut cobalt, mut at_ms) = (used, Vec::new());
        let ask = |cobalt: &mut Cobalt, ms: u64, waited_ms: u64| {
            cobalt.drops(&PARAMS, ms * MS, waited_ms * MS, || false, || 0)
        };
        // Before a queue stands, COBALT has seen it without delay.
        assert!(!ask(&mut cobalt, 0, 0));
        for ms in 1..600 {
            if ask(&mut cobalt, ms, 50) {
                at_ms.push(ms);
            }
        }
        let gaps: Vec<u64> = at_ms.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!((100..=102).contains(&at_ms[0]), "{at_ms:?}");
        for (count, gap) in (2u32..).zip(&gaps) {
            let wanted = 100.0 / f64::from(count).sqrt();
            assert!((*gap as f64 - wanted).abs() <= 1.5, "{gap} {wanted}");
        }
        let before = cobalt.count;
        for ms in 600..800 {
            assert!(!ask(&mut cobalt, ms, 1));
        }
        assert!(
            cobalt.count > 0 && cobalt.count < before,
            "{}",
            cobalt.count
        );
    }

    #[test]
    fn in_a_queue_where_nothing_was_dropped_before_the_first_drop_comes_at_once() {
        let mut cobalt = Cobalt::default();
        let mut ask = |ms: u64| cobalt.drops(&PARAMS, ms * MS, 50 * MS, || false, || 0);
        let first = (1..600).find(|ms| ask(*ms));
        assert_eq!(first, Some(2));
        let second = (3..600).find(|ms| ask(*ms)).unwrap();
        assert!((70..=74).contains(&(second - 2)), "{second}");
    }

    #[test]
    fn flows_of_one_set_have_queues_of_their_own_while_it_has_some() {
        let (mut queue, mut world) = (new(PARAMS), World::new(1));
        // The hash of flow n is n times an odd number: these have the same lower ten bits.
        for n in 0..8 {
            queue.enqueue(Segment::data(n * FLOWS, 0), 0, &mut world);
        }
        let used = |queue: &Cake<Segment>| {
            let flows = queue.queue.flows.iter();
            flows.filter(|flow| !flow.list.is_empty()).count()
        };
        assert_eq!(used(&queue), 8);
        queue.enqueue(Segment::data(8 * FLOWS, 0), 0, &mut world);
        assert_eq!(used(&queue), 8);
    }

    #[test]
    fn what_does_not_slow_down_is_dropped_from_when_the_room_is_used_up() {
        let params = CakeParams {
            room_bytes: 100 << 10,
            ..PARAMS
        };
        let (mut queue, mut world) = (new(params), World::new(1));
        for n in 0..500 {
            queue.enqueue(Segment::data(1, n), u64::from(n) * MS, &mut world);
            if n % 10 == 0 {
                queue.enqueue(Segment::syn(2), u64::from(n) * MS, &mut world);
                queue.dequeue(u64::from(n) * MS, &mut world);
                queue.dequeue(u64::from(n) * MS, &mut world);
            }
        }
        assert!(!world.dropped.is_empty());
        assert!(world.dropped.iter().all(|(packet, _)| packet.flow == 1));
        assert!(queue.backlog().packets <= (100 << 10) / 2304 + 1);
    }
}
