//! How often the sockets are walked.

use std::time::Duration;

/// What passes are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// Figures.
    Observe,
    /// A limit, which lets all in now.
    Ready,
    /// More than the limit are outstanding: what came until it refuses has to be served. This ends within moments.
    Decide,
    /// Connections are refused by what they find.
    Refuse,
}

/// A pass may take this part of one CPU.
const SHARE: u32 = 100;
/// For moments, this.
const SHARE_DECIDING: u32 = 20;
/// The least time between two passes, and with little to see, or nobody to refuse.
const BUSY: Duration = Duration::from_millis(50);
const QUIET: Duration = Duration::from_millis(250);
const READY: Duration = Duration::from_millis(100);
/// The longest: else no window of a busy server would have its passes.
const LONGEST: Duration = Duration::from_secs(5);
/// With no connection there is nothing to see but that one comes.
const NOBODY: Duration = Duration::from_secs(1);

/// Until the next pass, if the last one took `cost` of CPU time and found so many outstanding requests of so many
/// connections.
pub fn pause(cost: Duration, outstanding: usize, connections: u32, purpose: Purpose) -> Duration {
    let least = match (purpose, outstanding, connections) {
        (Purpose::Observe, 0, 0) => NOBODY,
        (Purpose::Observe, 0..10, _) => QUIET,
        (Purpose::Ready, 0..10, _) => READY,
        _ => BUSY,
    };
    let longest = match purpose {
        Purpose::Observe => LONGEST,
        _ => NOBODY,
    };
    let share = match purpose {
        Purpose::Decide => SHARE_DECIDING,
        _ => SHARE,
    };
    (cost * share).clamp(least, longest)
}
