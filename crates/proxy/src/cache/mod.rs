//! A memory cache for replies (RFC 9111), shared by all threads.
//!
//! ```text
//! fields, control, key, policy, conditions   HTTP: pure functions on heads
//! memory, body                               reservations of memory, and bodies that grow
//! entry, store                               what is kept, and what goes for it
//! waiter, fetch, thread, lead                tasks of several threads that want one reply
//! ```
//!
//! A request is looked up in the [`store`]. If nothing there serves it, it begins a fetch or follows one
//! ([`ThreadCache::join_fetch`]). The request that begins the fetch holds the [`Lead`]: it fetches the reply,
//! shares it with its followers as soon as the head is there, and keeps it once it is whole.
//!
//! Memory is reserved before it is filled ([`MemoryLimit`]) and released when the last reader is gone. So kept
//! replies, replies that are being received, and replies that were evicted under a slow reader never take
//! more than the cache's size together.

mod abort;
mod body;
mod clock;
pub mod conditions;
pub mod control;
mod entry;
mod fetch;
pub mod fields;
pub mod key;
mod lead;
mod memory;
pub mod policy;
mod store;
mod thread;
mod waiter;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use abort::{AbandonedReply, finishes};
pub use body::{Body, Filler, Found, Pieces, Reader};
pub use clock::wall_clock;
pub use entry::{Entry, EntryHead, Kept};
pub use lead::{FetchRole, Lead};
pub use memory::MemoryReservation;
pub use store::Lookup;
pub use thread::ThreadCache;

use weir_core::proxy::{Proxy, ProxyMode};

use clock::Clock;
use entry::ENTRY_BYTES;
use fetch::Fetch;
use memory::MemoryLimit;
use store::Store;

/// Tables of fetches, so that threads rarely meet at one.
const FETCH_TABLES: usize = 64;
/// No body is longer than this part of the cache.
const LONGEST_PART: u64 = 8;

type Fetches = HashMap<Box<[u8]>, Arc<Fetch>>;

/// The cache.
pub struct Cache {
    store: Store,
    memory: Arc<MemoryLimit>,
    longest: u64,
    clock: Clock,
    fetches: Box<[Mutex<Fetches>]>,
    hasher: RandomState,
    /// Numbers given to threads.
    threads: AtomicU64,
}

/// What a cache holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheMemory {
    /// Bytes of what is kept, of what is being received, and of what was evicted while a client reads it.
    pub held_bytes: u64,
    /// At most so many: the setting `cache`.
    pub limit_bytes: u64,
    /// Replies, of these three kinds.
    pub objects: u64,
}

impl Cache {
    /// The cache that the settings ask for, if they do.
    pub fn of(settings: &Proxy) -> Option<Arc<Cache>> {
        let longest = settings.cache_object.min(settings.cache / LONGEST_PART);
        let keeps = longest > 0 && settings.mode != ProxyMode::Tcp;
        keeps.then(|| Cache::new(settings.cache, longest))
    }

    /// An empty cache of at most `size` bytes, for bodies of at most `longest`.
    ///
    /// A quarter of it is for bodies that are being received, and for those that were evicted while
    /// clients read them.
    fn new(size: u64, longest: u64) -> Arc<Cache> {
        let clock = Clock::start();
        Arc::new(Cache {
            store: Store::new(size / 4 * 3, longest, clock),
            memory: MemoryLimit::new(size),
            longest,
            clock,
            fetches: (0..FETCH_TABLES).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            threads: AtomicU64::new(0),
        })
    }

    /// What it holds now.
    pub fn memory(&self) -> CacheMemory {
        CacheMemory {
            held_bytes: self.memory.held(),
            limit_bytes: self.memory.limit(),
            objects: self.memory.objects(),
        }
    }

    /// What there is for a request to this URI.
    pub fn find(&self, uri: &[u8], request: &[u8]) -> Lookup {
        self.store.find(uri, request)
    }

    /// Forgets the replies of a URI, those that are on their way too (RFC 9111 Section 4.4).
    pub fn forget(&self, uri: &[u8]) {
        let mut fetches = self.fetches_of(uri);
        if let Some(fetch) = fetches.remove(uri) {
            fetch.outdate();
        }
        self.store.forget(uri);
    }

    /// Forgets the replies of all URIs of this [family](key::family), as [`forget`](Self::forget) does.
    pub fn forget_family(&self, family: &[u8]) {
        let mut fetches = self.fetches_of(family);
        fetches.retain(|uri, fetch| {
            let is_of_another = key::family(uri) != family;
            if !is_of_another {
                fetch.outdate();
            }
            is_of_another
        });
        self.store.forget_family(family);
    }

    /// Reserves so many bytes; `None` if they are not free.
    pub fn reserve(&self, bytes: u64) -> Option<MemoryReservation> {
        self.memory.reserve(bytes)
    }

    /// Bytes of a body at most.
    pub fn longest(&self) -> u64 {
        self.longest
    }

    /// An entry with this head that was received now; `None` if there is no memory for it.
    pub fn entry(&self, head: EntryHead, body: Arc<Body>) -> Option<Entry> {
        let EntryHead {
            bytes: head,
            status,
            terms,
        } = head;
        let object = self
            .memory
            .reserve_object(head.len() as u64 + ENTRY_BYTES)?;
        Some(Entry {
            head: head.into(),
            status,
            terms,
            body,
            received: self.clock.now(),
            _object: object,
        })
    }

    /// How old a reply is now, in seconds (RFC 9111 Section 4.2.3).
    pub fn age(&self, entry: &Entry) -> u64 {
        let resident = self.clock.now().saturating_sub(entry.received) / 1000;
        entry.terms.initial_age + resident
    }

    fn fetches_of(&self, uri: &[u8]) -> MutexGuard<'_, Fetches> {
        // Those of one family are in one table.
        let table = self.hasher.hash_one(key::family(uri)) as usize % FETCH_TABLES;
        self.fetches[table]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a fetch: no request can follow it any more. Another fetch may have replaced it.
    fn end_fetch(&self, uri: &[u8], fetch: &Arc<Fetch>) {
        let mut fetches = self.fetches_of(uri);
        if fetches
            .get(uri)
            .is_some_and(|current| Arc::ptr_eq(current, fetch))
        {
            fetches.remove(uri);
        }
    }
}
