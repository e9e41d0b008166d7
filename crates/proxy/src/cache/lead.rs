//! Requests for the same reply at the same time: the first fetches it, the others follow.

use std::rc::Rc;
use std::sync::Arc;

use super::entry::{Entry, Kept};
use super::fetch::{Fetch, Outcome};
use super::store::Lookup;
use super::thread::ThreadCache;

/// How a request that found nothing goes on.
pub enum FetchRole {
    /// It fetches the reply, for others too.
    Lead(Lead),
    /// Another fetches it.
    Follow(Arc<Fetch>),
    /// It is there by now.
    Stored(Arc<Entry>),
}

impl ThreadCache {
    /// Lets a request fetch a reply, or follow one that does. `serves` says whether a reply will do
    /// that has come in since the request looked.
    pub fn join_fetch(
        self: &Rc<Self>,
        uri: &[u8],
        request: &[u8],
        serves: impl Fn(&Entry) -> bool,
    ) -> FetchRole {
        let mut fetches = self.cache.fetches_of(uri);
        if let Some(fetch) = fetches.get(uri) {
            return FetchRole::Follow(fetch.clone());
        }
        if let Lookup::Reply(entry) = self.cache.store.find(uri, request)
            && serves(&entry)
        {
            return FetchRole::Stored(entry);
        }
        let fetch = Arc::<Fetch>::default();
        fetches.insert(uri.into(), fetch.clone());
        FetchRole::Lead(Lead {
            thread_cache: self.clone(),
            uri: uri.into(),
            fetch,
        })
    }
}

/// The right and the duty to fetch a reply. Dropped without one, it lets its followers go on by themselves.
pub struct Lead {
    thread_cache: Rc<ThreadCache>,
    uri: Box<[u8]>,
    fetch: Arc<Fetch>,
}

impl Lead {
    /// A reply is there, or begins to be: the followers get it.
    pub fn share(&self, kept: &Kept) {
        let outcome = Outcome::Entry {
            entry: kept.entry.clone(),
            vary: kept.vary.clone(),
            variant: kept.variant.clone(),
        };
        self.fetch.conclude(outcome, &self.thread_cache.waker);
    }

    /// Keeps a reply that is whole, and says how many others had to go for it; `None` if it was
    /// outdated meanwhile and is not kept.
    pub fn keep(self, kept: Kept) -> Option<u64> {
        let cache = &self.thread_cache.cache;
        let fetches = cache.fetches_of(&self.uri);
        let evicted = match self.fetch.is_outdated() {
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
        self.fetch
            .conclude(Outcome::Alone, &self.thread_cache.waker);
    }
}
