//! When each part of a direction's sequence space was first seen, for the delay of what is sent again.
//!
//! A list of runs: each begins where the one before ends, was first seen at one moment, or is a *hole* that was skipped
//! at that moment. A connection of a few segments has a run for each. A long transfer would have thousands; the older
//! runs are then joined, so that the length of a run is at most a 32nd of its age: a delay is at most 3 % too long. What
//! is older than the longest delay that counts is one run.

use crate::time::Tick;

/// A delay of more than this takes its connection out of the figures (BHD18, Section III): no need to know it better.
pub(crate) const DELAY_MAX_NS: u64 = 45_000_000_000;

/// Runs that one direction holds at most: as many as a transfer without a pause needs for 45 s.
const RUNS_MAX: usize = 1024;
/// Runs that are never joined: with them, and its own bookkeeping, an allocator's piece has 32 bytes.
const RUNS_MIN: usize = 3;
/// The reciprocal of a run's length as a share of its age.
const RESOLUTION: u64 = 32;

/// What a direction has sent.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    runs: Vec<Run>,
}

#[derive(Debug, Clone, Copy)]
struct Run {
    /// First sequence number.
    start: u32,
    /// The moment, whose lowest bit says whether this is a hole: 31 bits of 16.4 µs.
    moment: Moment,
}

#[derive(Debug, Clone, Copy)]
struct Moment(u32);

impl Moment {
    fn seen(at: Tick) -> Moment {
        Moment(at.0 & !1)
    }

    fn hole(at: Tick) -> Moment {
        Moment(at.0 | 1)
    }

    fn is_hole(self) -> bool {
        self.0 & 1 == 1
    }

    fn age_ns(self, now: Tick) -> u64 {
        Tick(self.0 & !1).age_ns(now)
    }
}

/// What is known of a sequence number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    /// It was first seen so long ago, ns.
    Seen(u64),
    /// It was skipped so long ago, ns, and has not been seen.
    Hole(u64),
    /// It is before all that is remembered.
    Nothing,
}

impl Sent {
    /// Bytes of memory that it holds beside itself.
    pub fn held_bytes(&self) -> usize {
        self.runs.capacity() * size_of::<Run>()
    }

    /// New data from `start` on.
    pub fn push(&mut self, start: u32, now: Tick) {
        self.add(
            Run {
                start,
                moment: Moment::seen(now),
            },
            now,
        );
    }

    /// A gap from `start` to what is pushed next.
    pub fn skip(&mut self, start: u32, now: Tick) {
        self.add(
            Run {
                start,
                moment: Moment::hole(now),
            },
            now,
        );
    }

    /// What is known of a sequence number before the next one.
    pub fn look_up(&self, seq: u32, now: Tick) -> Known {
        match self.index_of(seq) {
            None => match self.runs.first().map(|first| first.moment.age_ns(now)) {
                // What is before a run that is too old to count is older still.
                Some(age) if age > DELAY_MAX_NS => Known::Seen(age),
                _ => Known::Nothing,
            },
            Some(at) => {
                let moment = self.runs[at].moment;
                match moment.is_hole() {
                    true => Known::Hole(moment.age_ns(now)),
                    false => Known::Seen(moment.age_ns(now)),
                }
            }
        }
    }

    /// The hole at `seq` is seen now, up to `end` at most. `next` is the sequence number behind all runs.
    pub fn fill(&mut self, seq: u32, end: u32, next: u32, now: Tick) {
        let Some(at) = self
            .index_of(seq)
            .filter(|&at| self.runs[at].moment.is_hole())
        else {
            return;
        };
        let hole = self.runs[at];
        let hole_end = self.runs.get(at + 1).map_or(next, |run| run.start);
        let filled = Run {
            start: seq,
            moment: Moment::seen(now),
        };
        let rest = is_before(end, hole_end).then_some(Run {
            start: end,
            moment: hole.moment,
        });
        let before = (hole.start != seq).then_some(hole);
        self.runs
            .splice(at..=at, before.into_iter().chain([filled]).chain(rest));
        if self.runs.len() > RUNS_MAX {
            self.forget_oldest();
        }
    }

    fn add(&mut self, run: Run, now: Tick) {
        if self.runs.len() == self.runs.capacity() {
            self.make_room(now);
        }
        self.runs.push(run);
    }

    fn make_room(&mut self, now: Tick) {
        if self.runs.len() < RUNS_MIN {
            self.runs.reserve_exact(RUNS_MIN - self.runs.len());
            return;
        }
        self.join(RESOLUTION, now);
        let capacity = self.runs.capacity();
        if self.runs.len() <= capacity / 4 * 3 {
            return;
        }
        match capacity < RUNS_MAX {
            true => self.runs.reserve_exact(capacity * 2 - self.runs.len()),
            false => self.forget_oldest(),
        }
    }

