//! Puts replies into the cache.

use std::sync::Arc;

use super::context::CacheContext;
use crate::cache::{Body, EntryHead, Kept, Lead, key};
use crate::server::worker::Worker;

/// An entry and the requests that it is for; `None` if there is no memory for it, or it is for one request only.
pub fn kept(context: CacheContext<'_>, head: EntryHead, body: Arc<Body>) -> Option<Kept> {
    let vary = key::vary(&head.bytes)?;
    let variant = key::variant(&context.request.head, &vary);
    let entry = context.thread_cache.cache.entry(head, body)?;
    Some(Kept {
        entry: Arc::new(entry),
        vary: Arc::new(vary),
        variant: variant.into(),
    })
}

/// Keeps a reply that was copied on its way.
pub fn store(context: CacheContext<'_>, lead: Lead, head: EntryHead, body: Body) {
    match kept(context, head, Arc::new(body)) {
        Some(kept) => keep(context.worker, lead, kept),
        None => lead.pass(),
    }
}

/// Keeps a reply that is whole.
pub fn keep(worker: &Worker, lead: Lead, kept: Kept) {
    worker.counters.count_kept(lead.keep(kept));
}
