//! How much a server's own queue is to hold, and when it is to be filled.

use std::time::Duration;

/// How many connections the server's own queue is to hold. As few as possible, since those are served
/// before whoever comes, and enough that the server never finds it empty while others wait.
///
/// The queue is looked at in intervals. If it was filled and is empty at the very next look, the server
/// may have had to wait: then it is to hold twice as many. If for long it never ran empty, a quarter less: a
/// look that came late has it grow for nothing, and a deep queue is one in order of arrival.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Depth {
    depth: u32,
    filled: bool,
    /// Looks since it ran empty last.
    calm: u32,
}

/// A server that takes more than this between two looks finds its queue empty now and then.
const DEPTH_MOST: u32 = 256;
/// Looks without running empty after which the queue is to hold less.
const CALM: u32 = 64;

impl Default for Depth {
    fn default() -> Depth {
        Depth {
            depth: 1,
            filled: false,
            calm: 0,
        }
    }
}

impl Depth {
    /// How many it is to hold now.
    pub fn get(&self) -> u32 {
        self.depth
    }

    /// A look found the queue with `length`, while others waited.
    pub fn looked(&mut self, length: u32) {
        if length > 0 {
            self.calm += 1;
            if self.calm >= CALM {
                self.depth = (self.depth - self.depth.div_ceil(4)).max(1);
                self.calm = 0;
            }
        } else {
            self.calm = 0;
            if self.filled {
                self.depth = (self.depth * 2).min(DEPTH_MOST);
            }
        }
        self.filled = false;
    }

    /// The queue was filled up to the depth.
    pub fn filled(&mut self) {
        self.filled = true;
    }
}

/// When the server's queue is to be filled again: as late as it can be without making the server wait.
///
/// A connection that has been released is served before all that come then. A server that takes a connection each
/// millisecond needs the next one only at the end of that millisecond; had it been given one at the beginning,
/// a connection of the highest class that comes meanwhile would wait for that one too. So the place is kept
/// free for half of the time that the server takes at least: the least of its last [`SEEN`] intervals, so that
/// one whose work varies does not run empty. A wrong guess costs half of an interval, and is half as long then.
/// Only of use while others wait: an interval in which there was nobody to take is none of the server's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pace {
    /// Lengths of the last intervals from one accept to the next.
    intervals: [Duration; SEEN],
    next: usize,
    /// When the server was seen to have taken a connection last.
    took: Option<Duration>,
}

/// Intervals that are remembered.
const SEEN: usize = 16;
/// Clients that come later than this after the accept are not waited for.
const HOLD_MOST: Duration = Duration::from_millis(20);
/// How often the servers' queues are looked at while something waits. At 1000 accepts/s one place that
/// is filled again within this costs nothing; faster servers get a greater depth.
const LOOK: Duration = Duration::from_micros(200);
/// And however slow the server is: others come, who may be too many.
const LOOK_LATEST: Duration = Duration::from_millis(5);

impl Default for Pace {
    fn default() -> Pace {
        Pace {
            intervals: [Duration::ZERO; SEEN],
            next: 0,
            took: None,
        }
    }
}

impl Pace {
    /// A look at `now` found that the server has taken `n` connections since the last look.
    pub fn took(&mut self, n: u32, now: Duration) {
        if n == 0 {
            return;
        }
        if let Some(before) = self.took {
            self.intervals[self.next] = now.saturating_sub(before) / n;
            self.next = (self.next + 1) % SEEN;
        }
        self.took = Some(now);
    }

    /// The queue need not be filled before this.
    pub fn fill_at(&self) -> Duration {
        let hold = (self.least() / 2).min(HOLD_MOST);
        self.took.map_or(Duration::ZERO, |took| took + hold)
    }

    /// When to look at the queue again after a look at `now`. `full`: whether it holds what it is to hold;
    /// `surplus`: how many more it holds. They keep the server busy before there is a place.
    pub fn look_at(&self, now: Duration, full: bool, surplus: u32) -> Duration {
        let (soon, late) = (now + LOOK, now + LOOK_LATEST);
        if !full && self.fill_at() > now {
            return self.fill_at().clamp(now + LOOK / 4, late);
        }
        // It takes no other connection before its least interval is over; what was seen may be as old as a look.
        let busy = self.least().saturating_mul(surplus.saturating_add(1));
        let taken = self.took.map_or(Duration::ZERO, |took| took + busy);
        taken.saturating_sub(LOOK).clamp(soon, late)
    }

