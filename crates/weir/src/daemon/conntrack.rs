//! Conntrack comes into a network namespace with the first rule that needs it, and goes with the last one. Both
//! may happen at any time, and nothing tells of it: weir looks.

use std::time::{Duration, Instant};

/// How often weir looks. Clients that answer a cookie of weir's in between may be dropped by the new rules.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A firewall that is reloaded may take all its rules off first: for so long they may come back.
const GONE_AFTER: Duration = Duration::from_secs(10);

/// Whether conntrack follows connections, as the last looks saw it.
pub struct ConntrackWatch {
    follows: bool,
    /// When a look last saw it.
    seen: Instant,
    /// When the next look is due.
    due: Instant,
}

impl ConntrackWatch {
    /// `follows`: what the first look saw.
    pub fn new(follows: bool, now: Instant) -> ConntrackWatch {
        ConntrackWatch {
            follows,
            seen: now,
            due: now + LOOK_EVERY,
        }
    }

    /// Time until the next look.
    pub fn due_in(&self, now: Instant) -> Duration {
        self.due.saturating_duration_since(now)
    }

    /// Looks, if it is time to. Gives what holds from now on if that has changed.
    pub fn look(&mut self, now: Instant, follows: impl FnOnce() -> bool) -> Option<bool> {
        if now < self.due {
            return None;
        }
        self.due = now + LOOK_EVERY;
        let before = self.follows;
        self.follows = follows();
        if self.follows {
            self.seen = now;
        } else if now < self.seen + GONE_AFTER {
            self.follows = before;
        }
        (self.follows != before).then_some(self.follows)
    }

    /// Whether it does, as far as is known.
    pub fn follows(&self) -> bool {
        self.follows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conntrack_counts_from_the_first_look_that_sees_it_until_it_has_been_gone_for_a_while() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let mut watch = ConntrackWatch::new(false, begun);
        assert_eq!(watch.due_in(begun), LOOK_EVERY);
        assert_eq!(watch.look(begun, || panic!("not due")), None);
        assert_eq!(watch.look(at(1), || false), None);
        assert_eq!(watch.look(at(2), || true), Some(true));
        assert_eq!(watch.look(at(3), || true), None);
        assert_eq!(watch.look(at(4), || false), None, "a reload of its rules");
        assert_eq!(watch.look(at(5), || true), None);
        assert_eq!(watch.look(at(14), || false), None);
        assert_eq!(watch.look(at(15), || false), Some(false));
    }
}
