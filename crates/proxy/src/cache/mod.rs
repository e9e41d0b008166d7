//! A memory cache for replies (RFC 9111), shared by all threads.
//!
//! ```text
//! fields, control, key, policy, conditions   HTTP: pure functions on heads
//! room, body                                 memory: how much, and bodies that grow
//! store                                      what is kept, and what goes for it
//! flight, seat                               tasks of several threads that want one thing
//! ```
//!
//! A request is looked up in the [`store`]; if nothing there serves it, it takes off or follows one
//! that has ([`Cache::board`]). Who takes off holds the [`Lead`]: it fetches the reply, shares it with
//! its followers as soon as the head is there, and keeps it once it is whole.
//!
//! Memory is taken before it is filled ([`Room`]) and given back when the last reader is gone, so that
//! what is kept, what is being received and what was evicted under a slow reader are together never
//! more than the cache's size.

mod abort;
mod body;
mod clock;
pub mod conditions;
pub mod control;
pub mod fields;
mod flight;
pub mod key;
pub mod policy;
mod room;
mod seat;
mod store;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use abort::{Standing, finishes};
pub use body::{Body, Filler, Found, Pieces, Reader};
pub use clock::{Moment, wall_clock};
pub use flight::{Flight, Lead};
pub use room::{Object, Room, Share};
pub use seat::Seat;
pub use store::Lookup;

use weir_core::proxy::{Mode, Proxy};

use clock::Clock;
use policy::Terms;
use store::Store;

/// Tables of fetches, so that threads rarely meet at one.
const FLIGHT_TABLES: usize = 64;
/// No body is longer than this part of the cache.
const LONGEST_PART: u64 = 8;
/// What an entry takes beside its head and its body.
const ENTRY_BYTES: u64 = 512;

type Flights = HashMap<Box<[u8]>, Arc<Flight>>;

/// The cache.
pub struct Cache {
    store: Store,
    room: Arc<Room>,
    longest: u64,
    clock: Clock,
    flights: Box<[Mutex<Flights>]>,
    hasher: RandomState,
    seats: AtomicU64,
}

/// What a cache holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheMemory {
    /// Bytes of what is kept, of what is being received, and of what was evicted while someone reads it.
    pub held_bytes: u64,
    /// At most so many: the setting `cache`.
    pub limit_bytes: u64,
    /// Replies, of these three kinds.
    pub objects: u64,
}

/// A reply that is kept, or is to be.
#[derive(Debug)]
pub struct Entry {
    /// Status line and fields, without framing, age and the empty line.
    pub head: Box<[u8]>,
    /// Its status.
    pub status: u16,
    /// How it may be used.
    pub terms: Terms,
    /// Its bytes, which several heads in a row may have: a 304 renews only the head.
    pub body: Arc<Body>,
    received: Moment,
    /// Of the head.
    _object: Object,
}

/// A reply and the requests that it is for.
pub struct Kept {
    /// The reply.
    pub entry: Arc<Entry>,
    /// What it depends on.
    pub vary: Arc<key::Vary>,
    /// What the request said in that.
    pub variant: Arc<[u8]>,
}

/// How a request that found nothing goes on.
pub enum Boarding {
    /// It fetches the reply, for others too.
    Lead(Lead),
    /// Another fetches it.
    Follow(Arc<Flight>),
    /// It is there by now.
    Landed(Arc<Entry>),
}

impl Cache {
    /// The cache that the settings ask for, if they do.
    pub fn of(settings: &Proxy) -> Option<Arc<Cache>> {
        let longest = settings.cache_object.min(settings.cache / LONGEST_PART);
        let keeps = longest > 0 && settings.mode != Mode::Tcp;
        keeps.then(|| Cache::new(settings.cache, longest))
    }

