//! SYNs that pass unjudged although their listener is in force: its socket has no place in the guard's table, so that nobody is
//! refused for its queue. That is rare, and must not go unseen.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use weir_core::units::count;
use weir_core::verdict::Verdict;

use super::session::Glance;

/// Between two warnings of a listener.
const EVERY: Duration = Duration::from_secs(60);

/// What is known of each listener.
#[derive(Default)]
pub struct Unjudged(BTreeMap<String, Known>);

#[derive(Default)]
struct Known {
    /// SYNs that had passed unjudged when it was last said.
    said: u64,
    said_at: Option<Instant>,
}

impl Unjudged {
    /// What is to be said now.
    pub fn take(&mut self, glances: &[Glance], now: Instant) -> Vec<String> {
        let mut known = std::mem::take(&mut self.0);
        let mut lines = Vec::new();
        for glance in glances {
            let (name, mut one) = known.remove_entry(&glance.name).unwrap_or_else(|| {
                let name = glance.name.clone();
                (name, Known::default())
            });
            lines.extend(one.take(glance, now));
            self.0.insert(name, one);
        }
        lines
    }
}

impl Known {
    fn take(&mut self, glance: &Glance, now: Instant) -> Option<String> {
        let all = glance.counters.get(Verdict::SynUnjudged);
        // Of such a group weir cannot know the queue, and says so elsewhere. Another socket of this name counts anew.
        if glance.steered || all < self.said {
            self.said = all;
        }
        let new = all - self.said;
        if new == 0 || self.said_at.is_some_and(|at| now < at + EVERY) {
            return None;
        }
        (self.said, self.said_at) = (all, Some(now));
        Some(format!(
            "{}: {} passed unjudged: more listening sockets are busy than weir can remember (`weir explain syn_unjudged`)",
            glance.name,
            count(new as usize, "SYN")
        ))
    }
}

#[cfg(test)]
mod tests {
    use weir_core::forecast::Rule;
    use weir_core::listener::Mode;
    use weir_core::verdict::Counters;

    use super::*;

    fn glance(unjudged: u64, steered: bool) -> Glance {
        let mut counters = Counters::default();
        counters.0[Verdict::SynUnjudged as usize] = unjudged;
        Glance {
            name: "web@web-1".into(),
            mode: Mode::Enforce,
            counters,
            queue_length: 0,
            queue_limit: 4,
            sockets: 1,
            half_open: 0,
            came: None,
            wait: None,
            waits_too_long: false,
            accepts: None,
            kept: 0,
            rule: Rule {
                target: None,
                interval: Duration::ZERO,
                least: 0,
            },
            steered,
        }
    }

    #[test]
    fn syns_that_pass_unjudged_are_said_once_a_minute_and_none_is_left_out() {
        let mut unjudged = Unjudged::default();
        let now = Instant::now();
        assert!(unjudged.take(&[glance(0, false)], now).is_empty());
        let said = unjudged.take(&[glance(3, false)], now);
        assert!(
            said[0].starts_with("web@web-1: 3 SYNs passed unjudged"),
            "{said:?}"
        );
        assert!(unjudged.take(&[glance(3, false)], now + EVERY).is_empty());
        assert!(
            unjudged
                .take(&[glance(5, false)], now + EVERY / 2)
                .is_empty()
        );
        let said = unjudged.take(&[glance(6, false)], now + EVERY);
        assert!(said[0].contains(" 3 SYNs "), "{said:?}");
    }

    #[test]
    fn of_a_group_that_a_program_steers_nothing_is_said() {
        let mut unjudged = Unjudged::default();
        let now = Instant::now();
        assert!(unjudged.take(&[glance(9, true)], now).is_empty());
        assert_eq!(unjudged.take(&[glance(10, false)], now).len(), 1);
    }
}