    fn least(&self) -> Duration {
        self.intervals.iter().min().copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_depth_grows_only_while_the_queue_runs_empty_from_one_look_to_the_next() {
        let mut depth = Depth::default();
        // 1 ms service, a look each 200 us: taken soon after it was filled, then busy for long.
        for _ in 0..100 {
            depth.looked(0);
            depth.filled();
            for _ in 0..4 {
                depth.looked(1);
            }
        }
        assert_eq!(depth.get(), 1);
        for _ in 0..3 {
            depth.looked(0);
            depth.filled();
        }
        assert_eq!(depth.get(), 4);
        for _ in 0..CALM {
            depth.looked(4);
        }
        assert_eq!(depth.get(), 3);
    }

    #[test]
    fn a_depth_that_late_looks_made_is_gone_in_a_fifth_of_a_second() {
        let mut depth = Depth::default();
        for _ in 0..20 {
            depth.looked(0);
            depth.filled();
        }
        assert_eq!(depth.get(), DEPTH_MOST);
        let mut looks = 0;
        while depth.get() > 2 {
            depth.looked(1);
            looks += 1;
        }
        assert!(LOOK * looks < Duration::from_millis(250), "{looks}");
    }

    /// What a server with a queue of one place does that works for these times, one connection after the other
    /// while others wait: the share of time in which it has nothing to do, and for how long the place is free
    /// behind each connection that it takes.
    fn paced(services: impl Iterator<Item = Duration>) -> (f64, Vec<Duration>) {
        let (mut pace, mut free) = (Pace::default(), Vec::new());
        // Of the server: when it takes the one in its queue; when it took the last one; since when it has none.
        let (mut done, mut took, mut idle) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
        let mut look = Duration::ZERO;
        for service in services {
            // The place is empty.
            while pace.fill_at() > look {
                look = pace.look_at(look, false, 0);
            }
            free.push(look.saturating_sub(took));
            took = done.max(look);
            idle += took - done;
            done = took + service;
            // The place is full until the server takes what is there.
            while look < took {
                look = pace.look_at(look, true, 0);
            }
            pace.took(1, look);
        }
        (idle.as_secs_f64() / done.as_secs_f64(), free)
    }

    #[test]
    fn a_steady_server_s_place_is_filled_late_and_it_never_waits() {
        let (idle, free) = paced(std::iter::repeat_n(MS, 2000));
        assert!(idle < 0.005, "{idle}");
        let kept = free.iter().filter(|free| **free >= MS * 4 / 10).count();
        assert!(kept > 1900, "{kept} {:?}", &free[1000..1020]);
    }

    #[test]
    fn a_server_whose_work_varies_or_gets_less_hardly_waits() {
        let mut random = 7u64;
        let mut varied = || {
            random = random
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            Duration::from_micros(200 + (random >> 33) % 1800)
        };
        let (idle, _) = paced((0..5000).map(|_| varied()));
        assert!(idle < 0.02, "{idle}");
        let (idle, _) = paced((0..4000).map(|i| if i < 1000 { MS * 5 } else { MS / 2 }));
        assert!(idle < 0.02, "{idle}");
    }

    #[test]
    fn a_server_with_a_long_queue_is_looked_at_when_it_has_served_it_and_not_later_than_5_ms() {
        let mut pace = Pace::default();
        (0..=SEEN as u32).for_each(|i| pace.took(1, LOOK * i));
        let now = LOOK * SEEN as u32;
        assert_eq!(pace.look_at(now, true, 0), now + LOOK);
        assert_eq!(pace.look_at(now, true, 10), now + LOOK * 10);
        assert_eq!(pace.look_at(now, true, 1000), now + LOOK_LATEST);
    }

    #[test]
    fn a_fast_server_s_place_is_filled_at_once() {
        let mut pace = Pace::default();
        for look in 1..100 {
            pace.took(5, LOOK * look);
            assert!(pace.fill_at() < LOOK * (look + 1));
        }
    }
}