    /// An empty cache of at most `size` bytes, for bodies of at most `longest`.
    ///
    /// A quarter of it is for bodies that are being received, and for those that were evicted while
    /// someone reads them.
    fn new(size: u64, longest: u64) -> Arc<Cache> {
        let clock = Clock::start();
        Arc::new(Cache {
            store: Store::new(size / 4 * 3, longest, clock),
            room: Room::new(size),
            longest,
            clock,
            flights: (0..FLIGHT_TABLES).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            seats: AtomicU64::new(0),
        })
    }

    /// A number that no other seat has: a thread that is started again is another one.
    fn next_seat(&self) -> u64 {
        self.seats.fetch_add(1, Ordering::Relaxed)
    }

    /// What it holds now.
    pub fn memory(&self) -> CacheMemory {
        CacheMemory {
            held_bytes: self.room.held(),
            limit_bytes: self.room.limit(),
            objects: self.room.objects(),
        }
    }

    /// What there is for a request to this URI.
    pub fn find(&self, uri: &[u8], request: &[u8]) -> Lookup {
        self.store.find(uri, request)
    }

    /// Lets a request fetch a reply, or follow one that does. `serves` says whether a reply will do
    /// that has come in since the request looked.
    pub fn board(
        &self,
        uri: &[u8],
        request: &[u8],
        seat: &Rc<Seat>,
        serves: impl Fn(&Entry) -> bool,
    ) -> Boarding {
        let mut flights = self.flights_of(uri);
        if let Some(flight) = flights.get(uri) {
            return Boarding::Follow(flight.clone());
        }
        if let Lookup::Reply(entry) = self.store.find(uri, request)
            && serves(&entry)
        {
            return Boarding::Landed(entry);
        }
        let flight = Arc::<Flight>::default();
        flights.insert(uri.into(), flight.clone());
        Boarding::Lead(Lead {
            seat: seat.clone(),
            uri: uri.into(),
            flight,
        })
    }

    /// Forgets the replies of a URI, those that are on their way too (RFC 9111 Section 4.4).
    pub fn forget(&self, uri: &[u8]) {
        let mut flights = self.flights_of(uri);
        if let Some(flight) = flights.remove(uri) {
            flight.outdate();
        }
        self.store.forget(uri);
    }

    /// Forgets the replies of all URIs of this [family](key::family), as [`forget`](Self::forget) does.
    pub fn forget_family(&self, family: &[u8]) {
        let mut flights = self.flights_of(family);
        flights.retain(|uri, flight| {
            let is_of_another = key::family(uri) != family;
            if !is_of_another {
                flight.outdate();
            }
            is_of_another
        });
        self.store.forget_family(family);
    }

    /// So many bytes of room; `None` if they are not free.
    pub fn room_for(&self, bytes: u64) -> Option<Share> {
        self.room.take(bytes)
    }

    /// Bytes of a body at most.
    pub fn longest(&self) -> u64 {
        self.longest
    }

    /// An entry with this head that was received now; `None` if there is no room for it.
    pub fn entry(
        &self,
        head: Vec<u8>,
        status: u16,
        terms: Terms,
        body: Arc<Body>,
    ) -> Option<Entry> {
        let object = self.room.take_object(head.len() as u64 + ENTRY_BYTES)?;
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

    fn flights_of(&self, uri: &[u8]) -> MutexGuard<'_, Flights> {
        // Those of one family are in one table.
        let table = self.hasher.hash_one(key::family(uri)) as usize % FLIGHT_TABLES;
        self.flights[table]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Nobody else can follow this flight; another may have taken its place.
    fn landed(&self, uri: &[u8], flight: &Arc<Flight>) {
        let mut flights = self.flights_of(uri);
        if flights
            .get(uri)
            .is_some_and(|current| Arc::ptr_eq(current, flight))
        {
            flights.remove(uri);
        }
    }
}

impl Entry {
    /// Bytes that it takes.
    pub fn bytes(&self) -> u64 {
        ENTRY_BYTES + self.head.len() as u64 + self.body.length()
    }
}
