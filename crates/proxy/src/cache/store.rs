//! What is kept, by URI and variant.
//!
//! A URI leads to what its replies depend on and to a number; number and variant lead to a reply. So
//! forgetting a URI forgets all of its replies at once: no request finds them any more, and they are the
//! next to be evicted. URIs of one family, to the same host and target but with other fields by which
//! servers choose unsaid, are found only with the number that their family had when they were kept.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quick_cache::sync::Cache;
use quick_cache::{DefaultHashBuilder, Lifecycle, OptionsBuilder, Weighter};

use super::clock::{Clock, Moment};
use super::entry::{Entry, Kept};
use super::key::{Vary, family, variant};

/// How long requests for a URI whose reply is not kept do not wait for each other.
const ALONE_FOR: Moment = 10_000;
/// What a key and its place in the tables take beside the bytes of both.
const OVERHEAD_BYTES: u64 = 256;
/// Length of replies for which the tables are laid out; others cost them a little time.
const USUAL_BYTES: u64 = 16 * 1024;
/// Each shard holds so many of the longest bodies, so that one does not displace all others.
const LONGEST_PER_SHARD: u64 = 4;
const MOST_SHARDS: u64 = 64;

/// The replies that are kept.
pub struct Store {
    cache: Cache<Box<[u8]>, Value, Weigh, DefaultHashBuilder, CountEvicted>,
    clock: Clock,
    numbers: AtomicU64,
}

#[derive(Clone)]
enum Value {
    Resource(Arc<Resource>),
    /// Requests for this URI do not wait for each other, until then.
    Alone(Moment),
    Reply(Arc<Entry>),
    /// The number of a family.
    Family(u64),
}

/// What the replies of one URI have in common.
struct Resource {
    number: u64,
    vary: Arc<Vary>,
    /// Of its family; `None` for the family's own URI.
    family: Option<u64>,
}

/// What is known of a request's URI.
pub enum Lookup {
    /// A reply to it, fresh or stale.
    Reply(Arc<Entry>),
    /// Replies to other variants only.
    OtherVariants,
    /// A reply to it would not be kept: it need not wait for others'.
    Alone,
    /// Nothing.
    Nothing,
}

impl Store {
    /// A store of at most so many bytes, of bodies of at most `longest` bytes.
    pub fn new(capacity: u64, longest: u64, clock: Clock) -> Store {
        let shards = (capacity / (longest * LONGEST_PER_SHARD)).clamp(1, MOST_SHARDS);
        let shards = 1 << shards.ilog2();
        let options = OptionsBuilder::new()
            .shards(shards)
            .weight_capacity(capacity)
            .estimated_items_capacity((capacity / USUAL_BYTES).max(32 * shards as u64) as usize)
            .build()
            .expect("both capacities are given");
        let hasher = DefaultHashBuilder::default();
        Store {
            cache: Cache::with_options(options, Weigh, hasher, CountEvicted),
            clock,
            numbers: AtomicU64::new(0),
        }
    }

    /// What there is for a request.
    pub fn find(&self, uri: &[u8], request: &[u8]) -> Lookup {
        match self.cache.get(uri) {
            Some(Value::Resource(resource)) if self.holds(uri, &resource) => {
                let variant = variant(request, &resource.vary);
                match self.cache.get(&reply_key(resource.number, &variant)) {
                    Some(Value::Reply(entry)) => Lookup::Reply(entry),
                    _ => Lookup::OtherVariants,
                }
            }
            Some(Value::Alone(until)) if until > self.clock.now() => Lookup::Alone,
            _ => Lookup::Nothing,
        }
    }

    /// Keeps a reply; says how many others were evicted for it. What the replies of its URI depend on is
    /// what the last one says (RFC 9111 Section 4.1): if that has changed, the others are forgotten.
    pub fn put(&self, uri: &[u8], kept: &Kept) -> u64 {
        let known = match self.cache.get(uri) {
            Some(Value::Resource(resource))
                if *resource.vary == *kept.vary && self.holds(uri, &resource) =>
            {
                Some(resource.number)
            }
            _ => None,
        };
        let mut evicted = 0;
        let number = known.unwrap_or_else(|| self.next_number());
        if known.is_none() {
            let resource = Arc::new(Resource {
                number,
                vary: kept.vary.clone(),
                family: self.join_family(uri, &mut evicted),
            });
            let value = Value::Resource(resource);
            self.cache
                .insert_with_lifecycle(uri.into(), value, &mut evicted);
        }
        let key = reply_key(number, &kept.variant);
        let value = Value::Reply(kept.entry.clone());
        // The reply that this one replaces was not evicted.
        let replaced = self.cache.peek(&key).is_some();
        self.cache.insert_with_lifecycle(key, value, &mut evicted);
        evicted.saturating_sub(replaced.into())
    }

    /// Requests for this URI need not wait for each other for a while.
    pub fn go_alone(&self, uri: &[u8]) {
        if !matches!(self.cache.peek(uri), Some(Value::Resource(_))) {
            let until = self.clock.now() + ALONE_FOR;
            self.cache.insert(uri.into(), Value::Alone(until));
        }
    }

    fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether the family of what was kept for a URI has not been forgotten since.
    fn holds(&self, uri: &[u8], resource: &Resource) -> bool {
        resource.family.is_none() || resource.family == self.family_number(family(uri))
    }

    fn family_number(&self, family: &[u8]) -> Option<u64> {
        match self.cache.get(&family_key(family)) {
            Some(Value::Family(number)) => Some(number),
            _ => None,
        }
    }

    /// The number of a URI's family, if that is not the URI itself.
    fn join_family(&self, uri: &[u8], evicted: &mut u64) -> Option<u64> {
        let family = family(uri);
        if family.len() == uri.len() {
            return None;
        }
        let number = self.family_number(family).unwrap_or_else(|| {
            let number = self.next_number();
            let (key, value) = (family_key(family), Value::Family(number));
            self.cache.insert_with_lifecycle(key, value, evicted);
            number
        });
        Some(number)
    }

    /// Forgets the replies of all URIs of a family.
    pub fn forget_family(&self, family: &[u8]) {
        self.forget(family);
        self.cache.remove(&family_key(family));
    }

    /// Forgets the replies of a URI.
    pub fn forget(&self, uri: &[u8]) {
        self.cache
            .remove_if(uri, |value| matches!(value, Value::Resource(_)));
    }
}

/// URIs begin with a host and have a space in them; these keys begin with what no host does.
fn reply_key(number: u64, variant: &[u8]) -> Box<[u8]> {
    [b"\n", &number.to_le_bytes()[..], variant].concat().into()
}

fn family_key(family: &[u8]) -> Box<[u8]> {
    [b"\n\n", family].concat().into()
}

#[derive(Clone)]
struct Weigh;

impl Weighter<Box<[u8]>, Value> for Weigh {
    fn weight(&self, key: &Box<[u8]>, value: &Value) -> u64 {
        let bytes = match value {
            Value::Resource(_) | Value::Alone(_) | Value::Family(_) => 0,
            Value::Reply(entry) => entry.bytes(),
        };
        OVERHEAD_BYTES + key.len() as u64 + bytes
    }
}

#[derive(Clone)]
struct CountEvicted;

impl Lifecycle<Box<[u8]>, Value> for CountEvicted {
    type RequestState = u64;

    fn on_evict(&self, evicted: &mut u64, _: Box<[u8]>, value: Value) {
        *evicted += u64::from(matches!(value, Value::Reply(_)));
    }
}
