//! What a proxy leaves to its successor at a reload.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use weir_core::proxy::{Proxy, Verdict};

use super::crowd::Crowd;
use crate::cache::Cache;
use crate::upstream::BackendState;

/// What a proxy leaves to the one that takes its place: what it has kept, what it has found out, and the count of its
/// clients. It goes on using all of it until it ends.
pub struct Heritage {
    pub(super) settings: Arc<Proxy>,
    pub(super) cache: Option<Arc<Cache>>,
    pub(super) health: Vec<(SocketAddr, BackendState)>,
    pub(super) crowd: Arc<Crowd>,
}

impl fmt::Debug for Heritage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Heritage")
            .field("cache", &self.cache.is_some())
            .field("health", &self.health)
            .finish()
    }
}

impl Heritage {
    /// The cache, if what is in it is what these settings would have kept, for whom they would have.
    pub(super) fn cache(&self, settings: &Proxy) -> Option<Arc<Cache>> {
        let old = &*self.settings;
        let same_size = (old.cache, old.cache_object) == (settings.cache, settings.cache_object);
        let same_reach = (&old.allow_to, &old.deny_to) == (&settings.allow_to, &settings.deny_to);
        // A backend more or less serves the same; all others serve something else.
        let stays = |backend| settings.backends.contains(backend);
        let same_servers = old.backends.is_empty() || old.backends.iter().any(stays);
        let fits = old.mode == settings.mode && same_size && same_reach && same_servers;
        self.cache.clone().filter(|_| fits)
    }

    /// What is known of a backend's health, if it was checked for the same.
    pub(super) fn verdict(&self, settings: &Proxy, backend: &SocketAddr) -> Option<Verdict> {
        let (old, new) = (&self.settings.health, &settings.health);
        let asks = (&old.check, &old.path, &old.host, &old.status)
            == (&new.check, &new.path, &new.host, &new.status);
        let known = self.health.iter().find(|(address, _)| address == backend)?;
        match known.1 {
            BackendState::Up if asks => Some(Verdict::known(true)),
            BackendState::Down if asks => Some(Verdict::known(false)),
            _ => None,
        }
    }
}
