//! How long things took: counts in fixed ranges of time, each thread's its own.
//!
//! Not of a library: those that threads may share lock or use locked instructions for each value, and
//! these have one writer, as the [counters](crate::metrics).

use std::ops::AddAssign;
use std::time::Duration;

use crate::counter::Counter;

/// The longest time of each range in µs, itself included; one more range has what is longer.
pub const BOUNDS_US: [u64; 18] = [
    100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000,
    1_000_000, 2_000_000, 5_000_000, 10_000_000, 20_000_000, 60_000_000,
];

const RANGES: usize = BOUNDS_US.len() + 1;

/// Times with one writer.
#[derive(Debug, Default)]
pub struct Histogram {
    counts: [Counter; RANGES],
    sum_us: Counter,
}

impl Histogram {
    /// Something took this long. Only for the thread that owns it, as [`Counter::add`].
    pub fn observe(&self, time_us: u64) {
        self.counts[range_of(time_us)].add(1);
        self.sum_us.add(time_us);
    }

    /// What was observed, from any thread.
    pub fn times(&self) -> Times {
        Times {
            counts: std::array::from_fn(|range| self.counts[range].get()),
            sum_us: self.sum_us.get(),
        }
    }
}

fn range_of(time_us: u64) -> usize {
    BOUNDS_US.partition_point(|bound| *bound < time_us)
}

/// Times that were observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Times {
    /// How many in each range of [`BOUNDS_US`], and how many were longer than all.
    pub counts: [u64; RANGES],
    /// All together.
    pub sum_us: u64,
}

impl Times {
    /// How many there are.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The time that this share of them, 0 to 1, did not exceed, as far as the ranges tell: within one
    /// they are taken to be spread evenly. What is longer than the last bound counts as that. `None` of
    /// none.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let rank = self.count() as f64 * share;
        let mut below = 0;
        for (range, &count) in self.counts.iter().enumerate() {
            if count > 0 && (below + count) as f64 >= rank {
                let from = range.checked_sub(1).map_or(0, |before| BOUNDS_US[before]);
                let to = BOUNDS_US.get(range).copied().unwrap_or(from);
                let part = (rank - below as f64).max(0.0) / count as f64;
                let time_us = from as f64 + (to - from) as f64 * part;
                return Some(Duration::from_secs_f64(time_us / 1e6));
            }
            below += count;
        }
        None
    }
}

impl AddAssign<&Times> for Times {
    fn add_assign(&mut self, more: &Times) {
        for (own, more) in self.counts.iter_mut().zip(more.counts) {
            *own += more;
        }
        self.sum_us += more.sum_us;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(times_us: &[u64]) -> Times {
        let histogram = Histogram::default();
        times_us.iter().for_each(|time| histogram.observe(*time));
        histogram.times()
    }

    #[test]
    fn a_time_counts_in_the_first_range_whose_bound_it_does_not_exceed() {
        for (time_us, range) in [(0, 0), (100, 0), (101, 1), (60_000_000, 17), (u64::MAX, 18)] {
            assert_eq!(of(&[time_us]).counts[range], 1, "{time_us}");
        }
    }

    #[test]
    fn quantiles_lie_in_the_range_that_has_them() {
        assert_eq!(of(&[]).quantile(0.5), None);
        let mut times = vec![150; 98];
        times.extend([40_000, 90_000_000]);
        let times = of(&times);
        let micros = |share| times.quantile(share).unwrap().as_micros();
        assert!((100..=200).contains(&micros(0.5)), "{}", micros(0.5));
        assert!((20_000..=50_000).contains(&micros(0.99)));
        // How long the longest was is not known.
        assert_eq!(micros(1.0), 60_000_000);
    }

    #[test]
    fn sums_are_those_of_all_threads() {
        let mut sum = of(&[100, 7_000]);
        sum += &of(&[101]);
        assert_eq!((sum.count(), sum.sum_us), (3, 7_201));
    }
}
