//! The state that a proxy hands to its successor at a reload.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use weir_core::proxy::{BackendSetting, HealthState, Proxy};

use super::client_limit::ClientLimit;
use crate::cache::Cache;
use crate::upstream::{BackendState, KnownAddresses, KnownHealth};

/// The state that a proxy hands to its successor: the cache, the addresses and the health of the backends, and the count
/// of clients. Both proxies use it until the old one ends.
pub struct ReloadState {
    pub(super) settings: Arc<Proxy>,
    pub(super) cache: Option<Arc<Cache>>,
    pub(super) health: Vec<(SocketAddr, BackendState)>,
    pub(super) addresses: KnownAddresses,
    pub(super) client_limit: Arc<ClientLimit>,
}

impl fmt::Debug for ReloadState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReloadState")
            .field("cache", &self.cache.is_some())
            .field("health", &self.health)
            .field("addresses", &self.addresses)
            .finish()
    }
}

impl ReloadState {
    /// The cache, if the new settings would have kept the same replies for the same clients.
    pub(super) fn cache(&self, settings: &Proxy) -> Option<Arc<Cache>> {
        let old = &*self.settings;
        let same_size = (old.cache, old.cache_object) == (settings.cache, settings.cache_object);
        let same_reach = (&old.allow_to, &old.deny_to) == (&settings.allow_to, &settings.deny_to);
        // While one backend stays, the site is the same. Without any, it is another site.
        let stays = |backend: &BackendSetting| {
            let mut backends = settings.backends.iter();
            backends.any(|other| other.address == backend.address)
        };
        let same_servers = old.backends.is_empty() || old.backends.iter().any(stays);
        let fits = old.mode == settings.mode && same_size && same_reach && same_servers;
        self.cache.clone().filter(|_| fits)
    }

    /// The health of the backends, if the old checks asked the same question.
    pub(super) fn health(&self, settings: &Proxy) -> KnownHealth {
        let (old, new) = (&self.settings.health, &settings.health);
        let asks = (&old.check, &old.path, &old.host, &old.status)
            == (&new.check, &new.path, &new.host, &new.status);
        if !asks {
            return KnownHealth::new();
        }
        let known = self.health.iter().filter_map(|(address, state)| {
            let is_up = match state {
                BackendState::Unchecked => return None,
                BackendState::Up => true,
                BackendState::Down => false,
            };
            Some((*address, HealthState::known(is_up)))
        });
        known.collect()
    }
}
