//! The time that all threads share.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Milliseconds since the cache began.
pub type Moment = u64;

/// Counts from when the cache began, and is not moved when the wall clock is.
#[derive(Debug, Clone, Copy)]
pub struct Clock(Instant);

impl Clock {
    /// Begins now.
    pub fn start() -> Clock {
        Clock(Instant::now())
    }

    /// The time now.
    pub fn now(&self) -> Moment {
        self.0.elapsed().as_millis() as Moment
    }
}

/// The wall clock, in seconds since 1970: what dates in heads are measured by.
pub fn wall_clock() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
