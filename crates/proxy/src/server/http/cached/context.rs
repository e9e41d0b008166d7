//! What the cache needs of an exchange.

use std::rc::Rc;

use super::asked::Asked;
use crate::cache::ThreadCache;
use crate::server::http::request::Request;
use crate::server::worker::Worker;

/// A request in which the cache has a part.
#[derive(Clone, Copy)]
pub struct CacheContext<'a> {
    /// The thread that serves it.
    pub worker: &'a Worker,
    /// The thread's access to the cache.
    pub thread_cache: &'a Rc<ThreadCache>,
    /// The request, as it goes to a server.
    pub request: &'a Request,
    /// What the cache knows of it.
    pub asked: &'a Asked,
}

impl<'a> CacheContext<'a> {
    /// `None` if the cache has no part in the request.
    pub fn of(worker: &'a Worker, request: &'a Request) -> Option<CacheContext<'a>> {
        Some(CacheContext {
            worker,
            thread_cache: worker.cache.as_ref()?,
            request,
            asked: request.asked.as_ref()?,
        })
    }
}
