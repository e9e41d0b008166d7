//! Whether connections to a backend come about, as its clients' requests show it: for backends that are not checked. An operator
//! learns when they begin to fail and when they work again, not of each one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long no connection may fail before the backend works again: one that takes every second connection is said once.
const STEADY: Duration = Duration::from_secs(1);

/// What is known of one backend; all threads share it.
#[derive(Debug, Default)]
pub struct Reach {
    /// Read for each connection that comes about; the lock is taken only while they fail.
    is_failing: AtomicBool,
    failing: Mutex<Option<Failing>>,
}

/// Connections fail.
#[derive(Debug, Clone, Copy)]
struct Failing {
    since: Instant,
    last: Instant,
    failures: u64,
}

/// A time in which connections failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outage {
    /// From the first failure to the first connection after the last one.
    pub time: Duration,
    /// How many failed.
    pub failures: u64,
}

impl Reach {
    /// A connection has failed. True: the one before it, if there was any, has not.
    pub fn note_failed(&self, now: Instant) -> bool {
        self.is_failing.store(true, Ordering::Relaxed);
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = failing.is_none();
        let failing = failing.get_or_insert(Failing {
            since: now,
            last: now,
            failures: 0,
        });
        failing.last = failing.last.max(now);
        failing.failures += 1;
        is_first
    }

    /// A connection has come about. Says what is over with it.
    pub fn note_connected(&self, now: impl FnOnce() -> Instant) -> Option<Outage> {
        if !self.is_failing.load(Ordering::Relaxed) {
            return None;
        }
        let now = now();
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        let over = failing.take_if(|failing| now.saturating_duration_since(failing.last) >= STEADY);
        // Under the lock: a failure that comes now sets it again behind this.
        self.is_failing.store(failing.is_some(), Ordering::Relaxed);
        over.map(|failing| Outage {
            time: now.saturating_duration_since(failing.since),
            failures: failing.failures,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_is_said_and_the_first_connection_a_second_after_the_last_one() {
        let (reach, start) = (Reach::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        let connected = |ms| reach.note_connected(|| at(ms));
        assert_eq!(connected(0), None);
        let said = [0, 10, 2000].map(|ms| reach.note_failed(at(ms)));
        assert_eq!(said, [true, false, false]);
        assert_eq!(connected(2999), None, "it may fail again");
        let outage = Outage {
            time: Duration::from_millis(3000),
            failures: 3,
        };
        assert_eq!(connected(3000), Some(outage));
        assert_eq!(connected(3001), None);
        assert!(reach.note_failed(at(3002)), "it is news again");
    }

    #[test]
    fn a_backend_that_takes_every_second_connection_is_said_once() {
        let (reach, start) = (Reach::default(), Instant::now());
        let at = |n: u64| start + Duration::from_millis(100 * n);
        let news = (0..1000).filter(|n| match n % 2 {
            0 => reach.note_failed(at(*n)),
            _ => reach.note_connected(|| at(*n)).is_some(),
        });
        assert_eq!(news.count(), 1);
    }

    #[test]
    fn threads_that_fail_at_once_say_it_once() {
        let reach = Reach::default();
        let said: usize = std::thread::scope(|scope| {
            let fail = || {
                (0..1000)
                    .filter(|_| reach.note_failed(Instant::now()))
                    .count()
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(fail)).collect();
            threads.into_iter().map(|one| one.join().unwrap()).sum()
        });
        assert_eq!(said, 1);
        let late = Instant::now() + STEADY;
        assert_eq!(reach.note_connected(|| late).unwrap().failures, 4000);
    }
}
