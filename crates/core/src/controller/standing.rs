//! Whether something stands over its bound: CoDel's question (RFC 8289), as `admit = "wait"` asks it of
//! the listen queue in the kernel.

use std::time::Duration;

/// Of its high mark, a level must have lost this share to count as draining.
const DRAINED: f64 = 1.0 / 8.0;

/// A level over its bound, as long as it is over.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Standing {
    over: Option<Over>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Over {
    since: Duration,
    /// Since when it has not drained, and the highest level since then.
    stands_since: Duration,
    high: f64,
}

/// For how long a level has been over its bound.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct For {
    /// Without draining.
    pub stood: Duration,
    /// In all: a noisy level seems to drain now and then, and never does.
    pub over: Duration,
    /// Whether it is higher now than ever since it stands.
    pub rises: bool,
}

impl Standing {
    /// Takes a look.
    pub fn look(&mut self, now: Duration, level: f64, bound: f64) -> For {
        if level <= bound {
            self.over = None;
            return For::default();
        }
        let fresh = Over {
            since: now,
            stands_since: now,
            high: level,
        };
        let over = self.over.get_or_insert(fresh);
        if level < over.high * (1.0 - DRAINED) {
            (over.stands_since, over.high) = (now, level);
        }
        let rises = level > over.high;
        over.high = over.high.max(level);
        For {
            stood: now.saturating_sub(over.stands_since),
            over: now.saturating_sub(over.since),
            rises,
        }
    }

    /// Whether it was over its bound at the last look.
    pub fn is_over(&self) -> bool {
        self.over.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stood(levels: &[f64]) -> Duration {
        last(levels).stood
    }

    fn last(levels: &[f64]) -> For {
        let mut standing = Standing::default();
        let looks = levels.iter().enumerate();
        let at = |i: usize| Duration::from_millis(100 * i as u64);
        looks.fold(For::default(), |_, (i, &level)| {
            standing.look(at(i), level, 10.0)
        })
    }

    #[test]
    fn a_level_that_stays_over_stands() {
        assert_eq!(stood(&[20.0, 21.0, 19.0, 20.0]), Duration::from_millis(300));
    }

    #[test]
    fn a_burst_that_drains_does_not() {
        assert_eq!(stood(&[100.0, 80.0, 60.0, 40.0, 20.0]), Duration::ZERO);
        assert_eq!(stood(&[100.0, 100.0, 9.0]), Duration::ZERO);
    }

    #[test]
    fn only_one_that_is_higher_than_ever_rises() {
        assert!(last(&[20.0, 30.0, 29.0, 31.0]).rises);
        assert!(!last(&[20.0, 30.0, 29.0]).rises);
        assert!(!last(&[30.0]).rises, "one look is no rise");
        assert!(!last(&[100.0, 60.0]).rises);
    }

    #[test]
    fn one_that_fills_again_begins_anew() {
        assert_eq!(
            stood(&[100.0, 60.0, 90.0, 95.0]),
            Duration::from_millis(200)
        );
    }

    #[test]
    fn noise_hides_how_long_it_stands_and_not_how_long_it_is_over() {
        let noisy = [100.0, 85.0, 100.0, 80.0, 95.0];
        assert_eq!(last(&noisy).stood, Duration::from_millis(100));
        assert_eq!(last(&noisy).over, Duration::from_millis(400));
    }
}
