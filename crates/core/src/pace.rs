//! How fast a server takes connections out of a queue that is long, counted by what came out of it.
//!
//! [`crate::wait`] takes for accepted what was let in, and is neither in the queue nor under way. While the guard keeps the queue,
//! that is so. A queue that the kernel keeps full is another thing: a SYN is let in when a place is free, and its last ACK finds
//! the place taken. The handshake stays under way until its client gives up or the kernel does, a minute later, and then it looks
//! accepted. The estimate of such a server is up to several times too fast, and of the wait too short.
//!
//! A [`Pace`] counts what the kernel has put into the queue less what waits. It needs a queue in which more wait than are
//! accepted between two looks: that proves that the server was busy all the time. Of others it says nothing.
//!
//! Times are of any clock that does not go back, from any beginning.

use std::time::Duration;

/// Fewest accepts of a sample: workers that finish together are seen over several turns.
const SAMPLE_ACCEPTS: i64 = 12;
/// Least time of a sample.
const SAMPLE_TIME: Duration = Duration::from_secs(1);
/// So much of the estimate a new sample makes.
const NEW: f64 = 0.25;
/// An estimate of [`crate::wait`] that is faster by less than this differs by chance.
const MUCH: f64 = 1.25;

/// A listener at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// When.
    pub at: Duration,
    /// Connections accepted until then, from any beginning.
    pub accepted: i64,
    /// Connections that wait for accept().
    pub queue_length: u32,
}

/// Follows one listener.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pace {
    last: Option<Look>,
    accepts: i64,
    time: Duration,
    per_second: Option<f64>,
}

impl Pace {
    /// Takes a look in.
    pub fn take(&mut self, look: Look) {
        let Some(before) = self.last.replace(look) else {
            return;
        };
        let accepts = look.accepted - before.accepted;
        let is_busy = (0..i64::from(before.queue_length)).contains(&accepts);
        if !is_busy {
            *self = Pace {
                last: self.last,
                ..Pace::default()
            };
            return;
        }
        self.accepts += accepts;
        self.time += look.at.saturating_sub(before.at);
        if self.accepts >= SAMPLE_ACCEPTS && self.time >= SAMPLE_TIME {
            let sample = self.accepts as f64 / self.time.as_secs_f64();
            let known = self.per_second.unwrap_or(sample);
            self.per_second = Some(known + NEW * (sample - known));
            (self.accepts, self.time) = (0, Duration::ZERO);
        }
    }

    /// How many times longer connections wait than an estimate of so many accepts a second says; 1 where they agree.
    pub fn slower_than(&self, per_second: Option<f64>) -> f64 {
        let times = per_second.zip(self.per_second);
        let times = times.map(|(estimate, counted)| estimate / counted);
        times.filter(|times| *times > MUCH).unwrap_or(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_models::admit::QueueView;
    use weir_models::wait::Wait;

    const MS: u64 = 1_000_000;

    /// A server of one accept in 23 ms, whose queue of 511 is full. As many handshakes begin beside those that find a place, and end a
    /// minute later without one. Returns both estimates of the wait.
    fn overloaded(seconds: u64) -> (Duration, Pace, Wait) {
        let (mut wait, mut pace) = (Wait::default(), Pace::default());
        let (mut admitted, mut accepted) = (511u32, 0i64);
        let mut now = 0;
        for ms in (0..seconds * 1000).step_by(23) {
            now = (ms + 1) * MS;
            (admitted, accepted) = (admitted + 2, accepted + 1);
            let under_way = (ms / 23).min(60_000 / 23) as u32;
            let view = QueueView {
                length: 511,
                limit: 511,
                half_open: under_way,
                ..QueueView::default()
            };
            wait.measure(now, &view, admitted);
            if ms % 253 == 0 {
                pace.take(Look {
                    at: Duration::from_millis(ms),
                    accepted,
                    queue_length: 511,
                });
            }
        }
        (Duration::from_nanos(wait.now(now, 511)), pace, wait)
    }

    #[test]
    fn handshakes_that_end_without_a_place_are_not_accepts() {
        let true_wait = 511.0 * 0.023;
        for seconds in [10, 30, 90, 200] {
            let (estimate, pace, wait) = overloaded(seconds);
            let bpf = 1e9 / wait.service() as f64;
            let corrected = estimate.as_secs_f64() * pace.slower_than(Some(bpf));
            let off = corrected / true_wait;
            assert!((0.9..1.1).contains(&off), "{seconds}: {estimate:?}, {off}");
        }
        let (estimate, ..) = overloaded(200);
        assert!(
            estimate.as_secs_f64() < 0.6 * true_wait,
            "{estimate:?}: nothing to correct"
        );
    }

    #[test]
    fn of_a_server_that_may_have_been_idle_nothing_is_known() {
        let mut pace = Pace::default();
        for quarter in 0..100 {
            pace.take(Look {
                at: Duration::from_millis(250 * quarter),
                accepted: 10 * quarter as i64,
                queue_length: 10,
            });
        }
        assert_eq!(pace.per_second, None);
        assert!((pace.slower_than(Some(1e5)) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_pool_of_four_whose_workers_finish_together_is_seen_over_its_turns() {
        let mut pace = Pace::default();
        for quarter in 0..200 {
            pace.take(Look {
                at: Duration::from_millis(250 * quarter),
                accepted: (quarter / 8 * 4) as i64,
                queue_length: 237,
            });
        }
        let per_second = pace.per_second.unwrap();
        assert!((1.8..2.5).contains(&per_second), "{per_second}");
        pace.take(Look {
            at: Duration::from_secs(60),
            accepted: 100 + 400,
            queue_length: 3,
        });
        assert_eq!(pace.per_second, None, "it has drained");
    }
}
