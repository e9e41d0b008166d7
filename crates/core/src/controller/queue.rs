//! The loop that keeps the wait in one listener's accept queue.

use std::time::Duration;

use super::pid::{Gains, Pid};
use super::standing::Standing;
use super::statistics::ListenerStatistics;
use crate::units::{about_rate, format_duration};

/// The queue must stand over its set point for so many intervals before anybody is refused.
const STANDS_INTERVALS: u32 = 3;
/// And for the time of so many accepts: with fewer, a short queue of a slow server is chance.
const STANDS_ACCEPTS: f64 = 32.0;
/// And so many of one that has no need to stand as long.
const RUNS_AWAY_ACCEPTS: f64 = 8.0;
/// One that is so many times its set point and still rises has no need to stand as long,
const FAR: f64 = 4.0;
/// nor one of which so much is taken, which refuses high and low,
const FULL: f64 = 0.95;
/// as the listener itself refuses at a slow server from some 3 times the set point on,
const SLOW_FULL: f64 = 2.0;
/// but only for so many intervals: what comes in until then, the server works off before anybody else is served.
const RISES_INTERVALS: u32 = 2;
/// A queue that is over its set point for so many intervals stands, however it looks between.
const OVER_INTERVALS: u32 = 8;
/// And for the time of so many accepts.
const OVER_ACCEPTS: f64 = 96.0;
/// The shortest set point, in connections: a server of long service has one waiting at every moment.
pub const LEAST_QUEUE: f64 = 10.0;
/// The longest set point, as a share of the backlog: beyond it bursts of high classes find no place.
const OF_BACKLOG: f64 = 0.5;
/// Below this share of its set point the queue may run empty, and the server be throttled for nothing.
const NEARLY_EMPTY: f64 = 0.25;
/// How much more is let in an interval while it is nearly empty; doubles up to the second.
const PROBE: (f64, f64) = (0.05, 0.3);
/// The least budget, as a share of what the server accepts.
pub const LEAST_SHARE: f64 = 0.05;
/// While a long queue is worked off the lowest class waits. So much of what the server accepts stays for those
/// above it: with more, the queue of four times saturation would not be gone within two seconds.
const ABOVE_SHARE: f64 = 0.25;
/// A sum of rates is not less than itself summed otherwise.
const ROUNDING: f64 = 1.0 + 1e-9;
/// How far the average of a rate that the server can just accept may be above that by chance, in deviations,
const CHANCE: f64 = 2.0;
/// of a number of events that is the least that an average is over,
const AVERAGED_EVENTS: f64 = 40.0;
/// or of what comes in so many intervals.
const AVERAGED_INTERVALS: f64 = 5.0;
/// More at a server so slow that the wait is over the target whatever comes: there it is only the refusals that the
/// classes above can be spared.
const SLOW_ABOVE_SHARE: f64 = 0.75;
/// And so much for what was promised, which goes before the time that the queue takes.
const PROMISED_SHARE: f64 = 0.75;
/// The least budget in connections a second.
pub const LEAST_RATE: f64 = 1.0;
/// or as a share of what a slow server accepts.
const LEAST_RATE_SHARE: f64 = 0.02;
/// Clients that ask for less than this share of what the server can need no limit any more,
pub const UNUSED: f64 = 0.95;
/// after so many intervals.
const CALM_INTERVALS: u32 = 5;
/// A limit that has refused nobody for so many intervals, and for the time of so many accepts, is needed no more, whatever
/// the server is thought to accept.
const IDLE_INTERVALS: u32 = 10;
const IDLE_ACCEPTS: f64 = 100.0;

/// Accepts between two looks, as the PID sees them: one that corrects the queue by less would only follow chance.
const LOOK_ACCEPTS: f64 = 2.0;

const GAINS: Gains = Gains {
    proportional: 0.4,
    integral: 0.05,
    derivative: 0.1,
    output: (LEAST_SHARE - 1.0, 2.0),
    windup: 0.2,
};

/// What may come in, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct Budget {
    /// Connections a second.
    pub rate: f64,
    /// What no class is limited below, connections/s.
    pub least: f64,
    /// Connections of a class that may come at once however low its rate, 1.0 at least: what the queue is short of its
    /// set point, for at few connections a second a bucket of one would refuse by chance those that there is room for.
    pub room: f64,
    /// In words, for the decision log.
    pub reason: String,
}

/// What clients ask of a listener, connections/s.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Asked {
    /// What clients try and the operator's own rates let through.
    pub all: f64,
    /// Of that, what comes of each priority above the lowest and of all above it, the highest first,
    pub above: Vec<f64>,
    /// and what classes were promised.
    pub promised: f64,
}

impl Asked {
    /// What all classes above the lowest ask for.
    fn all_above(&self) -> f64 {
        self.above.last().copied().unwrap_or(0.0)
    }

    /// What the classes ask for that the server can accept together: those of the highest priorities. The next one is
    /// the class that gives way.
    fn fits(&self, most: f64) -> f64 {
        let fitting = self.above.iter().copied().filter(|sum| *sum <= most);
        fitting.fold(0.0, f64::max)
    }
}

/// What a listener's loop keeps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Kept {
    /// Connections that wait: the set point.
    pub length: f64,
    /// Their wait. Longer than the target at a slow server, which would be idle with fewer.
    pub wait: Duration,
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
    kept: Option<Kept>,
    on: Option<On>,
}

