//! Numbers that one thread writes and any thread reads, without a lock.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter with one writer.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds. Only the thread that owns it may: a plain load and store, no locked instruction.
    pub fn add(&self, amount: u64) {
        let value = self.0.load(Ordering::Relaxed);
        self.0.store(value.wrapping_add(amount), Ordering::Relaxed);
    }

    /// The value, from any thread.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that goes up and down, with one writer.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// One more. As all that changes it: only by the thread that owns it.
    pub fn raise(&self) {
        self.0.store(self.get().wrapping_add(1), Ordering::Relaxed);
    }

    /// So many fewer.
    pub fn lower(&self, amount: u64) {
        self.0
            .store(self.get().wrapping_sub(amount), Ordering::Relaxed);
    }

    /// Nothing: for a thread that begins where another failed.
    pub fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// The value, from any thread.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
