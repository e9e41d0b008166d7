//! When interfaces are looked at although nothing tells of a change: the news of it is used up, and what it was about has not
//! been done.

use std::time::{Duration, Instant};

/// How soon, the first time. Twice as late after each further failure.
const FIRST: Duration = Duration::from_secs(1);
/// How late at most: what has failed so often is not likely to work.
const LAST: Duration = Duration::from_secs(60);

/// Until all is done.
pub struct Relook {
    due: Option<Instant>,
    pause: Duration,
}

impl Relook {
    /// Nothing has failed.
    pub fn new() -> Relook {
        Relook {
            due: None,
            pause: FIRST,
        }
    }

    /// When the next look is; `None`: none is needed.
    pub fn due_at(&self) -> Option<Instant> {
        self.due
    }

    /// Notes how a look has ended.
    pub fn note(&mut self, failed: bool, now: Instant) {
        let due = now + self.pause;
        (self.due, self.pause) = match failed {
            true => (Some(due), LAST.min(self.pause * 2)),
            false => (None, FIRST),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_that_failed_is_repeated_after_a_second_and_then_less_often() {
        let begun = Instant::now();
        let mut relook = Relook::new();
        assert_eq!(relook.due_at(), None);
        let pauses = [1, 2, 4, 8, 16, 32, 60, 60].map(|pause| {
            relook.note(true, begun);
            (relook.due_at(), Some(begun + Duration::from_secs(pause)))
        });
        assert!(
            pauses.iter().all(|(due, expected)| due == expected),
            "{pauses:?}"
        );
        relook.note(false, begun);
        assert_eq!(relook.due_at(), None);
        relook.note(true, begun);
        assert_eq!(relook.due_at(), Some(begun + FIRST));
    }
}
