//! The loop that keeps the wait in one listener's accept queue.

use std::time::Duration;

use super::pid::{Gains, Pid};
use super::standing::Standing;
use super::statistics::ListenerStatistics;

/// The queue must stand over its set point for so many intervals before anybody is refused.
const STANDS_INTERVALS: u32 = 3;
/// And for the time of so many accepts: with fewer, a short queue of a slow server is chance.
const STANDS_ACCEPTS: f64 = 32.0;
/// One that is so many times its set point and still rises has no need to stand as long,
const FAR: f64 = 4.0;
/// nor one of which so much is taken, which refuses high and low,
const FULL: f64 = 0.95;
/// but only for so many intervals: what comes in until then, the server works off before anybody else is served.
const RISES_INTERVALS: u32 = 2;
/// A queue that is over its set point for so many intervals stands, however it looks between.
const OVER_INTERVALS: u32 = 8;
/// And for the time of so many accepts.
const OVER_ACCEPTS: f64 = 96.0;
/// The shortest set point, in connections: a server of long service has one waiting at every moment.
const LEAST_QUEUE: f64 = 4.0;
/// The longest set point, as a share of the backlog: beyond it bursts of high classes find no place.
const OF_BACKLOG: f64 = 0.5;
/// Below this share of its set point the queue may run empty, and the server be throttled for nothing.
const NEARLY_EMPTY: f64 = 0.25;
/// How much more is let in an interval while it is nearly empty; doubles up to the second.
const PROBE: (f64, f64) = (0.05, 0.3);
/// The least budget, as a share of what the server accepts.
const LEAST_SHARE: f64 = 0.05;
/// While a long queue is worked off the lowest class waits. So much of what the server accepts stays for those
/// above it: with more, the queue of four times saturation would not be gone within two seconds.
const ABOVE_SHARE: f64 = 0.25;
/// And so much for what was promised, which goes before the time that the queue takes.
const PROMISED_SHARE: f64 = 0.75;
/// The least budget in connections a second.
pub const LEAST_RATE: f64 = 1.0;
/// Clients that ask for less than this share of what the server can need no limit any more,
pub const UNUSED: f64 = 0.95;
/// after so many intervals.
const CALM_INTERVALS: u32 = 5;

const GAINS: Gains = Gains {
    proportional: 0.4,
    integral: 0.05,
    derivative: 0.1,
    output: (LEAST_SHARE - 1.0, 0.2),
    windup: 0.2,
};

/// What may come in, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct Budget {
    /// Connections a second.
    pub rate: f64,
    /// In words, for the decision log.
    pub reason: String,
}

/// What clients ask of a listener, connections/s.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Asked {
    /// What clients try and the operator's own rates let through.
    pub all: f64,
    /// Of that, what comes of the classes above the lowest,
    pub above: f64,
    /// and what classes were promised.
    pub promised: f64,
}

/// The time of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Clock {
    /// Of the last reading.
    pub now: Duration,
    /// Between it and the one before.
    pub interval: Duration,
    /// As configured.
    pub nominal: Duration,
}

impl Clock {
    /// Whether it has been calm for [`CALM_INTERVALS`]; `since` remembers.
    pub fn calm(&self, since: &mut Option<Duration>, is_calm: bool) -> bool {
        *since = since.or(Some(self.now)).filter(|_| is_calm);
        since.is_some_and(|since| self.now.saturating_sub(since) >= CALM_INTERVALS * self.nominal)
    }
}

/// One listener's loop.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct QueueLoop {
    standing: Standing,
    /// What the server accepts, as last known, /s; 0.0: not yet.
    capacity: f64,
    on: Option<On>,
}

#[derive(Debug, Clone, PartialEq, Default)]
struct On {
    pid: Pid,
    probe: f64,
    budget: f64,
    calm_since: Option<Duration>,
}

