//! What all threads of a proxy have.

use std::sync::Arc;

use weir_core::class;
use weir_core::proxy::Proxy;

use super::client_limit::ClientLimit;
use crate::access_log::AccessLog;
use crate::cache::Cache;
use crate::transfer::Redirector;
use crate::upstream::{ConnectionLimit, HealthBoard, Resolver};

/// What all threads have.
#[derive(Clone)]
pub struct Shared {
    /// What the proxy is to do.
    pub settings: Arc<Proxy>,
    /// The rules of the settings' classes.
    pub classes: Arc<class::Rules>,
    /// If requests are to be logged.
    pub log: Option<Arc<AccessLog>>,
    /// Of mode forward.
    pub resolver: Option<Resolver>,
    /// If replies are kept.
    pub cache: Option<Arc<Cache>>,
    /// Where connections to backends are limited.
    pub connection_limit: Option<Arc<ConnectionLimit>>,
    /// Where backends are checked.
    pub health: Option<Arc<HealthBoard>>,
    /// Of engine sockmap.
    pub redirector: Option<Arc<dyn Redirector>>,
    /// All clients, those of earlier settings too.
    pub client_limit: Arc<ClientLimit>,
}
