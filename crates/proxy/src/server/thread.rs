//! One thread of a proxy, seen from outside: what it is doing, and whether it has fallen.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::Counters;
use super::worker::Order;
use crate::runtime::Sender;

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
pub(super) struct StateCell(AtomicU8);

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

/// A running thread.
pub(super) struct Thread {
    pub orders: Sender<Order>,
    /// Taken once it has ended.
    pub join: Option<JoinHandle<io::Result<()>>>,
    /// It is at its end, and waiting for it takes no time.
    pub ended: Arc<AtomicBool>,
    pub counters: Counters,
    /// When it fell and was started again.
    pub falls: Falls,
}

impl Thread {
    /// How it ended, once.
    pub fn end(&mut self) -> Option<Result<(), String>> {
        let ended = self.ended.load(Ordering::Acquire);
        self.join.take_if(|_| ended).map(joined)
    }

    /// Whether it runs no more.
    pub fn has_ended(&self) -> bool {
        self.join.is_none() || self.ended.load(Ordering::Acquire)
    }
}

/// Falls of one thread: each is mended by a new thread, but one that falls again and again would be
/// busy with that only.
#[derive(Debug, Default)]
pub(super) struct Falls {
    recent: VecDeque<Instant>,
    /// All of them.
    pub count: u64,
}

/// So many falls within [`FALLS_WITHIN`] are mended.
const FALLS_MENDED: usize = 5;
const FALLS_WITHIN: Duration = Duration::from_secs(60);

impl Falls {
    /// Takes note of a fall, and says whether it is to be mended.
    pub fn mend(&mut self, now: Instant) -> bool {
        self.count += 1;
        self.recent.push_back(now);
        while let Some(first) = self.recent.front()
            && now.duration_since(*first) > FALLS_WITHIN
        {
            self.recent.pop_front();
        }
        self.recent.len() <= FALLS_MENDED
    }
}

/// Waits for a thread's end. Its own error, or `Err` with what it panicked with.
pub(super) fn joined(join: JoinHandle<io::Result<()>>) -> Result<(), String> {
    match join.join() {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(format!("cannot wait for events: {error}")),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            Err(format!("panicked: {}", text.unwrap_or_default()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_falls_now_and_then_is_mended_for_ever_and_one_that_only_falls_is_not() {
        let start = Instant::now();
        let mut rare = Falls::default();
        assert!((0..100).all(|n| rare.mend(start + FALLS_WITHIN / 4 * n)));
        let mut always = Falls::default();
        let mended: Vec<bool> = (0..7)
            .map(|n| always.mend(start + Duration::from_millis(10) * n))
            .collect();
        assert_eq!(mended, [true, true, true, true, true, false, false]);
    }
}
