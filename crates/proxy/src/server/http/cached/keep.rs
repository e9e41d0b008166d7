//! Puts replies into the cache.

use std::sync::Arc;

use crate::cache::policy::Terms;
use crate::cache::{Body, Kept, Lead, ThreadCache, key};
use crate::server::http::request::Request;
use crate::server::worker::Worker;

/// An entry and the requests that it is for; `None` if there is no memory for it, or it is for one request only.
pub fn kept(
    thread_cache: &ThreadCache,
    request: &Request,
    head: Vec<u8>,
    status: u16,
    terms: Terms,
    body: Arc<Body>,
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

/// Keeps a reply that was copied on its way.
pub fn store(
    worker: &Worker,
    request: &Request,
    lead: Lead,
    head: Vec<u8>,
    status: u16,
    terms: Terms,
    body: Body,
) {
    let Some(thread_cache) = &worker.cache else {
        return;
    };
    match kept(thread_cache, request, head, status, terms, Arc::new(body)) {
        Some(kept) => keep(worker, lead, kept),
        None => lead.pass(),
    }
}

/// Keeps a reply that is whole.
pub fn keep(worker: &Worker, lead: Lead, kept: Kept) {
    worker.counters.count_kept(lead.keep(kept));
}
