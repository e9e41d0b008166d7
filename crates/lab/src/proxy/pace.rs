//! Requests at a constant rate, given to whichever connection has waited longest.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Turns come due at equal distances; one that finds no connection waiting is kept for the next.
#[derive(Debug)]
pub struct Pace {
    interval: Duration,
    due: Instant,
    waiting: VecDeque<usize>,
}

impl Pace {
    /// So many turns per second, from now on.
    pub fn new(rate_per_s: f64) -> Pace {
        Pace {
            interval: Duration::from_secs_f64(1.0 / rate_per_s),
            due: Instant::now(),
            waiting: VecDeque::new(),
        }
    }

    /// Lets a connection wait for its turn.
    pub fn enqueue(&mut self, index: usize) {
        self.waiting.push_back(index);
    }

    /// A connection whose turn has come.
    pub fn take_due(&mut self) -> Option<usize> {
        if self.waiting.is_empty() {
            return None;
        }
        self.take_due_at(Instant::now())
    }

    fn take_due_at(&mut self, now: Instant) -> Option<usize> {
        if self.due > now {
            return None;
        }
        let index = self.waiting.pop_front()?;
        self.due += self.interval;
        Some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_that_were_missed_are_made_up_for() {
        let mut pace = Pace::new(1000.0);
        let begun = pace.due;
        for index in [7, 8, 9] {
            pace.enqueue(index);
        }
        assert_eq!(pace.take_due_at(begun), Some(7));
        assert_eq!(pace.take_due_at(begun), None);
        let later = begun + Duration::from_millis(10);
        assert_eq!(pace.take_due_at(later), Some(8));
        assert_eq!(pace.take_due_at(later), Some(9));
        assert_eq!(pace.take_due_at(later), None);
    }
}
