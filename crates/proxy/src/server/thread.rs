//! One thread of a proxy, seen from outside: its end and its restarts.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::command::Command;
use super::counters::Counters;
use crate::runtime::Sender;

/// A running thread.
pub(super) struct Thread {
    /// Takes commands to it.
    pub commands: Sender<Command>,
    /// Taken once it has ended.
    pub join: Option<JoinHandle<io::Result<()>>>,
    /// It is at its end, and waiting for it takes no time.
    pub ended: Arc<AtomicBool>,
    pub counters: Counters,
    /// How often it failed and was started again.
    pub restarts: Restarts,
}

impl Thread {
    /// How it ended, once.
    pub fn end(&mut self) -> Option<Result<(), String>> {
        let ended = self.ended.load(Ordering::Acquire);
        self.join.take_if(|_| ended).map(joined)
    }

    /// Whether it runs no more.
    pub fn has_ended(&self) -> bool {
        self.join.is_none() || self.ended.load(Ordering::Acquire)
    }
}

/// Restarts of one thread after failures. A thread that fails again and again is not restarted: it would do nothing
/// else.
#[derive(Debug, Default)]
pub(super) struct Restarts {
    recent: VecDeque<Instant>,
    /// Of all time.
    pub count: u64,
}

/// A thread is restarted so many times within [`FAILURES_WITHIN`].
const MOST_RESTARTS: usize = 5;
const FAILURES_WITHIN: Duration = Duration::from_secs(60);

impl Restarts {
    /// Counts a failure. Returns whether the thread may be restarted.
    pub fn allow(&mut self, now: Instant) -> bool {
        self.count += 1;
        self.recent.push_back(now);
        while let Some(first) = self.recent.front()
            && now.duration_since(*first) > FAILURES_WITHIN
        {
            self.recent.pop_front();
        }
        self.recent.len() <= MOST_RESTARTS
    }
}

/// Waits for a thread's end. Its own error, or `Err` with what it panicked with.
pub(super) fn joined(join: JoinHandle<io::Result<()>>) -> Result<(), String> {
    match join.join() {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(format!("cannot wait for events: {error}")),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            Err(format!("panicked: {}", text.unwrap_or_default()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_fails_now_and_then_is_always_restarted_and_one_that_only_fails_is_not() {
        let start = Instant::now();
        let mut rare = Restarts::default();
        assert!((0..100).all(|n| rare.allow(start + FAILURES_WITHIN / 4 * n)));
        let mut always = Restarts::default();
        let restarted: Vec<bool> = (0..7)
            .map(|n| always.allow(start + Duration::from_millis(10) * n))
            .collect();
        assert_eq!(restarted, [true, true, true, true, true, false, false]);
    }
}
