//! What a thread is doing, for status.

use std::sync::atomic::{AtomicU8, Ordering};

/// What a thread is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ThreadState {
    /// Accepts connections.
    Accepting,
    /// Has as many clients as it may; the others wait in its accept queue.
    Full,
    /// Accepts none any more and serves those that it has.
    Draining,
    /// Has ended.
    Ended,
}

impl ThreadState {
    /// Its word in status.
    pub fn word(self) -> &'static str {
        match self {
            ThreadState::Accepting => "accepting",
            ThreadState::Full => "full",
            ThreadState::Draining => "draining",
            ThreadState::Ended => "ended",
        }
    }
}

/// A state that its thread sets and others read.
#[derive(Debug)]
pub struct StateCell(AtomicU8);

impl Default for StateCell {
    fn default() -> Self {
        StateCell(AtomicU8::new(ThreadState::Accepting as u8))
    }
}

impl StateCell {
    pub fn set(&self, state: ThreadState) {
        self.0.store(state as u8, Ordering::Relaxed);
    }

    pub fn get(&self) -> ThreadState {
        use ThreadState::*;
        let state = self.0.load(Ordering::Relaxed);
        [Accepting, Full, Draining, Ended][usize::from(state)]
    }
}
