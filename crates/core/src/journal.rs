//! What happened, one after the other, in bounded memory: a number for each, and a queue for each crowd, so that what
//! comes in crowds displaces neither what is rare nor another crowd.

use std::collections::VecDeque;
use std::iter::Peekable;

/// Entries of each crowd that are kept at most.
pub const KEPT: usize = 1024;

/// Which entries an entry displaces when there are too many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crowd {
    /// Those that are rare.
    None,
    /// Clients that are refused.
    Refusals,
    /// Workloads that come and go.
    Workloads,
}

/// As many as there are of [`Crowd`].
const CROWDS: usize = 3;

/// A journal of entries, each with a number from 1 on, without gaps.
#[derive(Debug, Clone)]
pub struct Journal<E> {
    /// The number of the last entry; 0: there was none.
    last: u64,
    queues: [VecDeque<(u64, E)>; CROWDS],
}

/// Entries that were asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read<'a, E> {
    /// With their numbers, the oldest first.
    pub entries: Vec<(u64, &'a E)>,
    /// Entries that were to be among them and are not kept any more.
    pub missed: u64,
    /// The number of the last one, or the one that was asked for.
    pub last: u64,
    /// Whether there are more.
    pub more: bool,
}

impl<E> Default for Journal<E> {
    fn default() -> Journal<E> {
        Journal {
            last: 0,
            queues: std::array::from_fn(|_| VecDeque::new()),
        }
    }
}

impl<E> Journal<E> {
    /// Adds an entry, made of its number.
    pub fn push(&mut self, crowd: Crowd, entry: impl FnOnce(u64) -> E) {
        self.last += 1;
        let queue = &mut self.queues[crowd as usize];
        if queue.len() == KEPT {
            queue.pop_front();
        }
        queue.push_back((self.last, entry(self.last)));
    }

    /// The entries with a number over `after`, the oldest first, `most` at a time (1 or more).
    pub fn after(&self, after: u64, most: usize) -> Read<'_, E> {
        let queues = self.queues.each_ref();
        let mut queues = queues.map(|queue| {
            let from = queue.partition_point(|(number, _)| *number <= after);
            queue.range(from..).peekable()
        });
        let mut entries = Vec::new();
        while entries.len() < most.max(1)
            && let Some((number, entry)) = oldest(&mut queues)
        {
            entries.push((*number, entry));
        }
        let more = queues.iter_mut().any(|queue| queue.peek().is_some());
        let last = match (entries.last(), more) {
            (Some((last, _)), true) => *last,
            _ => self.last.max(after),
        };
        Read {
            missed: (last - after).saturating_sub(entries.len() as u64),
            entries,
            last,
            more,
        }
    }
}

/// The next one of all queues.
fn oldest<'a, E: 'a>(
    queues: &mut [Peekable<impl Iterator<Item = &'a (u64, E)>>],
) -> Option<&'a (u64, E)> {
    let next = queues.iter_mut().map(|queue| queue.peek());
    let numbers = next.map(|entry| entry.map_or(u64::MAX, |(number, _)| *number));
    let (at, _) = numbers.enumerate().min_by_key(|(_, number)| *number)?;
    queues[at].next()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_crowd_displaces_its_like_only() {
        let mut journal = Journal::default();
        journal.push(Crowd::None, |n| n);
        journal.push(Crowd::Workloads, |n| n);
        for _ in 0..2 * KEPT {
            journal.push(Crowd::Refusals, |n| n);
        }
        let read = journal.after(0, usize::MAX);
        let first: Vec<u64> = read.entries[..2].iter().map(|(n, _)| *n).collect();
        assert_eq!((read.entries.len(), &first[..]), (KEPT + 2, &[1, 2][..]));
        assert_eq!((read.missed, read.more), (KEPT as u64, false));
        assert_eq!(journal.after(read.last, 10).entries, []);
    }

    fn crowd() -> impl Strategy<Value = Crowd> {
        prop::sample::select(vec![Crowd::None, Crowd::Refusals, Crowd::Workloads])
    }

    proptest! {
        /// A reader that is never too far behind sees each entry once; one that is learns how many it has missed.
        #[test]
        fn a_reader_sees_or_misses_each_entry_once(
            steps in prop::collection::vec((crowd(), 1_usize..700, 1_usize..900), 1..40),
        ) {
            let mut journal = Journal::default();
            let (mut at, mut seen, mut missed) = (0, 0, 0);
            for (crowd, pushed, most) in steps {
                for _ in 0..pushed {
                    journal.push(crowd, |n| n);
                }
                let read = journal.after(at, most);
                prop_assert!(read.entries.len() <= most);
                let in_order = read.entries.windows(2).all(|pair| pair[0].0 < pair[1].0);
                prop_assert!(in_order && read.entries.iter().all(|(n, entry)| n == *entry && *n > at));
                seen += read.entries.len() as u64;
                missed += read.missed;
                at = read.last;
                prop_assert_eq!(read.more, at < journal.last);
            }
            let rest = journal.after(at, usize::MAX);
            prop_assert_eq!(seen + missed + rest.entries.len() as u64 + rest.missed, journal.last);
        }
    }
}
