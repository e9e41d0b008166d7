//! What the cache makes of a server's reply, from its head: keeps it, renews what it has, lets what it
//! has stand in, or takes no part.

use std::rc::Rc;
use std::sync::Arc;

use weir_core::proxy::access::Scope;

use super::chunks::Draft;
use super::status::How;
use super::{Asked, in_realm};
use crate::cache::policy::{self, Exchange, NotKept, Terms};
use crate::cache::{
    Body as KeptBody, Entry, Filler, Kept, Lead, MemoryReservation, ThreadCache, conditions,
    fields, key, wall_clock,
};
use crate::http::{BodyKind, Delivery, ReplyFacts};
use crate::server::http::request::Request;
use crate::server::worker::Worker;

/// What the cache makes of a reply, of which the head is there.
pub enum Taken {
    /// A server confirmed what is kept: the entry with its new head.
    Confirmed(Kept, Lead),
    /// The same, but it must not be kept any longer.
    LastUse(Arc<Entry>),
    /// The body comes into the cache, and from there to whoever wants it.
    Body(Kept, Filler, Lead),
    /// A body of unknown length, of which a copy is kept on its way.
    Draft(Box<Draft>, Delivery),
    /// The server failed, and what is kept stands in.
    StandIn(Arc<Entry>),
    /// The server confirmed something else: it is asked again.
    Again,
}

/// Decides it. `head` is the head that would go to the client; if the cache takes no part in the
/// reply, it says so in it.
pub fn judge(
    worker: &Worker,
    request: &Request,
    facts: &ReplyFacts,
    delivery: Delivery,
    head: &mut Vec<u8>,
) -> Option<Taken> {
    let (thread_cache, asked) = (worker.cache.as_ref()?, request.asked.as_ref()?);
    if facts.status >= 500
        && let Some(entry) = stale_usable(thread_cache, asked)
    {
        return Some(Taken::StandIn(entry));
    }
    let why_not = match asked.lead.take() {
        None => None,
        Some(lead) if facts.status == 304 && asked.validates.get() => {
            return Some(confirm(thread_cache, request, asked, lead, head));
        }
        Some(lead) => match draft(thread_cache, request, asked, facts, delivery, head) {
            Ok(Drafted::Body(kept, filler)) => {
                lead.share(&kept);
                return Some(Taken::Body(kept, filler, lead));
            }
            Ok(Drafted::Chunks(reservation, terms)) => {
                let draft = Draft {
                    head: head.clone(),
                    outgoing: with_status(head, How::Stored(asked.why.get())),
                    lead,
                    reservation,
                    terms,
                };
                return Some(Taken::Draft(Box::new(draft), delivery));
            }
            Err(why_not) => {
                // What is kept for it is no longer what the server says.
                if facts.status < 500 && asked.stale.borrow().is_some() {
                    thread_cache.cache.forget(&asked.uri);
                }
                lead.pass();
                Some(why_not.name())
            }
        },
    };
    *head = with_status(head, How::Passed(asked.why.get(), why_not));
    None
}

/// The head with the field in front of its empty line.
fn with_status(head: &[u8], how: How) -> Vec<u8> {
    let mut out = head[..head.len() - "\r\n".len()].to_vec();
    how.write(&mut out);
    out.extend_from_slice(b"\r\n");
    out
}

/// What is kept may be served because the server failed (RFC 5861).
pub(super) fn stale_usable(thread_cache: &ThreadCache, asked: &Asked) -> Option<Arc<Entry>> {
    let entry = asked.stale.borrow().clone()?;
    let age = thread_cache.cache.age(&entry);
    entry
        .terms
        .usable_after_error(age, &asked.control)
        .then_some(entry)
}

/// A 304 to the cache's own question (RFC 9111 Section 4.3.4).
fn confirm(
    thread_cache: &ThreadCache,
    request: &Request,
    asked: &Asked,
    lead: Lead,
    not_modified: &[u8],
) -> Taken {
    let old = asked.stale.borrow_mut().take();
    let old = old.expect("it was asked about something");
    let Some(head) = conditions::freshened(&old.head, not_modified) else {
        thread_cache.cache.forget(&asked.uri);
        asked.again.set(true);
        return Taken::Again;
    };
    let exchange = asked.exchange();
    match policy::terms(&request.head, &head, old.status, exchange) {
        Ok(terms) => match kept(
            thread_cache,
            request,
            head,
            old.status,
            terms,
            old.body.clone(),
        ) {
            Some(kept) => Taken::Confirmed(kept, lead),
            None => Taken::LastUse(old),
        },
        Err(_) => {
            thread_cache.cache.forget(&asked.uri);
            Taken::LastUse(old)
        }
    }
}

/// How a reply comes into the cache.
enum Drafted {
    Body(Kept, Filler),
    Chunks(MemoryReservation, Terms),
}

fn draft(
    thread_cache: &Rc<ThreadCache>,
    request: &Request,
    asked: &Asked,
    facts: &ReplyFacts,
    delivery: Delivery,
    head: &[u8],
) -> Result<Drafted, NotKept> {
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
            return Ok(Drafted::Chunks(reservation, terms));
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
    let head = conditions::kept(head);
    let body = filler.body().clone();
    let kept =
        kept(thread_cache, request, head, facts.status, terms, body).ok_or(NotKept::TooLarge)?;
    Ok(Drafted::Body(kept, filler))
}

/// An entry and whom it is for.
fn kept(
    thread_cache: &ThreadCache,
    request: &Request,
    head: Vec<u8>,
    status: u16,
    terms: Terms,
    body: Arc<KeptBody>,
) -> Option<Kept> {
    let vary = key::vary(&head)?;
    let variant = key::variant(&request.head, &vary);
    let entry = thread_cache.cache.entry(head, status, terms, body)?;
    Some(Kept {
        entry: Arc::new(entry),
        vary: Arc::new(vary),
        variant: variant.into(),
    })
}

impl Asked {
    /// It went out, and the head of its reply is there now.
    fn exchange(&self) -> Exchange {
        Exchange {
            sent: self.sent,
            received: wall_clock(),
        }
    }
}

/// Keeps a reply that was copied on its way.
pub(super) fn store(
    worker: &Worker,
    request: &Request,
    lead: Lead,
    head: Vec<u8>,
    status: u16,
    terms: Terms,
    body: KeptBody,
) {
    let Some(thread_cache) = &worker.cache else {
        return;
    };
    match kept(thread_cache, request, head, status, terms, Arc::new(body)) {
        Some(kept) => keep(worker, lead, kept),
        None => lead.pass(),
    }
}

pub(super) fn keep(worker: &Worker, lead: Lead, kept: Kept) {
    worker.counters.count_kept(lead.keep(kept));
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
