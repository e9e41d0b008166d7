//! Exponential averages, and rates from counters that only grow.

/// Events that a rate's interval lasts for at least: over fewer, an average says more about chance than about
/// the rate. Five such intervals are 40 events, which err by a sixth.
pub const EVENTS_OF_INTERVAL: f64 = 8.0;
/// but no longer than this, in seconds.
const LONGEST_INTERVAL: f64 = 10.0;

/// An exponential average over the last n intervals: a sample of one interval weighs 2 / (n + 1), so that
/// the average age of what it is made of is that of a plain mean over n. A sample of half an interval weighs
/// accordingly less.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Average {
    /// What stays of a value after one interval.
    stays: f64,
    value: Option<f64>,
}

impl Average {
    /// Of no sample yet.
    pub fn over(samples: u32) -> Average {
        let stays = 1.0 - 2.0 / (f64::from(samples.max(1)) + 1.0);
        Average { stays, value: None }
    }

    /// Takes a sample in that spans so many intervals. The first one counts in full.
    pub fn take(&mut self, sample: f64, intervals: f64) {
        let weight = 1.0 - self.stays.powf(intervals);
        self.value = Some(match self.value {
            Some(value) => value + weight * (sample - value),
            None => sample,
        });
    }

    /// Takes in a rate of events, /s, that was seen for so long. At few events a second the average is over a
    /// longer time: an interval lasts for [`EVENTS_OF_INTERVAL`], of the average or of the sample.
    pub fn take_rate(&mut self, rate: f64, span: Span) {
        let sample = match rate * span.seconds >= EVENTS_OF_INTERVAL {
            true => rate,
            false => 0.0,
        };
        let known = self.value.unwrap_or(0.0).max(sample);
        let interval = (EVENTS_OF_INTERVAL / known).min(LONGEST_INTERVAL);
        self.take(rate, span.intervals.min(span.seconds / interval));
    }

    /// Takes a sample in that says only that the value is no smaller.
    pub fn take_at_least(&mut self, sample: f64) {
        if self.value.is_none_or(|value| sample > value) {
            self.value = Some(sample);
        }
    }

    /// The average; `None` before the first sample.
    pub fn value(&self) -> Option<f64> {
        self.value
    }
}

/// Time between two readings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Span {
    /// In seconds; 0.0: there was none before.
    pub seconds: f64,
    /// In intervals.
    pub intervals: f64,
}

/// The rate of a counter, /s: of the last interval, averaged over time, and over events.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    before: Option<u64>,
    last: f64,
    average: Average,
    steady: Average,
}

impl Rate {
    /// Of a counter that was not read yet.
    pub fn over(samples: u32) -> Rate {
        Rate {
            before: None,
            last: 0.0,
            average: Average::over(samples),
            steady: Average::over(samples),
        }
    }

    /// Takes a reading, so long after the one before. A counter that fell began anew.
    pub fn read(&mut self, count: u64, since: Span) {
        if let Some(before) = self.before.filter(|_| since.seconds > 0.0) {
            let grown = count.checked_sub(before).unwrap_or(count);
            self.last = grown as f64 / since.seconds;
            self.average.take(self.last, since.intervals);
            self.steady.take_rate(self.last, since);
        }
        self.before = Some(count);
    }

    /// In the last interval, /s.
    pub fn last(&self) -> f64 {
        self.last
    }

    /// Averaged over time, /s.
    pub fn mean(&self) -> f64 {
        self.average.value().unwrap_or(0.0)
    }

    /// Averaged over events, /s: of few a second over a longer time ([`Average::take_rate`]).
    pub fn steady(&self) -> f64 {
        self.steady.value().unwrap_or(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_average_reaches_a_step_and_begins_with_the_first_sample() {
        let mut average = Average::over(5);
        assert_eq!(average.value(), None);
        average.take(10.0, 1.0);
        assert_eq!(average.value(), Some(10.0));
        for _ in 0..5 {
            average.take(20.0, 1.0);
        }
        let value = average.value().unwrap();
        assert!((18.0..20.0).contains(&value), "{value}");
    }

    #[test]
    fn an_average_over_one_sample_is_that_sample() {
        let mut average = Average::over(1);
        average.take(3.0, 1.0);
        average.take(7.0, 1.0);
        assert_eq!(average.value(), Some(7.0));
    }

    #[test]
    fn four_quarters_of_an_interval_weigh_as_much_as_one() {
        let mut parts = Average::over(5);
        let mut whole = parts;
        parts.take(0.0, 1.0);
        whole.take(0.0, 1.0);
        whole.take(1.0, 1.0);
        for _ in 0..4 {
            parts.take(1.0, 0.25);
        }
        assert!((parts.value().unwrap() - whole.value().unwrap()).abs() < 1e-12);
    }

    #[test]
    fn a_rate_of_few_events_is_steady_and_one_that_has_risen_is_soon_known() {
        let span = Span {
            seconds: 0.025,
            intervals: 0.25,
        };
        let (mut rate, mut count) = (Rate::over(5), 0);
        rate.read(count, span);
        // One event every 40 looks: one a second.
        let mut off: f64 = 0.0;
        for look in 1..8000 {
            count += u64::from(look % 40 == 0);
            rate.read(count, span);
            if look > 4000 {
                off = off.max((rate.steady() - 1.0).abs());
            }
        }
        assert!(off < 0.1, "{off}");
        // Then 1000 a second: 25 every look.
        for _ in 0..40 {
            count += 25;
            rate.read(count, span);
        }
        assert!(rate.steady() > 900.0, "{}", rate.steady());
    }

    #[test]
    fn a_counter_that_began_anew_is_no_huge_rate() {
        let mut rate = Rate::over(1);
        let span = Span {
            seconds: 0.1,
            intervals: 1.0,
        };
        rate.read(1_000_000, span);
        assert_eq!(rate.mean(), 0.0, "one reading is no rate");
        rate.read(1_000_100, span);
        assert_eq!(rate.last().round(), 1000.0);
        rate.read(50, span);
        assert_eq!(rate.last().round(), 500.0);
    }
}
