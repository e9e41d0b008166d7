//! The fetch of one reply, which several requests may wait for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::entry::Entry;
use super::key::{Vary, variant};
use super::waiter::{ThreadWaker, Waiter};

/// A fetch that others may follow.
#[derive(Default)]
pub struct Fetch {
    state: Mutex<State>,
    /// What it brings is outdated by now, and must not be kept.
    outdated: AtomicBool,
}

#[derive(Default)]
struct State {
    outcome: Option<Outcome>,
    waiting: Vec<Waiter>,
}

/// What a fetch brings its followers.
#[derive(Clone)]
pub enum Outcome {
    /// A reply, whole or growing, for requests with this variant.
    Entry {
        /// The reply.
        entry: Arc<Entry>,
        /// What it depends on.
        vary: Arc<Vary>,
        /// What the first request said in that.
        variant: Arc<[u8]>,
    },
    /// Nothing: they go on by themselves.
    Alone,
}

impl Outcome {
    /// The reply, if it is for a request with this head too.
    pub fn entry_for(self, request: &[u8]) -> Option<Arc<Entry>> {
        match self {
            Outcome::Entry {
                entry,
                vary,
                variant: first,
            } => (*first == *variant(request, &vary)).then_some(entry),
            Outcome::Alone => None,
        }
    }
}

impl Fetch {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it brings; if that is not known yet, `follower` is woken when it is.
    pub fn outcome(&self, follower: impl FnOnce() -> Waiter) -> Option<Outcome> {
        let mut state = self.state();
        if state.outcome.is_none() {
            follower().join(&mut state.waiting);
        }
        state.outcome.clone()
    }

    /// Whether what it brings must not be kept.
    pub(super) fn is_outdated(&self) -> bool {
        self.outdated.load(Ordering::Relaxed)
    }

    /// What it brings must not be kept.
    pub fn outdate(&self) {
        self.outdated.store(true, Ordering::Relaxed);
    }

    /// The first outcome holds.
    pub(super) fn conclude(&self, outcome: Outcome, waker: &ThreadWaker) {
        let mut state = self.state();
        if state.outcome.is_some() {
            return;
        }
        state.outcome = Some(outcome);
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting
            .into_iter()
            .for_each(|follower| waker.wake(follower));
    }

    /// Whether others wait for what it brings.
    pub(super) fn is_followed(&self) -> bool {
        !self.state().waiting.is_empty()
    }
}
