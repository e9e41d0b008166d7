//! The order in which waiting connections are released.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::abi;

/// Priorities are 1 (the highest) to this; the last one is that of connections without a class.
pub const PRIORITIES: u8 = abi::PRIORITIES as u8;

/// A waiting connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiting<T> {
    /// What the caller knows it by.
    pub item: T,
    /// Slot of its class.
    pub class: u32,
    /// Priority of its class, 1..=[`PRIORITIES`].
    pub priority: u8,
    /// When it came, on the caller's clock.
    pub since: Duration,
    /// The how manyth it was.
    pub number: u64,
}

/// The connections that wait.
#[derive(Debug, Clone)]
pub struct ReleaseOrder<T> {
    /// By priority, highest first; each in the order in which they came.
    waiting: Vec<VecDeque<Waiting<T>>>,
    by_class: BTreeMap<u32, usize>,
    /// Priorities that classes have, highest first.
    in_use: Vec<u8>,
    ageing: Option<Duration>,
    came: u64,
    len: usize,
}

impl<T: Copy> ReleaseOrder<T> {
    /// An empty queue. `priorities`: those that classes have ([`PRIORITIES`] always counts as one).
    pub fn new(priorities: &[u8], ageing: Option<Duration>) -> ReleaseOrder<T> {
        let mut order = ReleaseOrder {
            waiting: (0..PRIORITIES).map(|_| VecDeque::new()).collect(),
            by_class: BTreeMap::new(),
            in_use: Vec::new(),
            ageing: None,
            came: 0,
            len: 0,
        };
        order.change(priorities, ageing);
        order
    }

    /// Other priorities or another ageing for those that wait and those that come. A waiting connection
    /// keeps the priority that its class had when it came.
    pub fn change(&mut self, priorities: &[u8], ageing: Option<Duration>) {
        self.in_use = priorities.iter().map(|p| clamp(*p)).collect();
        self.in_use.push(PRIORITIES);
        self.in_use.sort_unstable();
        self.in_use.dedup();
        self.ageing = ageing.filter(|ageing| !ageing.is_zero());
    }

    /// A connection comes. `now` must not run backwards.
    pub fn push(&mut self, item: T, class: u32, priority: u8, now: Duration) {
        let priority = clamp(priority);
        self.waiting[usize::from(priority) - 1].push_back(Waiting {
            item,
            class,
            priority,
            since: now,
            number: self.came,
        });
        self.came += 1;
        self.len += 1;
        *self.by_class.entry(class).or_default() += 1;
    }

    /// The connection to be accepted next.
    pub fn first(&self, now: Duration) -> Option<&Waiting<T>> {
        // The first of each priority has aged most.
        let firsts = self.waiting.iter().filter_map(VecDeque::front);
        firsts.min_by_key(|w| (self.rank(w, now), w.number))
    }

    /// The connection to be accepted next; it leaves.
    pub fn pop(&mut self, now: Duration) -> Option<Waiting<T>> {
        let priority = self.first(now)?.priority;
        let taken = self.waiting[usize::from(priority) - 1].pop_front();
        taken.inspect(|w| self.left(w.class))
    }

    /// The connection that [`ReleaseOrder::pop`] has just returned was not accepted: it is the next one again.
    pub fn put_back(&mut self, w: Waiting<T>) {
        self.waiting[usize::from(w.priority) - 1].push_front(w);
        self.len += 1;
        *self.by_class.entry(w.class).or_default() += 1;
    }

    /// The connection that gives way to others; it leaves.
    pub fn shed(&mut self) -> Option<Waiting<T>> {
        let lowest = self.waiting.iter_mut().rev().find(|q| !q.is_empty())?;
        let taken = lowest.pop_back();
        taken.inspect(|w| self.left(w.class))
    }

