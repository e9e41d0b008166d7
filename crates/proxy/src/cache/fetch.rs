//! Requests for the same thing at the same time: the first fetches it, the others follow.

use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::key::{Vary, variant};
use super::thread::{ThreadCache, Waiter};
use super::{Entry, Kept};

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

/// What a fetch brings those who follow it.
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

    /// What it brings; if that is not known yet, `follower` is who will be woken.
    pub fn outcome(&self, follower: impl FnOnce() -> Waiter) -> Option<Outcome> {
        let mut state = self.state();
        if state.outcome.is_none() {
            follower().join(&mut state.waiting);
        }
        state.outcome.clone()
    }

    /// What it brings must not be kept.
    pub fn outdate(&self) {
        self.outdated.store(true, Ordering::Relaxed);
    }

    /// The first outcome holds.
    fn conclude(&self, outcome: Outcome, thread_cache: &ThreadCache) {
        let mut state = self.state();
        if state.outcome.is_some() {
            return;
        }
        state.outcome = Some(outcome);
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting
            .into_iter()
            .for_each(|follower| thread_cache.wake(follower));
    }

    fn is_followed(&self) -> bool {
        !self.state().waiting.is_empty()
    }
}

/// The one who fetches. Dropped without a reply, it lets its followers go on by themselves.
pub struct Lead {
    pub(super) thread_cache: Rc<ThreadCache>,
    pub(super) uri: Box<[u8]>,
    pub(super) fetch: Arc<Fetch>,
}

impl Lead {
    /// A reply is there, or begins to be: the followers get it.
    pub fn share(&self, kept: &Kept) {
        let outcome = Outcome::Entry {
            entry: kept.entry.clone(),
            vary: kept.vary.clone(),
            variant: kept.variant.clone(),
        };
        self.fetch.conclude(outcome, &self.thread_cache);
    }

    /// Keeps a reply that is whole, and says how many others had to go for it; `None` if it was
    /// outdated meanwhile and is not kept.
    pub fn keep(self, kept: Kept) -> Option<u64> {
        let cache = &self.thread_cache.cache;
        let fetches = cache.fetches_of(&self.uri);
        let evicted = match self.fetch.outdated.load(Ordering::Relaxed) {
            true => None,
            false => Some(cache.store.put(&self.uri, &kept)),
        };
        drop(fetches);
        self.share(&kept);
        evicted
    }

    /// The reply is not kept. If others are waiting for it, later requests for it do not wait for
    /// each other for a while.
    pub fn pass(self) {
        if self.fetch.is_followed() {
            self.thread_cache.cache.store.go_alone(&self.uri);
        }
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        self.thread_cache.cache.end_fetch(&self.uri, &self.fetch);
        self.fetch.conclude(Outcome::Alone, &self.thread_cache);
    }
}
