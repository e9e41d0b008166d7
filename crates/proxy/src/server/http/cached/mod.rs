//! Requests that the cache may answer.
//!
//! ```text
//! answer   looks in the cache; serves, follows another's fetch, or lets the request go out
//! judge    at the head of the server's reply: what the cache makes of it
//! take     does that; what the cache does not take goes by the engines, as without a cache
//! ```
//!
//! Everything here is boxed where the plain path calls it, so that connections of a proxy without a
//! cache carry none of it.

mod chunks;
mod fill;
mod serve;
mod status;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use weir_core::proxy::access::Scope;

use self::chunks::{Draft, pass_and_keep};
use self::fill::Fill;
use self::serve::serve;
use self::status::{Forward, How};
use super::exchange::{self, Progress, keep_open};
use super::reply::{Delivered, Failure};
use super::request::Request;
use super::target::Destination;
use super::{After, refuse};
use crate::cache::conditions::{self, Conditions};
use crate::cache::control::RequestControl;
use crate::cache::policy::{self, Exchange, NotKept, Terms, Use};
use crate::cache::{
    Boarding, Body as KeptBody, Entry, Filler, Kept, Lead, Lookup, Seat, fields, key, wall_clock,
};
use crate::http::answer::{Answer, ProxyError};
use crate::http::{BodyKind, Delivery, Method, ReplyFacts, Role};
use crate::server::inbox::Peer;
use crate::server::visitor::Visitor;
use crate::server::worker::Worker;
use crate::upstream::Lease;

/// How long a request waits for another's fetch before it goes out itself: a server that is slow, or
/// a first client that is, must not hold all others.
const FOLLOW_FOR: Duration = Duration::from_secs(5);

const NOTHING_KEPT: Answer<'static> = Answer {
    status: 504,
    error: ProxyError::DestinationUnavailable,
    details: "only a kept reply was asked for, and there is none",
};

/// What the cache knows of a request while it is under way.
pub struct Asked {
    uri: Vec<u8>,
    control: RequestControl,
    conditions: Conditions,
    why: Cell<Forward>,
    /// Held by the one whose reply is for others too.
    lead: Cell<Option<Lead>>,
    /// What the server is asked to confirm, or what stands in if it fails.
    stale: RefCell<Option<Arc<Entry>>>,
    /// It asks the server to confirm that.
    validates: Cell<bool>,
    /// When it went out, in seconds since 1970.
    sent: u64,
    /// The server's reply was about something else: it is to be asked again.
    again: Cell<bool>,
}

impl Asked {
    fn of(head: &[u8], realm: u8) -> Asked {
        Asked {
            uri: in_realm(realm, &key::uri(head)),
            control: RequestControl::of(head),
            conditions: Conditions::of(head),
            why: Cell::new(Forward::UriMiss),
            lead: Cell::new(None),
            stale: RefCell::new(None),
            validates: Cell::new(false),
            sent: wall_clock(),
            again: Cell::new(false),
        }
    }

    /// Whether its reply may be kept. The cache fetches whole replies with GET.
    fn may_lead(&self, request: &Request) -> bool {
        request.facts.method == Method::Get
            && !self.control.no_store
            && !self.conditions.wants_part()
    }
}

/// How a request goes on after a look into the cache.
enum Next {
    Serve(Arc<Entry>, How),
    Refuse,
    GoOut,
}

/// Gets the client its reply, from the cache if that has it.
pub async fn answer(
    worker: &Worker,
    seat: &Rc<Seat>,
    client: &mut Visitor,
    mut request: Request,
) -> After {
    if is_for_the_cache(&request) {
        let asked = Asked::of(&request.head, realm(worker, client));
        match next(worker, seat, client, &mut request, &asked).await {
            Next::Serve(entry, how) => {
                return serve(worker, seat, client, &request, &asked, &entry, how).await;
            }
            Next::Refuse => {
                let keep_alive = super::leaves_nothing(worker, &request);
                let head_only = request.facts.method == Method::Head;
                return refuse(worker, client, NOTHING_KEPT, keep_alive, head_only).await;
            }
            Next::GoOut => request.asked = Some(Box::new(asked)),
        }
    }
    loop {
        let after = exchange::send_on(worker, client, &request).await;
        let again = request
            .asked
            .as_ref()
            .is_some_and(|asked| asked.again.take());
        if !again {
            return after;
        }
        let head = conditions::unconditional(&request.head);
        replace(&mut request, head);
    }
}

