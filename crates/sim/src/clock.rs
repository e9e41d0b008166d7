//! The virtual clock: events in the order of their time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Events that are due, and the time.
#[derive(Debug)]
pub struct Clock<E> {
    now_ns: u64,
    count: u64,
    events: BinaryHeap<Reverse<Due<E>>>,
}

#[derive(Debug)]
struct Due<E> {
    at_ns: u64,
    /// Events of one time come in the order in which they were set.
    order: u64,
    event: E,
}

impl<E> Due<E> {
    fn key(&self) -> (u64, u64) {
        (self.at_ns, self.order)
    }
}

impl<E> PartialEq for Due<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<E> Eq for Due<E> {}

impl<E> PartialOrd for Due<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Due<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

impl<E> Default for Clock<E> {
    fn default() -> Self {
        Clock {
            now_ns: 0,
            count: 0,
            events: BinaryHeap::new(),
        }
    }
}

impl<E> Clock<E> {
    /// The time, ns since the beginning.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Sets an event. One in the past happens now.
    pub fn set(&mut self, at_ns: u64, event: E) {
        self.count += 1;
        self.events.push(Reverse(Due {
            at_ns: at_ns.max(self.now_ns),
            order: self.count,
            event,
        }));
    }

    /// Goes on to the next event, if it is not after `until_ns`.
    pub fn next(&mut self, until_ns: u64) -> Option<E> {
        if self.events.peek()?.0.at_ns > until_ns {
            return None;
        }
        let Reverse(due) = self.events.pop()?;
        self.now_ns = due.at_ns;
        Some(due.event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_the_order_of_their_time_and_then_of_setting() {
        let mut clock = Clock::default();
        for (at, event) in [(5, 'c'), (1, 'a'), (5, 'd'), (3, 'b'), (9, 'e')] {
            clock.set(at, event);
        }
        let seen: String = std::iter::from_fn(|| clock.next(5)).collect();
        assert_eq!((seen.as_str(), clock.now_ns()), ("abcd", 5));
    }
}
