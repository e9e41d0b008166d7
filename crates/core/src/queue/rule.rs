//! By what the kernel half sends a new connection straight to the server's queue, or parks it.

use super::order::{PRIORITIES, ReleaseOrder};
use std::time::Duration;

/// What user space has found at its last look, for those who come until the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParkingRule {
    /// Connections that the server's queue is to hold, since who is there is before all that come.
    pub depth: u32,
    /// The highest priority that one who waits counts as by now; [`PRIORITIES`] + 1: nobody waits.
    pub before: u8,
    /// Before those of this priority, or of a higher one, none is to come, so that the server's queue may
    /// hold as many of them as it has places; 0: of no one.
    pub top: u8,
}

impl Default for ParkingRule {
    /// Nobody waits.
    fn default() -> ParkingRule {
        ParkingRule {
            depth: 1,
            before: PRIORITIES + 1,
            top: 0,
        }
    }
}

impl ParkingRule {
    /// The rule for those who come while these wait. `bounded`: how many of the highest class may wait is
    /// limited, and only who is parked can be counted.
    pub fn of<T: Copy>(
        order: &ReleaseOrder<T>,
        now: Duration,
        depth: u32,
        bounded: bool,
    ) -> ParkingRule {
        ParkingRule {
            depth,
            before: order.before(now),
            top: if bounded { 0 } else { order.highest() },
        }
    }
}
