//! Does a source connect seldom and steadily, as health checks do? The model of bpf/lib/steady.h.
//!
//! A source is an address at a listener. Time goes in windows of 2^29 ns, half a second. All numbers of
//! windows are modulo 2^16.

use weir_core::class::{BucketLimit, UNITS_PER_NS};
use weir_core::wait::SERVICE_MAX_NS;

use crate::wait::Wait;

/// Connections of one window above which a source is busy.
pub const MOST: u8 = 8;
/// Windows between two connections after which a source is forgotten: 2.3 min.
pub const GAP: u16 = 256;
/// Windows after which a source is steady.
pub const AFTER: u8 = 3;
/// Windows after which it is so for long.
pub const LONG_AFTER: u8 = 16;
/// Sources of a set.
pub const WAYS: usize = 8;
/// A new source takes the place of another that is not steady with a chance of one in so many.
pub const CHANCE: u32 = 8;

/// Of each kind of steady sources, one of so many accepts is theirs.
pub const SHARE: u64 = 8;
/// So many of them at once.
pub const BURST: u64 = 4;

/// What steady sources of one kind may take of the server whose wait this is: an eighth of what it accepts. Of a server
/// that has stopped, as if it accepted one now (`steady_limit()` of bpf/lib/admit.h).
pub fn limit(wait: &Wait, now: u64) -> BucketLimit {
    let stopped = wait.stopped(now).min(SERVICE_MAX_NS);
    let interval = wait.service().max(stopped) * SHARE * UNITS_PER_NS;
    let ahead = if stopped > 0 { 0 } else { BURST - 1 };
    BucketLimit {
        interval,
        tolerance: ahead * interval,
    }
}

/// Whether a source is steady.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Steadiness {
    /// It is not, or nothing is known of it.
    Not,
    /// For [`AFTER`] windows.
    Short,
    /// For [`LONG_AFTER`] windows.
    Long,
}

/// What is known of a source. The default is a free place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Source {
    /// Hash of its address and the listener.
    pub key: u32,
    /// When it came last.
    pub window: u16,
    /// How often it came in that window, at most [`MOST`] + 1; 0: the place is free.
    pub count: u8,
    /// Windows in which it came seldom, without a break; at most 255.
    pub streak: u8,
}

impl Source {
    fn gap(&self, window: u16) -> u16 {
        window.wrapping_sub(self.window)
    }

    /// So long not seen that nothing is known of it any more.
    fn is_stale(&self, window: u16) -> bool {
        self.count == 0 || self.gap(window) > GAP
    }

    /// Whether it is steady.
    pub fn steadiness(&self) -> Steadiness {
        match self.streak {
            LONG_AFTER.. => Steadiness::Long,
            AFTER.. => Steadiness::Short,
            _ => Steadiness::Not,
        }
    }

    /// The same source, after it came once more.
    fn seen(self, window: u16) -> Source {
        if !self.is_stale(window) && self.window == window {
            return match self.count {
                MOST.. => Source {
                    count: MOST + 1,
                    streak: 0,
                    ..self
                },
                count => Source {
                    count: count + 1,
                    ..self
                },
            };
        }
        let streak = if self.is_stale(window) {
            0
        } else {
            self.streak
        };
        Source {
            window,
            count: 1,
            streak: streak.saturating_add(1),
            ..self
        }
    }
}

/// Sources that share a cache line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SourceSet(pub [Source; WAYS]);

impl SourceSet {
    /// Notes that the source with this key comes. `chance`: evenly spread bits, of which this reads the lowest six.
    pub fn note(&mut self, key: u32, window: u16, chance: u32) -> Steadiness {
        let known = self.0.iter().position(|source| source.key == key);
        let Some(place) = known.or_else(|| self.place(window, chance)) else {
            return Steadiness::Not;
        };
        let before = match known {
            Some(_) => self.0[place],
            None => Source::default(),
        };
        self.0[place] = Source { key, ..before }.seen(window);
        self.0[place].steadiness()
    }

    /// The place of a new source, if it gets the one that chance names.
    fn place(&self, window: u16, chance: u32) -> Option<usize> {
        let place = (chance / CHANCE) as usize % WAYS;
        let there = &self.0[place];
        let takes = chance.is_multiple_of(CHANCE) && there.steadiness() == Steadiness::Not;
        (takes || there.is_stale(window)).then_some(place)
    }
}

#[cfg(test)]
mod tests {
    use weir_core::class::Bucket;

    use super::*;

    const CHECK: u32 = 1;

    /// A check every `every` windows from window 0 on; what it is at its last time.
    fn checks(set: &mut SourceSet, every: u16, times: u16) -> Steadiness {
        let all = (0..times).map(|n| set.note(CHECK, n * every, 8));
        all.last().unwrap()
    }