/// Whose replies a client may be given: a forward proxy goes to some servers for some clients only,
/// and what it has got for one must not reach another past that.
fn realm(worker: &Worker, client: &Visitor) -> u8 {
    match worker.role() {
        Role::Reverse => 0,
        Role::Forward => Scope::of(client.source.ip()) as u8,
    }
}

fn in_realm(realm: u8, uri: &[u8]) -> Vec<u8> {
    [&[realm], uri].concat()
}

fn is_for_the_cache(request: &Request) -> bool {
    let facts = &request.facts;
    matches!(
        request.destination,
        Destination::Backend | Destination::Origin(_)
    ) && matches!(facts.method, Method::Get | Method::Head)
        && facts.body == BodyKind::None
        && !facts.upgrade
        && !facts.expects_continue
        && !key::overrides_method(&request.head)
        && !conditions::is_for_the_server(&request.head)
}

/// Looks into the cache, and joins or begins a fetch if that must be.
async fn next(
    worker: &Worker,
    seat: &Rc<Seat>,
    client: &Visitor,
    request: &mut Request,
    asked: &Asked,
) -> Next {
    let cache = &seat.cache;
    let usage = |entry: &Entry| entry.terms.usage(cache.age(entry), &asked.control);
    let hit = |entry: Arc<Entry>| {
        worker.counters.cache_hits.add(1);
        let how = How::Hit(entry.terms.time_to_live(cache.age(&entry)));
        Next::Serve(entry, how)
    };
    let mut alone = false;
    let mut while_validating = false;
    match cache.find(&asked.uri, &request.head) {
        Lookup::Reply(entry) => match usage(&entry) {
            Use::Serve => return hit(entry),
            usage => {
                while_validating = usage == Use::ServeWhileValidating;
                asked.why.set(match asked.control.no_cache {
                    true => Forward::Request,
                    false => Forward::Stale,
                });
                *asked.stale.borrow_mut() = Some(entry);
            }
        },
        Lookup::OtherVariants => asked.why.set(Forward::VaryMiss),
        Lookup::Alone => alone = true,
        Lookup::Nothing => {}
    }
    if asked.control.only_if_cached {
        return Next::Refuse;
    }
    if !asked.may_lead(request) {
        asked.why.set(Forward::Request);
        alone = true;
    }
    let serves = |entry: &Entry| usage(entry) == Use::Serve;
    let boarding = match alone {
        true => None,
        false => Some(cache.board(&asked.uri, &request.head, seat, serves)),
    };
    match boarding {
        Some(Boarding::Landed(entry)) => return hit(entry),
        Some(Boarding::Lead(lead)) => {
            lead_out(request, asked, lead);
            if asked.validates.get() {
                worker.counters.cache_revalidations.add(1);
                return Next::GoOut;
            }
        }
        Some(Boarding::Follow(_)) if while_validating => {
            let stale = asked.stale.borrow().clone();
            return hit(stale.expect("found above"));
        }
        // It wants news; what is under way was asked for before.
        Some(Boarding::Follow(_)) if asked.control.no_cache => {}
        Some(Boarding::Follow(flight)) => {
            worker.handle.set_deadline(FOLLOW_FOR);
            let outcome = client
                .stream
                .wait_for(|| flight.outcome(|| seat.waiter()))
                .await;
            if let Ok(Some(outcome)) = outcome
                && let Some(entry) = outcome.entry_for(&request.head)
            {
                worker.counters.cache_collapsed.add(1);
                return Next::Serve(entry, How::Collapsed(asked.why.get()));
            }
        }
        None => {}
    }
    worker.counters.cache_misses.add(1);
    Next::GoOut
}

