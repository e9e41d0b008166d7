//! Looks for a reply in the cache: serves it, follows another request's fetch, or lets the request go out.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use weir_core::proxy::access::Scope;

use super::asked::Asked;
use super::context::CacheContext;
use super::go_out::{lead_out, send_until_answered};
use super::refresh;
use super::serve::serve;
use super::status::{CacheStatus, Forward};
use crate::cache::conditions;
use crate::cache::policy::Use;
use crate::cache::{Entry, FetchRole, Lookup, ThreadCache, key};
use crate::http::answer::{Answer, ProxyError};
use crate::http::{BodyKind, Method, Role};
use crate::server::client::Client;
use crate::server::http::after::After;
use crate::server::http::refuse::{is_head, leaves_nothing, refuse};
use crate::server::http::request::Request;
use crate::server::http::target::Destination;
use crate::server::worker::Worker;

/// How long a request waits for another's fetch before it goes out itself: one slow server or client must not hold up
/// all others.
const FOLLOW_FOR: Duration = Duration::from_secs(5);

const NOTHING_KEPT: Answer<'static> = Answer {
    status: 504,
    error: ProxyError::DestinationUnavailable,
    details: "only a kept reply was asked for, and there is none",
};

/// How a request goes on after a look into the cache.
enum Next {
    Serve(Arc<Entry>, CacheStatus),
    Refuse,
    GoOut,
}

/// Gets the client its reply, from the cache if that has it.
pub async fn answer(
    worker: &Rc<Worker>,
    thread_cache: &Rc<ThreadCache>,
    client: &mut Client,
    mut request: Request,
) -> After {
    if is_for_the_cache(&request) {
        let asked = Asked::of(&request.head, realm(worker, client));
        match next(worker, thread_cache, client, &mut request, &asked).await {
            Next::Serve(entry, how) => {
                let context = CacheContext {
                    worker,
                    thread_cache,
                    request: &request,
                    asked: &asked,
                };
                return serve(context, client, &entry, how).await;
            }
            Next::Refuse => {
                let keep_alive = leaves_nothing(worker, &request);
                let head_only = is_head(&request);
                return refuse(worker, client, NOTHING_KEPT, keep_alive, head_only).await;
            }
            Next::GoOut => request.asked = Some(Box::new(asked)),
        }
    }
    send_until_answered(worker, client, request).await
}

/// The realm of a client: it gets only replies that were fetched for its realm. A forward proxy connects some clients only
/// to some servers, and a reply that it got for one client must not reach another past that.
fn realm(worker: &Worker, client: &Client) -> u8 {
    match worker.role() {
        Role::Reverse => 0,
        Role::Forward => Scope::of(client.source.ip()) as u8,
    }
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
    worker: &Rc<Worker>,
    thread_cache: &Rc<ThreadCache>,
    client: &Client,
    request: &mut Request,
    asked: &Asked,
) -> Next {
    let cache = &thread_cache.cache;
    let usage = |entry: &Entry| entry.terms.usage(cache.age(entry), &asked.control);
    let hit = |entry: Arc<Entry>| {
        worker.counters.cache_hits.add(1);
        let how = CacheStatus::Hit(entry.terms.time_to_live(cache.age(&entry)));
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
    if !asked.may_lead(request.facts.method) {
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
        Some(FetchRole::Lead(lead)) if while_validating => {
            let stale = asked.stale.borrow().clone().expect("found above");
            refresh::begin(worker, client, (request, asked), &stale, lead);
            return hit(stale);
        }
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
        // The client wants a validated reply. The fetch under way began before it asked.
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
                return Next::Serve(entry, CacheStatus::Collapsed(asked.why.get()));
            }
        }
        None => {}
    }
    worker.counters.cache_misses.add(1);
    Next::GoOut
}