    #[test]
    fn a_check_is_steady_from_its_third_time_on() {
        for every in [1, 2, 20, 60, 256] {
            let after = |times| checks(&mut SourceSet::default(), every, times);
            assert_eq!(after(2), Steadiness::Not, "every {every} windows");
            assert_eq!(after(3), Steadiness::Short, "every {every} windows");
            assert_eq!(after(16), Steadiness::Long, "every {every} windows");
        }
        let rarely = checks(&mut SourceSet::default(), 257, 100);
        assert_eq!(rarely, Steadiness::Not);
    }

    #[test]
    fn a_busy_source_is_never_steady() {
        let mut set = SourceSet::default();
        for n in 0..1000 {
            let is = set.note(CHECK, n / (u16::from(MOST) + 1), 8);
            assert_eq!(is, Steadiness::Not, "{n}");
        }
    }

    #[test]
    fn one_burst_begins_anew() {
        let mut set = SourceSet::default();
        assert_eq!(checks(&mut set, 1, 20), Steadiness::Long);
        for _ in 0..=MOST {
            set.note(CHECK, 20, 8);
        }
        assert_eq!(set.note(CHECK, 21, 8), Steadiness::Not);
        assert_eq!(set.note(CHECK, 22, 8), Steadiness::Not);
        assert_eq!(set.note(CHECK, 23, 8), Steadiness::Short);
    }

    #[test]
    fn neither_crowd_nor_flood_makes_weir_forget_a_steady_source() {
        let mut set = SourceSet::default();
        checks(&mut set, 1, 3);
        for n in 2..200_000u32 {
            set.note(n, 3 + (n / 10_000) as u16, n.wrapping_mul(0x9e37_79b1) >> 8);
        }
        assert_eq!(set.note(CHECK, 24, 1), Steadiness::Short);
    }

    /// 512 sets hold what 2 000 new clients a second leave: four a second in each, two a window.
    #[test]
    fn checks_every_ten_seconds_become_steady_among_clients_that_come_once() {
        let mut set = SourceSet::default();
        let mut random = 1u32;
        let mut client = CHECK;
        for window in 0..2400 {
            for n in 0..3u32 {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                client += 1;
                let key = if n == 0 && window % 20 == 0 {
                    CHECK
                } else {
                    client
                };
                let is = set.note(key, window, random >> 16);
                if key == CHECK && is == Steadiness::Long {
                    return;
                }
            }
        }
        panic!("not steady after 20 minutes: {set:?}");
    }

    /// A server of 10 accepts/s that stops, and one that accepted nothing yet.
    #[test]
    fn most_checks_of_a_stopped_server_fail() {
        let second = 1_000_000_000;
        let busy = Wait {
            looked_ns: second,
            accepted_ns: second,
            service_ns: second / 10,
            ..Wait::default()
        };
        let unknown = Wait {
            service_ns: 0,
            ..busy
        };
        for (wait, burst) in [(busy, 4), (unknown, 100)] {
            let mut bucket = Bucket::default();
            let mut let_in = |now| bucket.take(now, &limit(&wait, now));
            let runs = (0..100).filter(|_| let_in(second)).count();
            assert_eq!(runs, burst);
            // Three a second for a minute.
            let stopped = (2..=180).filter(|n| let_in(second + n * second / 3));
            assert!((1..=3).contains(&stopped.count()));
        }
    }

    #[test]
    fn checks_are_let_in_at_once_when_a_stopped_server_goes_on() {
        let second = 1_000_000_000;
        let mut wait = Wait {
            looked_ns: second,
            accepted_ns: second,
            service_ns: second / 1000,
            ..Wait::default()
        };
        let mut bucket = Bucket::default();
        assert!(bucket.take(100 * second, &limit(&wait, 100 * second)));
        wait.accepted_ns = 101 * second;
        wait.gap_ns = 100 * second;
        assert!(bucket.take(102 * second, &limit(&wait, 102 * second)));
    }

    #[test]
    fn a_place_that_was_not_used_for_long_is_free() {
        let mut set = SourceSet::default();
        for key in 1..=8 {
            for window in 0..4 {
                set.note(key, window, (key - 1) * CHANCE);
            }
        }
        assert!(set.0.iter().all(|s| s.steadiness() == Steadiness::Short));
        assert_eq!(set.note(99, 200, 0), Steadiness::Not);
        assert!(set.0.iter().all(|source| source.key != 99));
        set.note(99, 300, 3);
        assert!(set.0.iter().any(|source| source.key == 99));
    }
}
