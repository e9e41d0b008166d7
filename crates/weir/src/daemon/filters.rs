//! What could drop a SYN behind weir comes with a firewall's first rule and goes with its last. Both may happen at
//! any time, and what tells of it differs with each kind of filter: weir looks.

use std::time::{Duration, Instant};

use weir_config::SynFilter;

/// How often weir looks. Who answers a cookie of weir's in between may be let in although the new rules would have
/// dropped the SYN, or be dropped by rules that want to see it.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Looks take a hundredth of a CPU at most: each interface is asked for its programs, under a lock of the kernel's.
const SHARE: u32 = 100;
/// But not more seldom than this: one that the kernel kept waiting says nothing of the next.
const LOOK_LEAST: Duration = Duration::from_secs(10);
/// A firewall that is reloaded may take all its rules off first: for so long they may come back.
const GONE_AFTER: Duration = Duration::from_secs(10);

/// What could drop a SYN, as the last looks saw it.
pub struct FilterWatch {
    found: Option<SynFilter>,
    /// When a look last found something.
    seen: Instant,
    /// When the last one was.
    looked: Instant,
    /// When the next look is due.
    due: Instant,
}

impl FilterWatch {
    /// `found`: what the first look saw.
    pub fn new(found: Option<SynFilter>, now: Instant) -> FilterWatch {
        FilterWatch {
            found,
            seen: now,
            looked: now,
            due: now + LOOK_EVERY,
        }
    }

    /// When the next look is.
    pub fn due_at(&self) -> Instant {
        self.due
    }

    /// Looks within the usual time after the last look, however long that has taken: something has changed.
    pub fn hurry(&mut self) {
        self.due = self.due.min(self.looked + LOOK_EVERY);
    }

    /// Looks, if it is time to. [`FilterWatch::found`] is then what holds from now on.
    pub fn look(&mut self, now: Instant, find: impl FnOnce() -> Option<SynFilter>) {
        if now < self.due {
            return;
        }
        let begun = Instant::now();
        let found = find();
        self.looked = now;
        self.due = now + pause(begun.elapsed());
        if found.is_some() {
            self.seen = now;
        } else if now < self.seen + GONE_AFTER {
            return;
        }
        self.found = found;
    }

    /// What it is, as far as is known.
    pub fn found(&self) -> Option<&SynFilter> {
        self.found.as_ref()
    }
}

/// The time from one look to the next, if it has taken so long.
pub fn pause(took: Duration) -> Duration {
    (took * SHARE).clamp(LOOK_EVERY, LOOK_LEAST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_that_take_long_are_rare_until_something_changes() {
        let begun = Instant::now();
        let mut watch = FilterWatch::new(None, begun);
        let slow = || {
            std::thread::sleep(Duration::from_millis(30));
            None
        };
        watch.look(begun + LOOK_EVERY, slow);
        assert!(watch.due_at() >= begun + LOOK_EVERY + Duration::from_secs(3));
        watch.hurry();
        assert_eq!(watch.due_at(), begun + 2 * LOOK_EVERY);
        watch.hurry();
        assert_eq!(watch.due_at(), begun + 2 * LOOK_EVERY);
    }

    #[test]
    fn a_filter_counts_from_the_first_look_that_sees_it_until_it_has_been_gone_for_a_while() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let mut watch = FilterWatch::new(None, begun);
        let conntrack: fn() -> _ = || Some(SynFilter::Conntrack);
        let other: fn() -> _ = || Some(SynFilter::IpsecPolicy);
        assert_eq!(watch.due_at(), begun + LOOK_EVERY);
        watch.look(begun, || panic!("not due"));
        let mut after = |seconds, find: fn() -> Option<SynFilter>| {
            watch.look(at(seconds), find);
            watch.found().cloned()
        };
        assert_eq!(after(1, || None), None);
        assert_eq!(after(2, conntrack), conntrack());
        assert_eq!(after(4, || None), conntrack(), "a reload of its rules");
        assert_eq!(after(5, conntrack), conntrack());
        assert_eq!(after(6, other), other(), "another one is named");
        assert_eq!(after(15, || None), other());
        assert_eq!(after(16, || None), None);
    }
}
