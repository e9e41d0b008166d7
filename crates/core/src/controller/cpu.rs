//! The loop that keeps the CPU under its bound.

use std::time::Duration;

use super::queue::{Budget, Clock, LEAST_RATE, UNUSED};
use super::standing::Standing;
use crate::units::about_rate;

/// The CPU must stand over its bound for so many intervals in which connections come: it is noisier than a
/// queue, and what comes is known only after some intervals.
const STANDS_INTERVALS: u32 = 5;
/// Share of the error that an interval corrects. The averages lag by some three intervals, so more would
/// swing.
const GAIN: f64 = 0.3;
/// Bounds of one interval's change.
const CHANGE: (f64, f64) = (0.7, 1.1);
/// Least budget, as a share of what comes. The CPU may be somebody else's: a server is not to be starved by
/// its neighbour.
const LEAST_SHARE: f64 = 0.25;
/// The budget is at most this many times what comes in: beyond it, it would only have to come back.
const MOST_OF_ADMITTED: f64 = 1.5;
/// Whether holding helps shows when so much is held back.
const SHOWS: f64 = 0.25;
/// and the server has kept up for the time of so many averages: before, the CPU is busy with its queue. A server that
/// does not keep up for as long is what the CPU is busy with.
const SETTLES_AVERAGES: u32 = 2;
/// After so many intervals in which holding was in vain it is tried again: the neighbour may have gone.
const TRIES_AGAIN_INTERVALS: u32 = 300;
/// A server keeps up with what comes in if no more wait for accept() than come in so many intervals,
const KEEPS_UP_INTERVALS: f64 = 1.0;
/// or than this.
const KEEPS_UP_QUEUE: f64 = 4.0;

/// The machine's loop.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CpuLoop {
    standing: Standing,
    on: Option<On>,
}

#[derive(Debug, Clone, PartialEq)]
struct On {
    budget: f64,
    floor: Floor,
    calm_since: Option<Duration>,
}

/// What the budget does not go below. At first a share of what the server took when the loop went on. If holding
/// turns out to be in vain, because the CPU is somebody else's, a share of what comes: demand may have
/// risen since. Not otherwise: a quarter of eight times saturation would be more than the bound allows.
#[derive(Debug, Clone, PartialEq)]
struct Floor {
    rate: f64,
    since: Duration,
    taken_before: f64,
    cpu_before: f64,
    /// Whether the server keeps up, and since when.
    keeps_up: (bool, Duration),
    finding: Finding,
}

/// Whose CPU it is.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Finding {
    Open,
    /// Somebody else's: with nobody let in it would be over its bound.
    InVain,
    /// The server's, for it did not keep up with the share that it got when the CPU seemed to be somebody else's.
    Own,
}

/// What the loop looks at.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measure {
    /// CPU use, averaged; 0.0..=1.0.
    pub cpu: f64,
    /// Its bound.
    pub max_cpu: f64,
    /// Connections let in, /s.
    pub admitted: f64,
    /// Connections that the servers accept, /s.
    pub accepted: f64,
    /// Connections that clients try, /s.
    pub demand: f64,
    /// Connections that wait for accept().
    pub queued: f64,
    /// Intervals that the averages are over.
    pub samples: u32,
}

impl CpuLoop {
    /// Takes the last reading in; the budget while the loop is on. As [`super::queue::QueueLoop::step`].
    pub fn step(&mut self, clock: Clock, enforce: bool, measure: Measure) -> Option<Budget> {
        let Measure {
            cpu,
            max_cpu,
            admitted,
            demand,
            ..
        } = measure;
        // A CPU that was busy before anybody came says nothing about those who come.
        let level = if admitted > LEAST_RATE { cpu } else { 0.0 };
        let stood = self.standing.look(clock.now, level, max_cpu).stood;
        let fitting = admitted * max_cpu / cpu.max(f64::MIN_POSITIVE);
        if self.on.is_none() && stood >= STANDS_INTERVALS * clock.nominal {
            self.on = Some(On {
                budget: fitting,
                floor: Floor::of(clock.now, &measure),
                calm_since: None,
            });
        }
        let on = self.on.as_mut()?;
        on.floor.look(clock, enforce, &measure);
        let (slowest, fastest) = CHANGE;
        let intervals = clock.interval.as_secs_f64() / clock.nominal.as_secs_f64();
        let change = 1.0 + GAIN * intervals * (max_cpu - cpu) / max_cpu;
        on.budget = match enforce {
            true => on.budget * change.clamp(slowest, fastest),
            false => fitting,
        };
        on.budget = on
            .budget
            .min(admitted * MOST_OF_ADMITTED)
            .max(on.floor.rate);
        let asks_for_less = demand < UNUSED * on.budget && cpu <= max_cpu;
        if clock.calm(&mut on.calm_since, asks_for_less) {
            self.on = None;
            return None;
        }
        let reason = format!(
            "CPU {:.0} %, at most {:.0} %; {} SYN/s come, {}/s come in",
            100.0 * cpu,
            100.0 * max_cpu,
            about_rate(demand),
            about_rate(admitted),
        );
        Some(Budget {
            rate: on.budget,
            least: LEAST_RATE,
            room: 1.0,
            reason,
        })
    }
}

impl Floor {
    fn of(now: Duration, measure: &Measure) -> Floor {
        Floor {
            rate: (measure.taken() * LEAST_SHARE).max(LEAST_RATE),
            since: now,
            taken_before: measure.taken(),
            cpu_before: measure.cpu,
            keeps_up: (false, now),
            finding: Finding::Open,
        }
    }

    fn look(&mut self, clock: Clock, enforce: bool, measure: &Measure) {
        let age = clock.now.saturating_sub(self.since);
        if self.finding == Finding::InVain && age >= TRIES_AGAIN_INTERVALS * clock.nominal {
            *self = Floor::of(clock.now, measure);
        }
        let keeps_up = measure.queued <= measure.few(clock);
        if self.keeps_up.0 != keeps_up {
            self.keeps_up = (keeps_up, clock.now);
        }
        let settles = SETTLES_AVERAGES * measure.samples * clock.nominal;
        let is_settled = clock.now.saturating_sub(self.keeps_up.1) >= settles;
        if !enforce || !is_settled || measure.cpu <= measure.max_cpu {
            return;
        }
        match self.finding {
            Finding::Open if keeps_up && self.is_in_vain(measure) => self.finding = Finding::InVain,
            Finding::InVain if !keeps_up => {
                self.finding = Finding::Own;
                self.rate = (LEAST_SHARE * measure.taken()).max(LEAST_RATE);
            }
            _ => {}
        }
        if self.finding == Finding::InVain {
            self.rate = self.rate.max(LEAST_SHARE * measure.demand);
        }
    }

    /// Whether the CPU would be over its bound with nobody let in: on a straight line through what it was and what it is.
    fn is_in_vain(&self, measure: &Measure) -> bool {
        let kept = measure.taken() / self.taken_before;
        let of_others = (measure.cpu - self.cpu_before * kept) / (1.0 - kept);
        1.0 - kept > SHOWS && of_others > measure.max_cpu
    }
}

impl Measure {
    /// What the servers take, /s. More comes in while their queues fill.
    fn taken(&self) -> f64 {
        self.accepted.clamp(0.0, self.admitted)
    }

    /// As many waiting as a server has that keeps up.
    fn few(&self, clock: Clock) -> f64 {
        let come = self.admitted * clock.nominal.as_secs_f64();
        (come * KEEPS_UP_INTERVALS).max(KEEPS_UP_QUEUE)
    }
}
