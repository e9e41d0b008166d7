//! A backend as all threads of a proxy share it: where it listens, what checks found, and what each thread counts.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use weir_core::proxy::{BackendSetting, HealthCheck, Proxy};
use weir_core::units::{about_duration, count};

use super::announced::{HealthChange, OnHealth};
use super::health::BackendHealth;
use super::reach::{Outage, Reach};
use super::recheck::Recheck;
use crate::metrics::{BackendCounters, BackendGauges};

/// One backend of a proxy, for as long as a thread has a connection to it or its address is one of the proxy's.
#[derive(Debug)]
pub struct SharedBackend {
    /// Its number among the proxy's: no other backend has it meanwhile.
    pub number: usize,
    /// Where it listens.
    pub address: SocketAddr,
    /// The item of the settings that it is of.
    pub setting: BackendSetting,
    /// What checks have found; `None` if backends are not checked.
    pub health: Option<BackendHealth>,
    /// What connections to it show, if it is not checked.
    reach: Option<Reach>,
    /// Called with what they show.
    on_health: Option<OnHealth>,
    /// What each thread counts of it.
    pub accounts: Vec<BackendAccount>,
    /// Has the name looked up again of which this is an address.
    pub recheck: Option<Arc<Recheck>>,
}

/// What one thread counts of one backend.
#[derive(Debug, Clone, Default)]
pub struct BackendAccount {
    /// What the thread did with it.
    pub counters: Arc<BackendCounters>,
    /// Connections to it now.
    pub gauges: Arc<BackendGauges>,
}

impl BackendAccount {
    /// Sets the gauges to 0: for a thread that begins where another failed.
    pub fn reset_gauges(&self) {
        self.gauges.in_use.reset();
        self.gauges.idle.reset();
    }
}

impl SharedBackend {
    /// A backend with this address, of this item of the settings, without connections.
    pub fn new(
        number: usize,
        address: SocketAddr,
        setting: BackendSetting,
        recheck: Option<Arc<Recheck>>,
        on_health: Option<OnHealth>,
        settings: &Proxy,
        threads: usize,
    ) -> SharedBackend {
        let is_checked = settings.health.check != HealthCheck::Off;
        SharedBackend {
            number,
            address,
            setting,
            health: is_checked.then(BackendHealth::default),
            reach: (!is_checked).then(Reach::default),
            on_health,
            accounts: (0..threads).map(|_| BackendAccount::default()).collect(),
            recheck,
        }
    }

    /// Its address, and its name if it has one, for logs: `10.0.0.5:80 (app.internal)`.
    pub fn described(&self) -> String {
        match self.setting.address.host() {
            Some(host) => format!("{} ({host})", self.address),
            None => self.address.to_string(),
        }
    }

    /// Whether health checks say that it is down, and another is not.
    pub fn is_avoided(&self) -> bool {
        self.health.as_ref().is_some_and(BackendHealth::is_avoided)
    }

    /// Whether a thread has a connection to it.
    pub fn has_connections(&self) -> bool {
        let of_one = |account: &BackendAccount| {
            account.gauges.in_use.get() > 0 || account.gauges.idle.get() > 0
        };
        self.accounts.iter().any(of_one)
    }

    /// A connection to it has come about. It is one of this proxy's.
    pub fn note_connected(&self, proxy: &str) {
        let reach = self.reach.as_ref();
        let over = reach.and_then(|reach| reach.note_connected(Instant::now));
        let Some(Outage { time, failures }) = over else {
            return;
        };
        let connections = count(failures as usize, "connection");
        let text = format!(
            "proxy {proxy:?}: backend {} takes connections again after {}, in which {connections} failed",
            self.described(),
            about_duration(time),
        );
        tracing::info!("{text}");
        self.say(proxy, true, text);
    }

    /// A connection to it has failed, which is its fault or the network's.
    pub fn note_unconnected(&self, proxy: &str, error: &io::Error) {
        let reach = self.reach.as_ref();
        if !reach.is_some_and(|reach| reach.note_failed(Instant::now())) {
            return;
        }
        let backend = self.described();
        let text = format!("proxy {proxy:?}: backend {backend} takes no connection: {error}");
        tracing::warn!("{text}");
        self.say(proxy, false, text);
    }

    fn say(&self, proxy: &str, is_up: bool, text: String) {
        if let Some(on_health) = &self.on_health {
            on_health.call(&HealthChange {
                proxy: proxy.to_owned(),
                backend: self.described(),
                is_up,
                text,
            });
        }
    }

    /// A connection to it failed: if it is an address of a name, the name may have another one by now.
    pub fn look_again(&self) {
        if let Some(recheck) = &self.recheck {
            recheck.ask();
        }
    }
}