/// Makes the request one for all: without the conditions of this client, which the cache will answer,
/// and with its own.
fn lead_out(request: &mut Request, asked: &Asked, lead: Lead) {
    asked.lead.set(Some(lead));
    let stale = asked.stale.borrow();
    let validating = stale
        .as_ref()
        .and_then(|stale| conditions::validating(&request.head, &stale.head));
    asked.validates.set(validating.is_some());
    let head = validating.unwrap_or_else(|| conditions::unconditional(&request.head));
    drop(stale);
    replace(request, head);
}

fn replace(request: &mut Request, head: Vec<u8>) {
    request.head.clear();
    request.head.extend_from_slice(&head);
}

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
    let (seat, asked) = (worker.cache.as_ref()?, request.asked.as_ref()?);
    if facts.status >= 500
        && let Some(entry) = stale_usable(seat, asked)
    {
        return Some(Taken::StandIn(entry));
    }
    let why_not = match asked.lead.take() {
        None => None,
        Some(lead) if facts.status == 304 && asked.validates.get() => {
            return Some(confirm(seat, request, asked, lead, head));
        }
        Some(lead) => match draft(seat, request, asked, facts, delivery, head) {
            Ok(Drafted::Body(kept, filler)) => {
                lead.share(&kept);
                return Some(Taken::Body(kept, filler, lead));
            }
            Ok(Drafted::Chunks(share, terms)) => {
                let draft = Draft {
                    head: head.clone(),
                    outgoing: with_status(head, How::Stored(asked.why.get())),
                    lead,
                    share,
                    terms,
                };
                return Some(Taken::Draft(Box::new(draft), delivery));
            }
            Err(why_not) => {
                // What is kept for it is no longer what the server says.
                if facts.status < 500 && asked.stale.borrow().is_some() {
                    seat.cache.forget(&asked.uri);
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
fn stale_usable(seat: &Seat, asked: &Asked) -> Option<Arc<Entry>> {
    let entry = asked.stale.borrow().clone()?;
    let age = seat.cache.age(&entry);
    entry
        .terms
        .usable_after_error(age, &asked.control)
        .then_some(entry)
}

/// A 304 to the cache's own question (RFC 9111 Section 4.3.4).
fn confirm(
    seat: &Seat,
    request: &Request,
    asked: &Asked,
    lead: Lead,
    not_modified: &[u8],
) -> Taken {
    let old = asked.stale.borrow_mut().take();
    let old = old.expect("it was asked about something");
    let Some(head) = conditions::freshened(&old.head, not_modified) else {
        seat.cache.forget(&asked.uri);
        asked.again.set(true);
        return Taken::Again;
    };
    let exchange = asked.exchange();
    match policy::terms(&request.head, &head, old.status, exchange) {
        Ok(terms) => match kept(seat, request, head, old.status, terms, old.body.clone()) {
            Some(kept) => Taken::Confirmed(kept, lead),
            None => Taken::LastUse(old),
        },
        Err(_) => {
            seat.cache.forget(&asked.uri);
            Taken::LastUse(old)
        }
    }
}

/// How a reply comes into the cache.
enum Drafted {
    Body(Kept, Filler),
    Chunks(crate::cache::Share, Terms),
}

fn draft(
    seat: &Rc<Seat>,
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
            let share = seat.cache.room_for(0).ok_or(NotKept::TooLarge)?;
            return Ok(Drafted::Chunks(share, terms));
        }
        BodyKind::UntilClose | BodyKind::Tunnel => return Err(NotKept::Unbounded),
    };
    if length > seat.cache.longest() {
        return Err(NotKept::TooLarge);
    }
    let share = seat.cache.room_for(Filler::room_needed(length));
    let filler = Filler::new(length, share.ok_or(NotKept::TooLarge)?, seat);
    let head = conditions::kept(head);
    let body = filler.body().clone();
    let kept = kept(seat, request, head, facts.status, terms, body).ok_or(NotKept::TooLarge)?;
    Ok(Drafted::Body(kept, filler))
}

/// An entry and whom it is for.
fn kept(
    seat: &Seat,
    request: &Request,
    head: Vec<u8>,
    status: u16,
    terms: Terms,
    body: Arc<KeptBody>,
) -> Option<Kept> {
    let vary = key::vary(&head)?;
    let variant = key::variant(&request.head, &vary);
    let entry = seat.cache.entry(head, status, terms, body)?;
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
fn store(
    worker: &Worker,
    request: &Request,
    lead: Lead,
    head: Vec<u8>,
    status: u16,
    terms: Terms,
    body: KeptBody,
) {
    let Some(seat) = &worker.cache else { return };
    match kept(seat, request, head, status, terms, Arc::new(body)) {
        Some(kept) => keep(worker, lead, kept),
        None => lead.pass(),
    }
}

fn keep(worker: &Worker, lead: Lead, kept: Kept) {
    worker.counters.count_kept(lead.keep(kept));
}

/// The server's side of a reply that the cache takes.
pub struct Source<'a> {
    /// What the reply's head said.
    pub facts: ReplyFacts,
    /// The connection, after the head.
    pub server: Peer,
    /// The right to it.
    pub lease: Lease,
    /// How far the exchange has come.
    pub progress: &'a Progress,
}

/// Gives the client its reply as the cache has judged.
pub async fn take(
    worker: &Worker,
    client: &mut Visitor,
    request: &Request,
    taken: Taken,
    source: Source<'_>,
) -> Result<After, Failure> {
    let Source {
        facts,
        mut server,
        lease,
        progress,
    } = source;
    let (Some(seat), Some(asked)) = (&worker.cache, &request.asked) else {
        return Ok(After::Close);
    };
    let (entry, how) = match taken {
        Taken::Again => {
            keep_open(worker, client, lease, &facts, server);
            return Ok(After::Continue);
        }
        Taken::Confirmed(kept, lead) => {
            keep_open(worker, client, lease, &facts, server);
            let entry = kept.entry.clone();
            keep(worker, lead, kept);
            (entry, How::Confirmed)
        }
        Taken::LastUse(entry) => {
            keep_open(worker, client, lease, &facts, server);
            (entry, How::Confirmed)
        }
        Taken::StandIn(entry) => (entry, How::StandIn),
        Taken::Body(kept, filler, lead) => {
            let entry = kept.entry.clone();
            let fill = Fill {
                server,
                lease,
                facts,
                filler,
                lead,
                kept,
                counters: worker.counters.clone(),
                settings: worker.settings.clone(),
                handle: worker.handle.clone(),
            };
            fill.begin();
            (entry, How::Stored(asked.why.get()))
        }
        Taken::Draft(draft, delivery) => {
            let reply = (facts, delivery);
            pass_and_keep(
                worker,
                client,
                request,
                *draft,
                reply,
                &mut server,
                progress,
            )
            .await?;
            let delivered = Delivered {
                facts,
                keep_alive: delivery.keep_alive,
            };
            let after =
                exchange::delivered_to(worker, client, request, delivered, lease, server, progress);
            return Ok(after.await);
        }
    };
    Ok(serve(worker, seat, client, request, asked, &entry, how).await)
}

/// Serves what is kept because there is no reply from a server; `None` if nothing may stand in.
pub async fn stand_in(worker: &Worker, client: &Visitor, request: &Request) -> Option<After> {
    let (seat, asked) = (worker.cache.as_ref()?, request.asked.as_ref()?);
    let entry = stale_usable(seat, asked)?;
    Some(serve(worker, seat, client, request, asked, &entry, How::StandIn).await)
}

/// Forgets what a request that is not safe has made outdated (RFC 9111 Section 4.4): before its
/// client sees the reply, so that it finds what it has written.
pub fn outdate(seat: &Seat, request: &[u8], status: u16, reply: &[u8]) {
    if !(200..400).contains(&status) {
        return;
    }
    let location = |name| {
        let target = fields::only_value(reply, name)?;
        key::sibling(request, target)
    };
    let uris = [
        Some(key::uri(request)),
        location("location"),
        location("content-location"),
    ];
    for uri in uris.iter().flatten() {
        for scope in Scope::ALL {
            seat.cache.forget(&in_realm(scope as u8, uri));
        }
    }
}
