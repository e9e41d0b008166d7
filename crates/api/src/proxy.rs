//! A proxy: its clients, its backends, its cache and its threads.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::LastReload;

/// A proxy, over all generations of its settings.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Proxy {
    /// The proxy's name
    pub name: String,
    /// The id of the proxy's process, as it sees it itself
    pub pid: u32,
    /// The config file of the proxy's process; null: it has flags only
    pub config: Option<String>,
    /// The last time that the proxy's process read its config file again; absent if it has not, since it started
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_reload: Option<LastReload>,
    /// Seconds until the config file before the last reload is in force again; null: the last one is for good
    ///
    /// `weir reload --confirm TIME` begins that time, and another reload ends it.
    #[serde(default)]
    pub unconfirmed_s: Option<u64>,
    /// The proxy's address and port
    pub address: String,
    /// What the proxy does: forward, reverse or tcp
    pub mode: String,
    /// Whether the proxy accepts clients; if not, it serves those that it has
    pub accepting: bool,
    /// Connections of clients now
    pub clients: u64,
    /// Clients that wait for a connection to a backend (max_connections)
    pub waiting: u64,
    /// Clients that wait, and what became of those before them, by the priority of their class
    ///
    /// Only priorities of which a client had to wait.
    pub queue: Vec<ProxyQueue>,
    /// Connections to all servers now: in_use and idle
    pub connections: Connections,
    /// What the proxy's cache holds: held_bytes of at most limit_bytes, and how many objects; absent without a cache
    ///
    /// Settings that a reload has replaced may have had another cache; it counts as long as its clients read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_memory: Option<CacheMemory>,
    /// How long requests, connects and first bytes took since the proxy began, by their names
    ///
    /// Ranges of time are counted, so p50 and p99 are estimates: exact to the range, spread evenly within it. In the metrics the names end in _seconds.
    pub times: BTreeMap<String, Times>,
    /// Events, each by its name, since the start
    pub counters: BTreeMap<String, u64>,
    /// The servers behind the proxy
    pub backends: Vec<Backend>,
    /// The names of backends, and whether they resolve
    ///
    /// Each address of a name is a backend.
    #[serde(default)]
    pub names: Vec<ProxyName>,
    /// The proxy's threads; those of earlier settings follow
    pub threads: Vec<ProxyThread>,
    /// The config keys in effect, beside the fields above
    #[serde(flatten)]
    pub settings: BTreeMap<String, Value>,
}

/// Clients of one priority that wait, or had to wait, for a connection to a backend.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProxyQueue {
    /// The priority: 1 is the highest, 64 is that of clients of no class
    pub priority: u8,
    /// Clients that wait now
    pub waiting: u64,
    /// Events, each by its name, since the start
    pub counters: BTreeMap<String, u64>,
}

/// Connections to servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Connections {
    /// Connections to servers that carry a request or are being established
    pub in_use: u64,
    /// Connections to servers that wait for the next request
    pub idle: u64,
}

/// The memory of a proxy's cache, and of earlier caches that clients still read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CacheMemory {
    /// Bytes of the replies that the cache keeps, receives, or has evicted while a client reads them; cache_held_bytes in metrics
    pub held_bytes: u64,
    /// The size of the cache: the key cache; cache_limit_bytes in metrics
    pub limit_bytes: u64,
    /// Replies that held_bytes counts; cache_objects in metrics
    pub objects: u64,
}

/// A backend of a proxy.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Backend {
    /// The backend's address and port
    pub address: String,
    /// The name of which this is an address; absent if the settings have the address itself
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved_from: Option<String>,
    /// The backend's part of the connections, relative to the others; 0: it gets no new ones
    ///
    /// 0: only settings that a reload has replaced have it, or its name has it no longer.
    #[serde(default)]
    pub weight: u16,
    /// What health checks found: up or down; unchecked without them, or before the first
    pub health: String,
    /// The result of the last health check; empty if there was none
    pub last_check: String,
    /// Connections to the backend now: in_use and idle
    pub connections: Connections,
    /// How long connects and first bytes took since the proxy began, by their names
    pub times: BTreeMap<String, Times>,
    /// Events, each by its name, since the start
    pub counters: BTreeMap<String, u64>,
}

/// A name of a proxy's backends.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProxyName {
    /// The name
    pub name: String,
    /// Whether the last look-up of the name found addresses
    ///
    /// If not, the name keeps those that it had.
    pub resolved: bool,
    /// Why the last look-up of the name found no address; empty if it did
    pub lookup_error: String,
    /// For how many seconds look-ups of the name have failed; absent if the last one did not
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failing_seconds: Option<u64>,
    /// The addresses of the name that are in use
    pub addresses: Vec<String>,
    /// Events, each by its name, since the start
    pub counters: BTreeMap<String, u64>,
}

/// A thread of a proxy.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProxyThread {
    /// What the thread does: accepting, full, draining or ended
    ///
    /// full: max_clients are connected. draining: it serves those that it has and takes no more.
    pub state: String,
    /// Connections of clients now
    pub clients: u64,
    /// How often the thread failed and was started again
    ///
    /// Not 0: please report what its log says.
    #[serde(default, alias = "falls")] // its name in 0.1.0, which may still run
    pub restarts: u64,
}

/// How long something took, since the process began.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Times {
    /// How often, since the start
    pub count: u64,
    /// The sum of all times, in µs
    pub sum_us: u64,
    /// The median, in µs; absent if there were none
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p50_us: Option<u64>,
    /// The 99th percentile, in µs; absent if there were none
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_us: Option<u64>,
    /// How many times fell into each range
    pub ranges: Vec<TimeRange>,
}

/// How many times fell between the bound of the range before and the bound of this one.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TimeRange {
    /// The longest time of the range, in µs; absent in the last range, which has no bound
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up_to_us: Option<u64>,
    /// How many
    pub count: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_of_0_1_0_is_read() {
        let thread = r#"{"state":"accepting","clients":2,"falls":3}"#;
        let thread: ProxyThread = serde_json::from_str(thread).unwrap();
        assert_eq!((thread.clients, thread.restarts), (2, 3));
    }
}
