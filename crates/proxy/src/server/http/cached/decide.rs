//! What the cache makes of a server's reply, from its head: keeps it, renews what it has, serves what it
//! has instead, or takes no part.

use std::sync::Arc;

use weir_core::proxy::access::Scope;

use super::asked::in_realm;
use super::context::CacheContext;
use super::keep::kept;
use super::status::CacheStatus;
use super::tee::Tee;
use crate::cache::policy::{self, NotKept, Terms};
use crate::cache::{
    Entry, EntryHead, Filler, Kept, Lead, MemoryReservation, ThreadCache, conditions, fields, key,
};
use crate::http::{BodyKind, Delivery, ReplyFacts};

/// What the cache makes of a reply, of which the head is there.
pub enum Decision {
    /// A server confirmed what is kept: the entry with its new head.
    Revalidated(Kept, Lead),
    /// The same, but it must not be kept any longer.
    ServeOnce(Arc<Entry>),
    /// The body comes into the cache, and goes from there to all clients that want it.
    Fill(Kept, Filler, Lead),
    /// A body of unknown length, of which a copy is kept on its way.
    Tee(Box<Tee>, Delivery),
    /// The server failed, and what is kept stands in.
    ServeStale(Arc<Entry>),
    /// The server confirmed something else: it is asked again.
    Retry,
}

/// What the cache makes of a reply; `None`: it takes no part. `head` is the head that would go to the client. With
/// `None`, it has got its `Cache-Status`.
pub fn decide(
    context: CacheContext<'_>,
    facts: &ReplyFacts,
    delivery: Delivery,
    head: &mut Vec<u8>,
) -> Option<Decision> {
    let asked = context.asked;
    if facts.status >= 500
        && let Some(entry) = stale_usable(context)
    {
        return Some(Decision::ServeStale(entry));
    }
    let why_not = match asked.lead.take() {
        None => None,
        Some(lead) if facts.status == 304 && asked.validates.get() => {
            return Some(confirm(context, lead, head));
        }
        Some(lead) => match storable(context, facts, delivery, head) {
            Ok(Storable::Sized(kept, filler)) => {
                lead.share(&kept);
                return Some(Decision::Fill(kept, filler, lead));
            }
            Ok(Storable::Chunked(reservation, terms)) => {
                let tee = Tee {
                    head: head.clone(),
                    outgoing: with_status(head, CacheStatus::Stored(asked.why.get())),
                    lead,
                    reservation,
                    terms,
                };
                return Some(Decision::Tee(Box::new(tee), delivery));
            }
            Err(why_not) => {
                // What is kept for it is no longer what the server says.
                if facts.status < 500 && asked.stale.borrow().is_some() {
                    context.thread_cache.cache.forget(&asked.uri);
                }
                lead.pass();
                Some(why_not.name())
            }
        },
    };
    *head = with_status(head, CacheStatus::Passed(asked.why.get(), why_not));
    None
}

/// The head with the field in front of its empty line.
fn with_status(head: &[u8], how: CacheStatus) -> Vec<u8> {
    let mut out = head[..head.len() - "\r\n".len()].to_vec();
    how.write(&mut out);
    out.extend_from_slice(b"\r\n");
    out
}

/// The kept reply, if it may be served because the server failed (RFC 5861).
pub(super) fn stale_usable(context: CacheContext<'_>) -> Option<Arc<Entry>> {
    let CacheContext {
        thread_cache,
        asked,
        ..
    } = context;
    let entry = asked.stale.borrow().clone()?;
    let age = thread_cache.cache.age(&entry);
    entry
        .terms
        .usable_after_error(age, &asked.control)
        .then_some(entry)
}

/// A 304 to the cache's own question (RFC 9111 Section 4.3.4).
fn confirm(context: CacheContext<'_>, lead: Lead, not_modified: &[u8]) -> Decision {
    let CacheContext {
        thread_cache,
        request,
        asked,
        ..
    } = context;
    let old = asked.stale.borrow_mut().take();
    let old = old.expect("it was asked about something");
    let Some(bytes) = conditions::freshened(&old.head, not_modified) else {
        thread_cache.cache.forget(&asked.uri);
        asked.again.set(true);
        return Decision::Retry;
    };
    let exchange = asked.exchange();
    let status = old.status;
    match policy::terms(&request.head, &bytes, status, exchange) {
        Ok(terms) => {
            let head = EntryHead {
                bytes,
                status,
                terms,
            };
            match kept(context, head, old.body.clone()) {
                Some(kept) => Decision::Revalidated(kept, lead),
                None => Decision::ServeOnce(old),
            }
        }
        Err(_) => {
            thread_cache.cache.forget(&asked.uri);
            Decision::ServeOnce(old)
        }
    }
}

/// How a reply comes into the cache.
enum Storable {
    /// A body of known length: it is received into the cache.
    Sized(Kept, Filler),
    /// A body that is copied on its way.
    Chunked(MemoryReservation, Terms),
}

/// Whether the reply may be kept, and how it comes into the cache.
fn storable(
    context: CacheContext<'_>,
    facts: &ReplyFacts,
    delivery: Delivery,
    head: &[u8],
) -> Result<Storable, NotKept> {
    let CacheContext {
        thread_cache,
        request,
        asked,
        ..
    } = context;
    let terms = policy::terms(&request.head, head, facts.status, asked.exchange())?;
    if key::vary(head).is_none() {
        return Err(NotKept::Vary);
    }
    let length = match facts.body {
        BodyKind::None => 0,
        BodyKind::Length(length) => length,
        BodyKind::Chunked if delivery.dechunk => return Err(NotKept::Unbounded),
        BodyKind::Chunked => {
            let reservation = thread_cache.cache.reserve(0).ok_or(NotKept::TooLarge)?;
            return Ok(Storable::Chunked(reservation, terms));
        }
        BodyKind::UntilClose | BodyKind::Tunnel => return Err(NotKept::Unbounded),
    };
    if length > thread_cache.cache.longest() {
        return Err(NotKept::TooLarge);
    }
    let reservation = thread_cache.cache.reserve(Filler::memory_needed(length));
    let filler = Filler::new(
        length,
        reservation.ok_or(NotKept::TooLarge)?,
        &thread_cache.waker,
    );
    let head = EntryHead {
        bytes: conditions::kept(head),
        status: facts.status,
        terms,
    };
    let body = filler.body().clone();
    let kept = kept(context, head, body).ok_or(NotKept::TooLarge)?;
    Ok(Storable::Sized(kept, filler))
}

/// Forgets what a request that is not safe has made outdated (RFC 9111 Section 4.4): before its
/// client sees the reply, so that it finds what it has written.
pub fn outdate(thread_cache: &ThreadCache, request: &[u8], status: u16, reply: &[u8]) {
    if !(200..400).contains(&status) {
        return;
    }
    let location = |name| {
        let target = fields::only_value(reply, name)?;
        key::sibling(request, target)
    };
    let uris = [
        Some(key::own_family(request)),
        location("location"),
        location("content-location"),
    ];
    for uri in uris.iter().flatten() {
        for scope in Scope::ALL {
            thread_cache
                .cache
                .forget_family(&in_realm(scope as u8, uri));
        }
    }
}