#[derive(Debug, Clone, PartialEq, Default)]
struct On {
    pid: Pid,
    probe: f64,
    budget: f64,
    calm_since: Option<Duration>,
    idle_since: Option<Duration>,
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
        asked: &Asked,
    ) -> Option<Budget> {
        // A server that stands still keeps the speed that it had: it says nothing about another.
        let seen = listener.capacity.value().unwrap_or(0.0);
        self.capacity = if seen > 0.0 { seen } else { self.capacity };
        let capacity = self.capacity;
        if capacity == 0.0 || listener.accepted < RUNS_AWAY_ACCEPTS {
            // Next to nothing was accepted yet: nothing is known, and nobody is refused.
            return None;
        }
        let set_point = set_point(listener, capacity, target);
        self.kept = Some(Kept {
            length: set_point,
            wait: accepts(set_point, capacity),
        });
        let been = self
            .standing
            .look(clock.now, listener.queue_length, set_point);
        let needed = |intervals: u32, n| (intervals * clock.nominal).max(accepts(n, capacity));
        let is_slow = is_slow(set_point, capacity, target);
        let is_full = listener.queue_length >= FULL * listener.queue_limit
            || is_slow && listener.queue_length >= SLOW_FULL * set_point;
        let runs_away = is_full || been.rises && listener.queue_length > FAR * set_point;
        let stands = been.stood >= needed(STANDS_INTERVALS, STANDS_ACCEPTS)
            || runs_away && been.stood >= needed(RISES_INTERVALS, RUNS_AWAY_ACCEPTS)
            || been.over >= needed(OVER_INTERVALS, OVER_ACCEPTS);
        if self.on.is_none() && !stands {
            return None;
        }
        let on = self.on.get_or_insert_default();
        on.correct(
            listener,
            capacity,
            (set_point, target),
            clock,
            asked,
            enforce,
        );
        // Not of the budget, which is more than the server can while the queue is short.
        let asks_for_less = asked.all < UNUSED * capacity && listener.queue_length <= set_point;
        let refuses =
            !enforce || listener.refused.last() > 0.0 || listener.queue_length > set_point;
        on.idle_since = on.idle_since.or(Some(clock.now)).filter(|_| !refuses);
        let idle = on.idle_since.map(|since| clock.now.saturating_sub(since));
        let in_vain = idle.is_some_and(|idle| idle >= needed(IDLE_INTERVALS, IDLE_ACCEPTS));
        if clock.calm(&mut on.calm_since, asks_for_less) || in_vain {
            self.on = None;
            return None;
        }
        Some(Budget {
            rate: on.budget,
            least: least_rate(capacity),
            room: (set_point - listener.queue_length).clamp(1.0, LEAST_QUEUE),
            reason: reason(listener, target, asked.all),
        })
    }

    /// What it keeps; `None` while the server's speed is not known.
    pub fn kept(&self) -> Option<Kept> {
        self.kept
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
        (set_point, target): (f64, Duration),
        clock: Clock,
        asked: &Asked,
        enforce: bool,
    ) {
        let binds = self.budget == 0.0 || asked.all > self.budget;
        let at_next_look = (capacity * clock.interval.as_secs_f64()).max(LOOK_ACCEPTS);
        let error = (set_point - listener.queue_length) / at_next_look;
        let correction = match enforce {
            true => self.pid.next(&GAINS, error, binds) + self.probe(listener, set_point, binds),
            false => 0.0,
        };
        // Far from its set point the queue is more than the lowest class can bring down alone in time.
        let is_slow = is_slow(set_point, capacity, target);
        let above = match listener.queue_length > FAR * set_point {
            true if is_slow => asked
                .fits(by_chance(capacity, clock))
                .min(capacity * SLOW_ABOVE_SHARE),
            true => asked.all_above().min(capacity * ABOVE_SHARE),
            // What only seems more than the server can, by chance, is not limited: it will not last.
            false if is_slow => asked.fits(by_chance(capacity, clock)) * ROUNDING,
            false => asked.fits(by_chance(capacity, clock)).min(capacity),
        };
        let least = (capacity * LEAST_SHARE)
            .max(above)
            .max(asked.promised.min(capacity * PROMISED_SHARE))
            .max(least_rate(capacity));
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

/// What the average of a rate may be that is no more than this.
fn by_chance(rate: f64, clock: Clock) -> f64 {
    let events = rate * AVERAGED_INTERVALS * clock.nominal.as_secs_f64();
    rate * (1.0 + CHANCE / events.max(AVERAGED_EVENTS).sqrt())
}

/// What no class is limited below, so that a listener that opens up again does so at once.
pub fn least_rate(capacity: f64) -> f64 {
    LEAST_RATE.min(capacity * LEAST_RATE_SHARE)
}

/// Whether the server is so slow that its set point is a longer wait than the target.
fn is_slow(set_point: f64, capacity: f64, target: Duration) -> bool {
    set_point > capacity * target.as_secs_f64()
}

/// The time of so many accepts, a minute at most.
fn accepts(n: f64, capacity: f64) -> Duration {
    Duration::from_secs_f64((n / capacity).min(60.0))
}

fn reason(listener: &ListenerStatistics, target: Duration, demand: f64) -> String {
    let wait = listener.wait().unwrap_or_default();
    format!(
        "{:.0} connections wait {} for accept(), target {}; {} SYN/s come, {}/s are accepted",
        listener.queue_length,
        format_duration(Duration::from_millis(wait.as_millis() as u64)),
        format_duration(target),
        about_rate(demand),
        about_rate(listener.accepts_mean.value().unwrap_or(0.0).max(0.0)),
    )
}
