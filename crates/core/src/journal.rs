//! What happened, one after the other, in bounded memory: a number for each, and two queues, so that what comes in
//! crowds does not displace what is rare.

use std::collections::VecDeque;

/// Entries of each of the two kinds that are kept at most.
pub const KEPT: usize = 1024;

/// A journal of entries, each with a number from 1 on, without gaps.
#[derive(Debug, Clone)]
pub struct Journal<E> {
    /// The number of the last entry; 0: there was none.
    last: u64,
    rare: VecDeque<(u64, E)>,
    common: VecDeque<(u64, E)>,
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
            rare: VecDeque::new(),
            common: VecDeque::new(),
        }
    }
}

impl<E> Journal<E> {
    /// Adds an entry, made of its number.
    pub fn push(&mut self, is_common: bool, entry: impl FnOnce(u64) -> E) {
        self.last += 1;
        let queue = match is_common {
            true => &mut self.common,
            false => &mut self.rare,
        };
        if queue.len() == KEPT {
            queue.pop_front();
        }
        queue.push_back((self.last, entry(self.last)));
    }

    /// The entries with a number over `after`, the oldest first, `most` at a time (1 or more).
    pub fn after(&self, after: u64, most: usize) -> Read<'_, E> {
        let from = |queue: &VecDeque<(u64, E)>| queue.partition_point(|(n, _)| *n <= after);
        let (rare_from, common_from) = (from(&self.rare), from(&self.common));
        let mut rare = self.rare.range(rare_from..).peekable();
        let mut common = self.common.range(common_from..).peekable();
        let mut entries = Vec::new();
        while entries.len() < most.max(1) {
            let rare_is_next = match (rare.peek(), common.peek()) {
                (Some((a, _)), Some((b, _))) => a < b,
                (a, _) => a.is_some(),
            };
            let next = match rare_is_next {
                true => rare.next(),
                false => common.next(),
            };
            let Some((number, entry)) = next else { break };
            entries.push((*number, entry));
        }
        let more = rare.peek().is_some() || common.peek().is_some();
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_crowd_displaces_its_like_only() {
        let mut journal = Journal::default();
        journal.push(false, |n| n);
        for _ in 0..2 * KEPT {
            journal.push(true, |n| n);
        }
        let read = journal.after(0, usize::MAX);
        assert_eq!((read.entries.len(), read.entries[0].0), (KEPT + 1, 1));
        assert_eq!((read.missed, read.more), (KEPT as u64, false));
        assert_eq!(journal.after(read.last, 10).entries, []);
    }

    proptest! {
        /// A reader that is never too far behind sees each entry once; one that is learns how many it has missed.
        #[test]
        fn a_reader_sees_or_misses_each_entry_once(
            steps in prop::collection::vec((any::<bool>(), 1_usize..700, 1_usize..900), 1..40),
        ) {
            let mut journal = Journal::default();
            let (mut at, mut seen, mut missed) = (0, 0, 0);
            for (is_common, pushed, most) in steps {
                for _ in 0..pushed {
                    journal.push(is_common, |n| n);
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