    /// The youngest connection of a class, which gives way when the class has more than it may.
    pub fn shed_of(&mut self, class: u32) -> Option<Waiting<T>> {
        let at = |q: &VecDeque<Waiting<T>>| q.iter().rposition(|w| w.class == class);
        let (queue, at) = self
            .waiting
            .iter_mut()
            .rev()
            .find_map(|q| at(q).map(|i| (q, i)))?;
        let taken = queue.remove(at);
        taken.inspect(|w| self.left(w.class))
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many wait, by class.
    pub fn by_class(&self) -> &BTreeMap<u32, usize> {
        &self.by_class
    }

    /// The priority that the next one counts as by now: who comes and is of a higher one is before all that
    /// wait. [`PRIORITIES`] + 1 when nobody does.
    pub fn before(&self, now: Duration) -> u8 {
        let first = self.first(now);
        first.map_or(PRIORITIES + 1, |w| self.in_use[self.rank(w, now)])
    }

    /// The highest priority in use.
    pub fn highest(&self) -> u8 {
        self.in_use[0]
    }

    /// How many of a class wait.
    pub fn of_class(&self, class: u32) -> usize {
        self.by_class.get(&class).copied().unwrap_or(0)
    }

    /// How many wait that came before `w` and are still there: whom it has overtaken when it leaves.
    pub fn overtaken_by(&self, w: &Waiting<T>) -> usize {
        let before = |q: &VecDeque<Waiting<T>>| q.partition_point(|other| other.number < w.number);
        self.waiting.iter().map(before).sum()
    }

    fn left(&mut self, class: u32) {
        self.len -= 1;
        if let Some(n) = self.by_class.get_mut(&class) {
            *n -= 1;
            if *n == 0 {
                self.by_class.remove(&class);
            }
        }
    }

    /// How many priorities in use are higher than that which the connection has by now.
    fn rank(&self, w: &Waiting<T>, now: Duration) -> usize {
        let rank = self.in_use.partition_point(|p| *p < w.priority);
        let waited = now.saturating_sub(w.since);
        let risen = self
            .ageing
            .map_or(0, |ageing| waited.as_nanos() / ageing.as_nanos());
        rank.saturating_sub(usize::try_from(risen).unwrap_or(usize::MAX))
    }
}

fn clamp(priority: u8) -> u8 {
    priority.clamp(1, PRIORITIES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: Duration = Duration::from_millis(1);

    fn order(priorities: &[u8], ageing: Option<Duration>) -> ReleaseOrder<u32> {
        ReleaseOrder::new(priorities, ageing)
    }

    fn popped(order: &mut ReleaseOrder<u32>, now: Duration) -> Vec<u32> {
        std::iter::from_fn(|| order.pop(now).map(|w| w.item)).collect()
    }

    #[test]
    fn the_highest_priority_first_and_within_it_in_the_order_of_arrival() {
        let mut o = order(&[1, 5], None);
        for (item, priority) in [(0, 64), (1, 5), (2, 1), (3, 5), (4, 1)] {
            o.push(item, u32::from(priority), priority, MS * item);
        }
        assert_eq!(popped(&mut o, MS * 10_000), [2, 4, 1, 3, 0]);
    }

    #[test]
    fn after_each_ageing_a_connection_rises_to_the_next_priority_in_use() {
        let mut o = order(&[1, 5], Some(MS * 100));
        o.push(0, 0, 64, Duration::ZERO);
        o.push(1, 2, 5, MS * 120);
        o.push(2, 1, 1, MS * 130);
        // At 130 ms the first is of priority 5, before the one that came there later.
        assert_eq!(o.clone().pop(MS * 130).unwrap().item, 2);
        assert_eq!(popped(&mut o.clone(), MS * 130), [2, 0, 1]);
        // At 200 ms it is of priority 1.
        assert_eq!(popped(&mut o, MS * 200), [0, 2, 1]);
    }

    #[test]
    fn the_youngest_of_the_lowest_gives_way_even_when_the_oldest_has_aged() {
        let mut o = order(&[1], Some(MS));
        o.push(0, 0, 64, Duration::ZERO);
        o.push(1, 0, 64, MS * 900);
        o.push(2, 1, 1, MS * 901);
        assert_eq!(o.shed().unwrap().item, 1);
        assert_eq!(o.shed().unwrap().item, 0);
        assert_eq!(o.shed().unwrap().item, 2);
        assert!(o.is_empty() && o.by_class().is_empty());
    }

    #[test]
    fn a_class_over_its_limit_loses_its_youngest() {
        let mut o = order(&[1], None);
        for item in 0..4 {
            o.push(item, item % 2, 1, MS * item);
        }
        assert_eq!(o.shed_of(0).unwrap().item, 2);
        assert_eq!((o.of_class(0), o.of_class(1)), (1, 2));
        assert_eq!(popped(&mut o, MS), [0, 1, 3]);
    }

    #[derive(Debug, Clone)]
    enum Step {
        Push(u8),
        Pop,
        PopInVain,
        Shed,
        Wait(u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => prop_oneof![Just(1u8), Just(5), Just(6), Just(64)].prop_map(Step::Push),
            2 => Just(Step::Pop),
            1 => Just(Step::PopInVain),
            1 => Just(Step::Shed),
            2 => (0..400u32).prop_map(Step::Wait),
        ]
    }

    /// The same by looking at everybody: (rank, arrival) smallest is popped.
    #[derive(Default)]
    struct Model(Vec<(u8, Duration, u32)>);

    impl Model {
        fn best(&self, now: Duration, ageing: Duration) -> Option<usize> {
            let rank = |(p, since, _): &(u8, Duration, u32)| {
                let own = [1, 5, 6, 64].iter().position(|q| q == p).unwrap();
                own.saturating_sub(((now - *since).as_micros() / ageing.as_micros()) as usize)
            };
            (0..self.0.len()).min_by_key(|&i| (rank(&self.0[i]), self.0[i].2))
        }

        fn worst(&self) -> Option<usize> {
            (0..self.0.len()).max_by_key(|&i| (self.0[i].0, self.0[i].2))
        }
    }

    proptest! {
        #[test]
        fn the_order_is_that_of_looking_at_everybody(steps in prop::collection::vec(step(), 1..200)) {
            let ageing = MS * 100;
            let (mut o, mut model) = (order(&[5, 1, 6], Some(ageing)), Model::default());
            let (mut now, mut next) = (Duration::ZERO, 0);
            for step in steps {
                let (got, at) = match step {
                    Step::Push(priority) => {
                        o.push(next, 7, priority, now);
                        model.0.push((priority, now, next));
                        next += 1;
                        continue;
                    }
                    Step::Wait(ms) => {
                        now += MS * ms;
                        continue;
                    }
                    Step::PopInVain => {
                        if let Some(w) = o.pop(now) {
                            o.put_back(w);
                        }
                        continue;
                    }
                    Step::Pop => (o.pop(now), model.best(now, ageing)),
                    Step::Shed => (o.shed(), model.worst()),
                };
                let expected = at.map(|i| model.0.remove(i).2);
                prop_assert_eq!(got.map(|w| w.item), expected);
                prop_assert_eq!(o.len(), model.0.len());
                prop_assert_eq!(o.of_class(7), model.0.len());
            }
        }

        #[test]
        fn nobody_waits_longer_than_the_ageing_through_all_priorities_and_those_before_it(
            load in prop::collection::vec(prop_oneof![Just(1u8), Just(64)], 1..300)
        ) {
            // One comes and one is served each ms; the one of priority 64 that came first.
            let ageing = MS * 20;
            let mut o = order(&[1], Some(ageing));
            o.push(u32::MAX, 0, 64, Duration::ZERO);
            for (i, priority) in load.into_iter().enumerate() {
                let now = MS * i as u32;
                o.push(i as u32, 0, priority, now);
                if o.pop(now).unwrap().item == u32::MAX {
                    return Ok(());
                }
                prop_assert!(now <= ageing);
            }
        }
    }
}