    /// Joins runs that begin within `1 / resolution` of their age of one another, and those that are too old to count.
    pub fn join(&mut self, resolution: u64, now: Tick) {
        let too_old = |run: &Run| run.moment.age_ns(now) > DELAY_MAX_NS;
        let first = self.runs.iter().rposition(too_old).unwrap_or(0);
        let mut kept = 0;
        for at in first..self.runs.len() {
            let run = self.runs[at];
            // A run ends when the next one begins: nothing in it was seen later.
            let joins = kept > 0
                && self.runs.get(at + 1).is_some_and(|next| {
                    let before = self.runs[kept - 1].moment;
                    let end_age = next.moment.age_ns(now);
                    let length = before.age_ns(now).saturating_sub(end_age);
                    before.is_hole() == run.moment.is_hole() && length * resolution <= end_age
                });
            if !joins {
                self.runs[kept] = run;
                kept += 1;
            }
        }
        self.runs.truncate(kept);
    }

    /// Where the last run begins.
    pub fn last_start(&self) -> Option<u32> {
        self.runs.last().map(|run| run.start)
    }

    /// Gives back memory that is not needed.
    pub fn shrink(&mut self) {
        self.runs.shrink_to_fit();
    }

    fn forget_oldest(&mut self) {
        self.runs.drain(..self.runs.len() / 4);
    }

    /// The run that a sequence number is in.
    fn index_of(&self, seq: u32) -> Option<usize> {
        let base = self.runs.first()?.start;
        if is_before(seq, base) {
            return None;
        }
        let behind = self
            .runs
            .partition_point(|run| run.start.wrapping_sub(base) <= seq.wrapping_sub(base));
        behind.checked_sub(1)
    }
}

/// Whether a sequence number is before another (RFC 9293, 3.4).
pub(crate) fn is_before(one: u32, other: u32) -> bool {
    (one.wrapping_sub(other) as i32) < 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn at(ms: u64) -> Tick {
        Tick::of(ms * MS)
    }

    fn close(found: Known, ms: u64, tolerance: f64) {
        let Known::Seen(ns) = found else {
            panic!("{found:?}");
        };
        let (ns, wanted) = (ns as f64, (ms * MS) as f64);
        assert!(
            (ns - wanted).abs() <= wanted * tolerance + 20_000.0,
            "{ns} for {wanted}"
        );
    }

    #[test]
    fn a_few_segments_have_their_own_times() {
        let mut sent = Sent::default();
        // Across the wrap of sequence numbers.
        let start = u32::MAX - 1000;
        for i in 0..4_u32 {
            sent.push(start.wrapping_add(i * 500), at(100 * u64::from(i)));
        }
        for i in 0..4_u32 {
            let age = 1000 - 100 * u64::from(i);
            close(
                sent.look_up(start.wrapping_add(i * 500), at(1000)),
                age,
                0.0,
            );
            close(
                sent.look_up(start.wrapping_add(i * 500 + 499), at(1000)),
                age,
                0.0,
            );
        }
        assert_eq!(sent.look_up(start - 1, at(1000)), Known::Nothing);
    }

    #[test]
    fn a_hole_is_filled_in_parts() {
        let mut sent = Sent::default();
        sent.push(1000, at(0));
        sent.skip(2000, at(10));
        sent.push(5000, at(10));
        sent.fill(3000, 4000, 6000, at(50));
        assert!(matches!(sent.look_up(2500, at(60)), Known::Hole(ns) if ns >= 49 * MS));
        close(sent.look_up(3500, at(60)), 10, 0.0);
        assert!(matches!(sent.look_up(4000, at(60)), Known::Hole(_)));
        sent.fill(2000, 3000, 6000, at(70));
        sent.fill(4000, 9000, 6000, at(70));
        for seq in [2000, 2999, 4000, 4999] {
            close(sent.look_up(seq, at(80)), 10, 0.0);
        }
        close(sent.look_up(5000, at(80)), 70, 0.0);
        // What is seen is no hole.
        sent.fill(5000, 6000, 6000, at(90));
        close(sent.look_up(5000, at(100)), 90, 0.0);
    }

    #[test]
    fn a_long_transfer_is_remembered_within_its_resolution_and_bound() {
        let mut sent = Sent::default();
        // 10 000 segments/s for 60 s.
        let mut seq = 7_u32;
        for i in 0..600_000_u64 {
            sent.push(seq, Tick::of(i * MS / 10));
            seq = seq.wrapping_add(1448);
        }
        assert!(sent.held_bytes() <= RUNS_MAX * size_of::<Run>());
        for ago_ms in [1_u64, 5, 40, 300, 1_000, 7_000, 30_000] {
            let segments_ago = ago_ms * 10;
            let old = seq.wrapping_sub(1448 * segments_ago as u32);
            close(
                sent.look_up(old, at(60_000)),
                ago_ms,
                1.0 / RESOLUTION as f64 + 0.01,
            );
        }
        let Known::Seen(first) = sent.look_up(7, at(60_000)) else {
            panic!("the first segment is forgotten");
        };
        assert!(first > DELAY_MAX_NS);
    }
}
