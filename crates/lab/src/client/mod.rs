//! The load generator: hundreds of thousands of TCP clients in one thread, over the bed's wire.
//!
//! One loop on one core sends the SYNs that are due by the schedule, takes what the server's kernel
//! has sent, and fires timers, each in small turns so that none starves the others. The schedule
//! never waits for replies (open loop, as httperf's); if the loop itself falls behind, the result
//! says so ([`Run::flaw`]) instead of quietly offering less.
//!
//! A connection costs one slot of a table; the slot follows from the four-tuple by arithmetic
//! ([`tuples`]), so each packet is O(1) whatever is in flight.

mod engine;
mod load;
pub(crate) mod packet;
mod schedule;
mod tally;
pub mod tcp;
pub(crate) mod tuples;
mod wheel;

use std::time::{Duration, Instant};

pub use load::{Load, Phase, Run};
pub use schedule::{Pattern, Schedule};
pub use tally::{Fate, Tally, Wire, new_histogram};

use crate::bed::Bed;
use crate::error::Result;
use crate::interrupt;
use engine::Engine;

/// The generator; keeps its place in the space of four-tuples from run to run, so that no run
/// meets what the server still remembers of the one before.
#[derive(Debug)]
pub struct Generator {
    next_number: u32,
}

impl Default for Generator {
    fn default() -> Self {
        Self::new()
    }
}

impl Generator {
    /// A generator at the beginning of the four-tuples.
    pub fn new() -> Generator {
        Generator { next_number: 0 }
    }

    /// Offers one load. Runs on the calling thread, which should be pinned to the client's CPU, and
    /// keeps it busy for warm-up, window and, with `drain`, up to the time-out longer. `at_phase` is
    /// called at the window's edges and must return at once.
    pub fn run(&mut self, bed: &Bed, load: &Load, at_phase: impl FnMut(Phase)) -> Result<Run> {
        let mut engine = Engine::new(bed, load, self.next_number);
        let result = engine.run(load, at_phase);
        self.next_number = engine.next_number();
        result?;
        Ok(engine.finish(load))
    }

    /// Answers the server's leftovers of earlier runs (everything is a stray now and gets a RST)
    /// until `done`, which is asked every 20 ms, says that none are left.
    pub fn settle(&mut self, bed: &Bed, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
        let mut asked = Instant::now();
        loop {
            interrupt::check()?;
            engine::refuse_all(&bed.wire)?;
            if asked.elapsed() >= Duration::from_millis(20) {
                if done()? {
                    return Ok(());
                }
                asked = Instant::now();
            }
            std::thread::yield_now();
        }
    }
}
