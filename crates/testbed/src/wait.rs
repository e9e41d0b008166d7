//! Waiting for conditions, never for time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longer than any condition takes on a busy machine: a test that waits so long has failed.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Looks that cost no sleep; most conditions hold within microseconds.
const EAGER_LOOKS: u32 = 100;
/// Pause between later looks, so that tests that wait leave the CPU to those that work.
const PAUSE: Duration = Duration::from_millis(1);

/// Asks until there is an answer.
///
/// # Panics
/// There is none after [`PATIENCE`]; the message names `what`.
pub fn until<T>(what: &str, answer: impl FnMut() -> Option<T>) -> T {
    try_until(PATIENCE, answer).unwrap_or_else(|| panic!("not within {PATIENCE:?}: {what}"))
}

/// Asks until there is an answer; `None` when there is none after `patience`. Asks at least once.
pub fn try_until<T>(patience: Duration, mut answer: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + patience;
    for look in 0.. {
        if let Some(answer) = answer() {
            return Some(answer);
        }
        if Instant::now() >= end {
            break;
        }
        match look {
            0..EAGER_LOOKS => std::thread::yield_now(),
            _ => std::thread::sleep(PAUSE),
        }
    }
    None
}

/// Sets a flag when it goes, so that a test that fails ends its threads.
#[derive(Debug)]
pub struct Stops<'a>(pub &'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_patience_it_asks_once() {
        let mut asked = 0;
        let mut ask = || {
            asked += 1;
            None::<()>
        };
        assert_eq!(try_until(Duration::ZERO, &mut ask), None);
        assert_eq!(asked, 1);
    }

    #[test]
    fn an_answer_ends_the_wait() {
        let mut asked = 0;
        let third = until("the third look", || {
            asked += 1;
            (asked == 3).then_some(asked)
        });
        assert_eq!(third, 3);
    }
}
