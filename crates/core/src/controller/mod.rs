//! The controller (adaptation agent): from what the machine does to what each class may do.
//!
//! Every interval a [`Reading`] of the kernel's counters comes in. [`Statistics`] makes rates and
//! averages of it, and [`Controller::step`] makes from those the *controlled rate* of each class: a
//! second limit beside the operator's own `rate`, of which the lower one holds.
//!
//! Each listener has a loop that keeps the wait in its accept queue at `target_wait`, and the machine
//! has one that keeps the CPU under `max_cpu`. Of a server that queues inside, [`crate::residence`] says what may come in. A loop is off until its measure *stands* over its bound:
//! a burst that drains by itself is nobody's to refuse. Once on, it has a *budget*, the connections a
//! second that may come in, and [`share()`] hands it out: first the `min_rate` of every class, then by
//! priority. So the lowest priority gives way first, and the connections that no class fits are the
//! lowest. A loop goes off when clients ask for less than the budget.
//!
//! The budget is what the server accepts while it is busy, corrected by a bounded PID on the queue. The
//! feed-forward term does most: the queue is an integrator, and a controller of rates alone (AIMD) swings
//! around it.
//!
//! Nothing here reads a clock or sets anything; in `observe` mode the same decisions are only told.

mod average;
mod cpu;
mod inside;
mod pid;
mod queue;
mod share;
mod standing;
mod statistics;
mod step;

#[cfg(test)]
pub(crate) mod sim;
#[cfg(test)]
mod speeds;
#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::listener::{Admit, Listener, Mode};
use crate::quic::QuicListener;

pub use average::{Average, Rate};
pub use queue::Kept;
pub use share::{Demand, share};
pub use statistics::{
    ClassReading, ClassStatistics, CpuTime, ListenerReading, ListenerStatistics, Reading,
    Statistics,
};
pub use step::{ClassRule, Controller, Decision, Held, Limit, Outcome};

/// What the controller is for, and how often it looks: the `[controller]` table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Wait in the accept queue to keep; 1 ms..=10 s. `None`: no loop on it, but for classes with `max_wait`.
    pub target_wait: Option<Duration>,
    /// Share of the CPU to stay under, 0.05..=1.0: of the machine, and of the server's cgroup where that
    /// has a quota. `None`: no loop on it.
    pub max_cpu: Option<f64>,
    /// Time between two readings; 20 ms..=10 s.
    pub interval: Duration,
    /// Readings that the averages are over; 1..=1000.
    pub samples: u32,
    /// Whether limits are set or only told.
    pub mode: crate::listener::Mode,
}

/// A listener's `admit = wait` refuses from so many times [`Settings::target_wait`] on: it bounds the wait until
/// the controller has reacted, and does not do its work.
const LISTENER_WAITS: u32 = 2;
/// and, at a server so slow that a few connections are that wait, from so many on: with fewer it would refuse before the
/// controller, whose set point is `LEAST_QUEUE` connections at least, has seen a queue. High classes are
/// let in above the set point, and what chance adds to them fits into the rest.
const LISTENER_LENGTH: u16 = 32;

impl Settings {
    /// A listener as it is beside this controller: `admit = wait` knows no classes, so it must not refuse before
    /// the controller can.
    pub fn beside(&self, listener: &Listener) -> Listener {
        let mut listener = listener.clone();
        if let (Some(target), Admit::Wait) = (self.enforced_target(), listener.admit) {
            listener.target_wait = listener.target_wait.max(LISTENER_WAITS * target);
            listener.least_length = LISTENER_LENGTH;
        }
        listener
    }

    /// The same of a QUIC listener.
    pub fn beside_quic(&self, listener: &QuicListener) -> QuicListener {
        let mut listener = listener.clone();
        if let Some(target) = self.enforced_target() {
            listener.target_wait = listener.target_wait.max(LISTENER_WAITS * target);
        }
        listener
    }

    /// The target that the controller enforces; `None`: it keeps no wait.
    pub fn enforced_target(&self) -> Option<Duration> {
        self.target_wait.filter(|_| self.mode == Mode::Enforce)
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            target_wait: Some(Duration::from_millis(20)),
            max_cpu: None,
            interval: Duration::from_millis(100),
            samples: 5,
            mode: crate::listener::Mode::Enforce,
        }
    }
}
