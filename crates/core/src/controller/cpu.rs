//! The loop that keeps the CPU under its bound.

use std::time::Duration;

use super::queue::{Budget, Clock, LEAST_RATE, UNUSED};
use super::standing::Standing;

/// The CPU must stand over its bound for so many intervals: it is noisier than a queue.
const STANDS_INTERVALS: u32 = 5;
/// Share of the error that an interval corrects. The averages lag by some three intervals, so more would
/// swing.
const GAIN: f64 = 0.3;
/// Bounds of one interval's change.
const CHANGE: (f64, f64) = (0.7, 1.1);
/// Least budget, as a share of what came in when the loop went on. The CPU may be somebody else's: a
/// server is not to be starved by its neighbour.
const LEAST_SHARE: f64 = 0.25;
/// The budget is at most this many times what comes in: beyond it, it would only have to come back.
const MOST_OF_ADMITTED: f64 = 1.5;

/// The machine's loop.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CpuLoop {
    standing: Standing,
    on: Option<On>,
}

#[derive(Debug, Clone, PartialEq)]
struct On {
    budget: f64,
    least: f64,
    calm_since: Option<Duration>,
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
    /// Connections that clients try, /s.
    pub demand: f64,
}

impl CpuLoop {
    /// Takes the last reading in; the budget while the loop is on. As [`super::queue::QueueLoop::step`].
    pub fn step(&mut self, clock: Clock, enforce: bool, measure: Measure) -> Option<Budget> {
        let Measure {
            cpu,
            max_cpu,
            admitted,
            demand,
        } = measure;
        let stood = self.standing.look(clock.now, cpu, max_cpu).stood;
        let fitting = admitted * max_cpu / cpu.max(f64::MIN_POSITIVE);
        if self.on.is_none() && stood >= STANDS_INTERVALS * clock.nominal && admitted > LEAST_RATE {
            self.on = Some(On {
                budget: fitting,
                least: (admitted * LEAST_SHARE).max(LEAST_RATE),
                calm_since: None,
            });
        }
        let on = self.on.as_mut()?;
        let (slowest, fastest) = CHANGE;
        let intervals = clock.interval.as_secs_f64() / clock.nominal.as_secs_f64();
        let change = 1.0 + GAIN * intervals * (max_cpu - cpu) / max_cpu;
        on.budget = match enforce {
            true => on.budget * change.clamp(slowest, fastest),
            false => fitting,
        };
        on.budget = on.budget.min(admitted * MOST_OF_ADMITTED).max(on.least);
        let asks_for_less = demand < UNUSED * on.budget && cpu <= max_cpu;
        if clock.calm(&mut on.calm_since, asks_for_less) {
            self.on = None;
            return None;
        }
        let reason = format!(
            "CPU {:.0} %, at most {:.0} %; {demand:.0} SYN/s come, {admitted:.0}/s come in",
            100.0 * cpu,
            100.0 * max_cpu,
        );
        Some(Budget {
            rate: on.budget,
            reason,
        })
    }
}
