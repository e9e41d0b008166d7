//! The clock of an emulated link.

use std::time::Instant;

/// Counts from the moment at which the engine began.
#[derive(Debug)]
pub struct Clock(Instant);

impl Clock {
    /// It begins now.
    pub fn start() -> Clock {
        Clock(Instant::now())
    }

    /// How long ago that was, ns.
    pub fn now_ns(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}
