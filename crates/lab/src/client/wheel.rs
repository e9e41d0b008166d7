//! Timers in O(1): a wheel of one-millisecond buckets.
//!
//! A timer is never taken out; its owner checks, when it fires, whether it is still meant. So an
//! armed timer costs one push and, at its time, one look.

/// Buckets, and so milliseconds, of one turn; a power of two. Longer timers go round again.
const BUCKETS: usize = 16_384;

/// A timer wheel; an entry is (connection number, deadline in ms).
#[derive(Debug)]
pub struct Wheel {
    buckets: Vec<Vec<(u32, u32)>>,
    next_ms: u32,
    spare: Vec<(u32, u32)>,
}

impl Wheel {
    /// An empty wheel whose time begins at `now_ms`.
    pub fn new(now_ms: u32) -> Wheel {
        Wheel {
            buckets: vec![Vec::new(); BUCKETS],
            next_ms: now_ms,
            spare: Vec::new(),
        }
    }

    /// Arms a timer. A deadline that is past fires at the next call of [`Wheel::expire`].
    pub fn arm(&mut self, owner: u32, deadline_ms: u32) {
        let at = deadline_ms.max(self.next_ms);
        self.buckets[at as usize % BUCKETS].push((owner, deadline_ms));
    }

    /// Calls `fire` for every timer with a deadline up to `now_ms`, bucket by bucket. `fire` may
    /// arm timers through the wheel that it is given.
    pub fn expire(&mut self, now_ms: u32, mut fire: impl FnMut(&mut Wheel, u32, u32)) {
        while self.next_ms <= now_ms {
            let index = self.next_ms as usize % BUCKETS;
            self.next_ms += 1;
            let mut due =
                std::mem::replace(&mut self.buckets[index], std::mem::take(&mut self.spare));
            for (owner, deadline_ms) in due.drain(..) {
                if deadline_ms < self.next_ms {
                    fire(self, owner, deadline_ms);
                } else {
                    self.buckets[index].push((owner, deadline_ms));
                }
            }
            self.spare = due;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fired(wheel: &mut Wheel, now_ms: u32) -> Vec<(u32, u32)> {
        let mut out = Vec::new();
        wheel.expire(now_ms, |_, owner, deadline| out.push((owner, deadline)));
        out
    }

    #[test]
    fn timers_fire_at_their_deadline_and_not_before() {
        let mut wheel = Wheel::new(0);
        wheel.arm(1, 5);
        wheel.arm(2, 3);
        assert_eq!(fired(&mut wheel, 2), []);
        assert_eq!(fired(&mut wheel, 4), [(2, 3)]);
        assert_eq!(fired(&mut wheel, 9), [(1, 5)]);
        assert_eq!(fired(&mut wheel, 40_000), []);
    }

    #[test]
    fn timers_longer_than_a_turn_wait_their_turns() {
        let mut wheel = Wheel::new(0);
        wheel.arm(1, 3 * BUCKETS as u32 + 7);
        assert_eq!(fired(&mut wheel, 3 * BUCKETS as u32 + 6), []);
        assert_eq!(
            fired(&mut wheel, 3 * BUCKETS as u32 + 7),
            [(1, 3 * BUCKETS as u32 + 7)]
        );
    }

    #[test]
    fn late_timers_and_timers_armed_while_firing_fire_too() {
        let mut wheel = Wheel::new(100);
        wheel.arm(1, 5);
        let mut out = Vec::new();
        wheel.expire(102, |wheel, owner, deadline| {
            out.push(owner);
            if owner == 1 {
                wheel.arm(2, deadline + 1);
            }
        });
        assert_eq!(out, [1, 2]);
    }
}
