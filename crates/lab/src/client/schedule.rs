//! When each connection begins: an open-loop schedule that no reply can change.

use std::ops::Range;
use std::time::Duration;

/// How the beginnings are spread over time. All but a step have the same mean rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pattern {
    /// Equal distances.
    Constant,
    /// Exponential distances from this seed.
    Poisson {
        /// Seed of the random numbers; printed with the result so that a run can be repeated.
        seed: u64,
    },
    /// A base rate, and every `period` for `length` that rate times `factor`.
    Bursts {
        /// Rate in a burst over rate outside; at least 1.
        factor: f64,
        /// Length of a burst; below `period`.
        length: Duration,
        /// Distance between the beginnings of two bursts.
        period: Duration,
    },
    /// The rate, and from `at` on that rate times `factor`. The mean is not kept.
    Step {
        /// Rate after the step over rate before it.
        factor: f64,
        /// When, from the run's beginning.
        at: Duration,
    },
}

/// The beginnings of connections, one after the other.
#[derive(Debug, Clone)]
pub struct Schedule {
    pattern: Pattern,
    rate_per_s: f64,
    next_ns: f64,
    /// Connections gone on from; equal distances are multiplied, not added up, to stay exact.
    passed: u64,
    random: fastrand::Rng,
}

impl Pattern {
    /// Mean rate inside a window of the run, where the pattern's rate is this.
    pub fn mean_rate_per_s(&self, rate_per_s: f64, window: Range<Duration>) -> f64 {
        let Pattern::Step { factor, at } = *self else {
            return rate_per_s;
        };
        let length = (window.end - window.start).as_secs_f64();
        let before = at.clamp(window.start, window.end) - window.start;
        let before = before.as_secs_f64() / length;
        rate_per_s * (before + factor * (1.0 - before))
    }
}

impl Schedule {
    /// A schedule with this mean rate (connections/s, above 0) from time 0 on.
    pub fn new(pattern: Pattern, rate_per_s: f64) -> Schedule {
        let seed = if let Pattern::Poisson { seed } = pattern {
            seed
        } else {
            0
        };
        Schedule {
            pattern,
            rate_per_s,
            next_ns: 0.0,
            passed: 0,
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// When the next connection is due, ns.
    pub fn due_ns(&self) -> u64 {
        self.next_ns as u64
    }

    /// Goes on to the connection after it.
    pub fn advance(&mut self) {
        let mean_ns = 1e9 / self.rate_per_s;
        self.passed += 1;
        self.next_ns = match self.pattern {
            Pattern::Constant => self.passed as f64 * 1e9 / self.rate_per_s,
            Pattern::Step { factor, at } => {
                let rate = if self.next_ns < at.as_nanos() as f64 {
                    self.rate_per_s
                } else {
                    self.rate_per_s * factor
                };
                self.next_ns + 1e9 / rate
            }
            Pattern::Poisson { .. } => self.next_ns - mean_ns * (1.0 - self.random.f64()).ln(),
            Pattern::Bursts {
                factor,
                length,
                period,
            } => {
                let (length_ns, period_ns) = (length.as_nanos() as f64, period.as_nanos() as f64);
                let base_per_ns = 1.0 / (mean_ns * (1.0 + (factor - 1.0) * length_ns / period_ns));
                after_burst_step(self.next_ns, base_per_ns, factor, length_ns, period_ns)
            }
        };
    }
}

/// The time at which the piecewise constant rate has added up to one more connection.
fn after_burst_step(
    from_ns: f64,
    base_per_ns: f64,
    factor: f64,
    length_ns: f64,
    period_ns: f64,
) -> f64 {
    let mut at_ns = from_ns;
    let mut left = 1.0;
    loop {
        let phase_ns = at_ns % period_ns;
        let (rate, phase_end_ns) = if phase_ns < length_ns {
            (base_per_ns * factor, length_ns)
        } else {
            (base_per_ns, period_ns)
        };
        // At least 1 ns, lest rounding hold the time on a boundary.
        let rest_ns = (phase_end_ns - phase_ns).max(1.0);
        if rest_ns * rate >= left {
            return at_ns + left / rate;
        }
        left -= rest_ns * rate;
        at_ns += rest_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beginnings(pattern: Pattern, rate: f64, until: Duration) -> Vec<u64> {
        let mut schedule = Schedule::new(pattern, rate);
        std::iter::from_fn(|| {
            let due = schedule.due_ns();
            schedule.advance();
            (u128::from(due) < until.as_nanos()).then_some(due)
        })
        .collect()
    }

    #[test]
    fn all_patterns_keep_the_mean_rate() {
        let burst = Pattern::Bursts {
            factor: 4.0,
            length: Duration::from_millis(50),
            period: Duration::from_millis(500),
        };
        for pattern in [Pattern::Constant, Pattern::Poisson { seed: 7 }, burst] {
            let count = beginnings(pattern, 20_000.0, Duration::from_secs(5)).len() as f64;
            assert!(
                (count / 100_000.0 - 1.0).abs() < 0.01,
                "{pattern:?}: {count}"
            );
        }
    }

    #[test]
    fn a_constant_rate_begins_exactly_as_many_as_it_says() {
        for rate in [300.0, 7_777.0, 90_000.0] {
            let count = beginnings(Pattern::Constant, rate, Duration::from_secs(2)).len();
            assert_eq!(count as f64, 2.0 * rate);
        }
    }

    #[test]
    fn bursts_have_the_stated_factor() {
        let (length, period) = (Duration::from_millis(50), Duration::from_millis(500));
        let due = beginnings(
            Pattern::Bursts {
                factor: 4.0,
                length,
                period,
            },
            20_000.0,
            Duration::from_secs(5),
        );
        let in_burst = due
            .iter()
            .filter(|ns| u128::from(**ns) % period.as_nanos() < length.as_nanos());
        let inside_rate = in_burst.count() as f64 / 0.5;
        let outside_rate = (due.len() as f64 - inside_rate * 0.5) / 4.5;
        assert!(
            (inside_rate / outside_rate - 4.0).abs() < 0.05,
            "{inside_rate} {outside_rate}"
        );
    }

    #[test]
    fn a_step_has_both_rates_and_the_stated_mean() {
        let at = Duration::from_secs(1);
        let step = Pattern::Step { factor: 8.0, at };
        let due = beginnings(step, 500.0, Duration::from_secs(3));
        let before = due.iter().filter(|ns| u128::from(**ns) < at.as_nanos());
        assert!(before.count().abs_diff(500) <= 1);
        assert!(due.len().abs_diff(8500) <= 2, "{}", due.len());
        let mean = step.mean_rate_per_s(500.0, at / 2..at * 2);
        assert!((mean - (250.0 + 4000.0) / 1.5).abs() < 1.0, "{mean}");
        assert_eq!(Pattern::Constant.mean_rate_per_s(7.0, at..at * 2), 7.0);
    }

    #[test]
    fn a_seed_repeats_a_run() {
        let run = |seed| beginnings(Pattern::Poisson { seed }, 1000.0, Duration::from_secs(1));
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }
}
