//! The way to a thread that looks a name up: something has happened that a new address may explain.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Asks for a look-up. It takes a lock for some instructions, and waits for no look-up.
#[derive(Debug, Default)]
pub struct Recheck {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    wanted: bool,
    ended: bool,
}

impl Recheck {
    /// A server of the name does not take connections: its address may be another one by now.
    pub fn ask(&self) {
        let mut state = self.lock();
        if !state.wanted {
            state.wanted = true;
            self.changed.notify_one();
        }
    }

    /// No look-up is wanted any more.
    pub fn end(&self) {
        self.lock().ended = true;
        self.changed.notify_one();
    }

    /// Whether no look-up is wanted any more.
    pub(super) fn has_ended(&self) -> bool {
        self.lock().ended
    }

    /// Waits until the next look-up is due: after `interval`, or when it is asked for, but not before `soonest`. False if
    /// none is wanted any more.
    pub(super) fn wait(&self, soonest: Duration, interval: Duration) -> bool {
        let since = Instant::now();
        let mut state = self.lock();
        loop {
            let due = match state.wanted {
                true => soonest.min(interval),
                false => interval,
            };
            let left = due.saturating_sub(since.elapsed());
            if state.ended || left.is_zero() {
                state.wanted = false;
                return !state.ended;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const LONG: Duration = Duration::from_secs(3600);
    const SHORT: Duration = Duration::from_millis(30);

    #[test]
    fn a_look_up_is_due_after_the_interval_or_at_once_but_not_too_soon() {
        let recheck = Arc::new(Recheck::default());
        let begin = Instant::now();
        assert!(recheck.wait(LONG, SHORT));
        assert!(begin.elapsed() >= SHORT);
        recheck.ask();
        let begin = Instant::now();
        assert!(recheck.wait(SHORT, LONG));
        assert!((SHORT..LONG).contains(&begin.elapsed()));
        let other = recheck.clone();
        let waiting = std::thread::spawn(move || other.wait(SHORT, LONG));
        recheck.ask();
        assert!(waiting.join().unwrap());
        let other = recheck.clone();
        let waiting = std::thread::spawn(move || other.wait(LONG, LONG));
        recheck.end();
        assert!(!waiting.join().unwrap());
    }
}
