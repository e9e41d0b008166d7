//! What all threads of a proxy have.

use std::sync::Arc;

use weir_core::class;
use weir_core::proxy::Proxy;

use super::client_limit::ClientLimit;
use crate::access_log::AccessLog;
use crate::cache::Cache;
use crate::own_listeners::OwnListeners;
use crate::transfer::Redirector;
use crate::upstream::{BackendSet, ConnectionLimit, Resolver};

/// What all threads have.
#[derive(Clone)]
pub struct Shared {
    /// What the proxy is to do.
    pub settings: Arc<Proxy>,
    /// The rules of the settings' classes.
    pub classes: Arc<class::Rules>,
    /// The access log; `None`: requests are not logged.
    pub log: Option<Arc<AccessLog>>,
    /// Looks names up, in mode forward.
    pub resolver: Option<Resolver>,
    /// The cache; `None`: replies are not kept.
    pub cache: Option<Arc<Cache>>,
    /// `max_connections`; `None`: no limit.
    pub connection_limit: Option<Arc<ConnectionLimit>>,
    /// The backends, and what all threads have of each.
    pub backends: Arc<BackendSet>,
    /// Carries tunnels of short messages, with engine sockmap.
    pub redirector: Option<Arc<dyn Redirector>>,
    /// `max_clients`, over all threads and earlier generations.
    pub client_limit: Arc<ClientLimit>,
    /// How many threads it has.
    pub threads: usize,
    /// Pipes of one thread at most.
    pub pipes: usize,
    /// Where the process listens.
    pub own_listeners: OwnListeners,
}
