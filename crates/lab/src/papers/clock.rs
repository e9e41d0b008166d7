//! How long it takes still.

use std::time::Duration;

use super::list::{List, Scale};
use super::measured::estimate_s;
use crate::error::Result;

/// How long it takes still: the estimates of what is left, times how much longer than estimated what is done took.
#[derive(Debug)]
pub struct Clock {
    estimates: Vec<f64>,
    /// Estimated and taken of what is done, s.
    done: (f64, f64),
    next: usize,
}

/// Share of the estimate below which a run was not measured now.
const RESUMED: f64 = 0.1;
/// A machine that is faster or slower than this is not believed.
const FACTORS: (f64, f64) = (0.5, 4.0);

impl Clock {
    /// Of runs in this order.
    pub fn new(list: &List, names: &[&str], scale: Scale) -> Result<Clock> {
        let estimate = |name: &&str| estimate_s(list, list.run(name)?, scale);
        Ok(Clock {
            estimates: names.iter().map(estimate).collect::<Result<_>>()?,
            done: (0.0, 0.0),
            next: 0,
        })
    }

    fn factor(&self) -> f64 {
        match self.done {
            (estimated, taken) if estimated > 0.0 => {
                (taken / estimated).clamp(FACTORS.0, FACTORS.1)
            }
            _ => 1.0,
        }
    }

    /// How long a run takes.
    pub fn of(&self, index: usize) -> Duration {
        Duration::from_secs_f64(self.estimates[index] * self.factor())
    }

    /// How long all take that are left.
    pub fn left(&self) -> Duration {
        let left: f64 = self.estimates[self.next..].iter().sum();
        Duration::from_secs_f64(left * self.factor())
    }

    /// A run is over, after so long.
    pub fn done(&mut self, index: usize, taken: Duration) {
        // What was resumed takes no time, and says nothing of the machine.
        if taken.as_secs_f64() > RESUMED * self.estimates[index] {
            self.done.0 += self.estimates[index];
            self.done.1 += taken.as_secs_f64();
        }
        self.next = index + 1;
    }
}

/// Minutes, or seconds of less than two minutes, or hours of more than two.
pub fn in_words(time: Duration) -> String {
    match time.as_secs() {
        s if s < 120 => format!("{s} s"),
        s if s < 7200 => format!("{} min", s.div_ceil(60)),
        s => format!("{:.1} h", s as f64 / 3600.0),
    }
}
