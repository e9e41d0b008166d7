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
mod judge;
mod serve;
mod status;

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use weir_core::proxy::access::Scope;

use self::chunks::pass_and_keep;
use self::fill::Fill;
use self::judge::{keep, stale_usable};
use self::serve::serve;
use self::status::{Forward, How};
use super::exchange::{self, Progress, keep_open};
use super::reply::{Delivered, Failure};
use super::request::Request;
use super::target::Destination;
use super::{After, refuse};
use crate::cache::conditions::{self, Conditions};
use crate::cache::control::RequestControl;
use crate::cache::policy::Use;
use crate::cache::{Entry, FetchRole, Lead, Lookup, ThreadCache, key, wall_clock};
use crate::http::answer::{Answer, ProxyError};
use crate::http::{BodyKind, Method, ReplyFacts, Role};
use crate::runtime::while_taken;
use crate::server::client::Client;
use crate::server::inbox::Peer;
use crate::server::worker::Worker;
use crate::upstream::Lease;

pub use self::judge::{Taken, judge, outdate};

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
    thread_cache: &Rc<ThreadCache>,
    client: &mut Client,
    mut request: Request,
) -> After {
    if is_for_the_cache(&request) {
        let asked = Asked::of(&request.head, realm(worker, client));
        match next(worker, thread_cache, client, &mut request, &asked).await {
            Next::Serve(entry, how) => {
                return serve(worker, thread_cache, client, &request, &asked, &entry, how).await;
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
fn realm(worker: &Worker, client: &Client) -> u8 {
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
    thread_cache: &Rc<ThreadCache>,
    client: &Client,
    request: &mut Request,
    asked: &Asked,
) -> Next {
    let cache = &thread_cache.cache;
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
    let role = match alone {
        true => None,
        false => Some(thread_cache.join_fetch(&asked.uri, &request.head, serves)),
    };
    match role {
        Some(FetchRole::Stored(entry)) => return hit(entry),
        Some(FetchRole::Lead(lead)) => {
            lead_out(request, asked, lead);
            if asked.validates.get() {
                worker.counters.cache_revalidations.add(1);
                return Next::GoOut;
            }
        }
        Some(FetchRole::Follow(_)) if while_validating => {
            let stale = asked.stale.borrow().clone();
            return hit(stale.expect("found above"));
        }
        // It wants news; what is under way was asked for before.
        Some(FetchRole::Follow(_)) if asked.control.no_cache => {}
        Some(FetchRole::Follow(fetch)) => {
            worker.handle.set_deadline(FOLLOW_FOR);
            let outcome = client
                .stream
                .wait_for(|| fetch.outcome(|| thread_cache.waker.waiter()))
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
    client: &mut Client,
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
    let (Some(thread_cache), Some(asked)) = (&worker.cache, &request.asked) else {
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
            {
                let (far, idle) = (&mut server, worker.settings.idle_timeout);
                let passed = pass_and_keep(worker, client, request, *draft, reply, far, progress);
                while_taken(idle, [&client.stream], pin!(passed)).await?;
            }
            let delivered = Delivered {
                facts,
                keep_alive: delivery.keep_alive,
            };
            let after =
                exchange::delivered_to(worker, client, request, delivered, lease, server, progress);
            return Ok(after.await);
        }
    };
    Ok(serve(worker, thread_cache, client, request, asked, &entry, how).await)
}

/// Serves what is kept because there is no reply from a server; `None` if nothing may stand in.
pub async fn stand_in(worker: &Worker, client: &Client, request: &Request) -> Option<After> {
    let (thread_cache, asked) = (worker.cache.as_ref()?, request.asked.as_ref()?);
    let entry = stale_usable(thread_cache, asked)?;
    Some(
        serve(
            worker,
            thread_cache,
            client,
            request,
            asked,
            &entry,
            How::StandIn,
        )
        .await,
    )
}