impl QueueLoop {
    /// Takes the last reading in; the budget while the loop is on. Without `enforce` the budget has no
    /// effect on the queue, so the queue does not correct it.
    pub fn step(
        &mut self,
        clock: Clock,
        enforce: bool,
        listener: &ListenerStatistics,
        target: Duration,
        asked: Asked,
    ) -> Option<Budget> {
        // A server that stands still keeps the speed that it had: it says nothing about another.
        let seen = listener.capacity.value().unwrap_or(0.0);
        self.capacity = if seen > 0.0 { seen } else { self.capacity };
        let capacity = self.capacity;
        if capacity == 0.0 {
            // Nothing was accepted yet: nothing is known, and nobody is refused.
            return None;
        }
        let set_point = set_point(listener, capacity, target);
        let been = self
            .standing
            .look(clock.now, listener.queue_length, set_point);
        let needed = |intervals: u32, n| (intervals * clock.nominal).max(accepts(n, capacity));
        let is_full = listener.queue_length >= FULL * listener.queue_limit;
        let runs_away = is_full || been.rises && listener.queue_length > FAR * set_point;
        let stands = been.stood >= needed(STANDS_INTERVALS, STANDS_ACCEPTS)
            || runs_away && been.stood >= needed(RISES_INTERVALS, STANDS_ACCEPTS)
            || been.over >= needed(OVER_INTERVALS, OVER_ACCEPTS);
        if self.on.is_none() && !stands {
            return None;
        }
        let on = self.on.get_or_insert_default();
        on.correct(
            listener,
            capacity,
            set_point,
            clock.interval,
            asked,
            enforce,
        );
        // Not of the budget, which is more than the server can while the queue is short.
        let asks_for_less = asked.all < UNUSED * capacity && listener.queue_length <= set_point;
        if clock.calm(&mut on.calm_since, asks_for_less) {
            self.on = None;
            return None;
        }
        Some(Budget {
            rate: on.budget,
            reason: reason(listener, target, asked.all),
        })
    }

    /// Whether the queue was over its set point at the last look.
    pub fn is_over(&self) -> bool {
        self.standing.is_over()
    }
}

impl On {
    fn correct(
        &mut self,
        listener: &ListenerStatistics,
        capacity: f64,
        set_point: f64,
        interval: Duration,
        asked: Asked,
        enforce: bool,
    ) {
        let binds = self.budget == 0.0 || asked.all > self.budget;
        let error = (set_point - listener.queue_length) / (capacity * interval.as_secs_f64());
        let correction = match enforce {
            true => self.pid.next(&GAINS, error, binds) + self.probe(listener, set_point, binds),
            false => 0.0,
        };
        let least = (capacity * LEAST_SHARE)
            .max(asked.above.min(capacity * ABOVE_SHARE))
            .max(asked.promised.min(capacity * PROMISED_SHARE))
            .max(LEAST_RATE);
        self.budget = (capacity * (1.0 + correction)).max(least);
    }

    /// A server whose queue runs empty may be faster than it was: only more connections can show it.
    fn probe(&mut self, listener: &ListenerStatistics, set_point: f64, binds: bool) -> f64 {
        let (first, most) = PROBE;
        let is_nearly_empty = listener.queue_length < set_point * NEARLY_EMPTY;
        self.probe = match binds && is_nearly_empty {
            true => (2.0 * self.probe).clamp(first, most),
            false => 0.0,
        };
        self.probe
    }
}

/// The length that means the target's wait, within what the backlog and the accepts allow.
fn set_point(listener: &ListenerStatistics, capacity: f64, target: Duration) -> f64 {
    let most = (listener.queue_limit * OF_BACKLOG).max(1.0);
    (capacity * target.as_secs_f64()).max(LEAST_QUEUE).min(most)
}

/// The time of so many accepts, a minute at most.
fn accepts(n: f64, capacity: f64) -> Duration {
    Duration::from_secs_f64((n / capacity).min(60.0))
}

fn reason(listener: &ListenerStatistics, target: Duration, demand: f64) -> String {
    let wait = listener.wait().unwrap_or_default();
    format!(
        "{:.0} connections wait {} for accept(), target {}; {:.0} SYN/s come, {:.0}/s are accepted",
        listener.queue_length,
        crate::units::format_duration(Duration::from_millis(wait.as_millis() as u64)),
        crate::units::format_duration(target),
        demand,
        listener.accepts_mean.value().unwrap_or(0.0).max(0.0),
    )
}
