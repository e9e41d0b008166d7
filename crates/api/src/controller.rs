//! The controller: its objective, what it measures, and what it has decided.

use serde::{Deserialize, Serialize};

/// The controller's objective, its statistics and its decisions.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Controller {
    /// Whether decisions are set (enforce) or only reported (observe)
    pub mode: String,
    /// The wait for accept() to keep, with its unit (`20ms`); null: none
    pub target_wait: Option<String>,
    /// The share of CPU time to stay under, 0.0 to 1.0; null: none
    pub max_cpu: Option<f64>,
    /// The time between two readings, with its unit
    pub interval: String,
    /// How many readings the averages are over
    pub samples: u32,
    /// What the controller sees: averages over `samples` intervals
    pub statistics: Statistics,
    /// The controller's last changes, oldest first, at most 512
    ///
    /// `weir explain controller` shows all of them.
    pub decisions: Vec<Decision>,
}

/// What the controller sees, averaged.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Statistics {
    /// Share of the machine's CPU time that is used, 0.0 to 1.0, averaged; null while not known
    ///
    /// max_cpu bounds it.
    pub cpu: Option<f64>,
    /// Share of the quota of the server's cgroup that is used, 0.0 to 1.0, averaged; null without a quota or while not known
    ///
    /// max_cpu bounds it too.
    pub cgroup_cpu: Option<f64>,
    /// The listeners as the controller sees them
    pub listeners: Vec<ListenerStatistics>,
    /// The classes as the controller sees them
    pub classes: Vec<ClassStatistics>,
}

/// A listener as the controller sees it. Rates are connections/s.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ListenerStatistics {
    /// The listener's name
    pub name: String,
    /// Connections that wait for accept(), averaged
    pub queue_length: f64,
    /// The wait for accept(), in microseconds, as the listener's wait_us; null while not known
    pub wait_us: Option<u64>,
    /// SYNs per second, averaged; retransmissions count too
    pub syns: f64,
    /// Connections that were let in, per second, averaged
    pub admitted: f64,
    /// Connections that weir or the kernel refused, per second, averaged
    pub refused: f64,
    /// Connections that the server accepts, per second, averaged
    pub accepted: f64,
    /// Connections per second that the server accepts while it is busy; null while not known
    ///
    /// By the guard's estimate, summed over the listener's sockets that were seen busy. Of one that was never busy only a lower bound is seen.
    /// While a long queue shows the server to be slower, service_us of the listener is longer than 1 / capacity.
    pub capacity: Option<f64>,
    /// Connections that the controller leaves waiting; null while capacity is not known
    pub kept_queue_length: Option<f64>,
    /// The wait of so many connections, in microseconds; null while capacity is not known
    ///
    /// target_wait, or more: the controller leaves a slow server 10 connections, since it would be idle with fewer.
    pub kept_wait_us: Option<u64>,
}

/// A class as the controller sees it. Rates are connections/s.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClassStatistics {
    /// The class's name
    pub name: String,
    /// SYNs per second, averaged; retransmissions count too
    pub syns: f64,
    /// Connections that were let in, per second, averaged
    pub admitted: f64,
    /// Connections that weir or the kernel refused, per second, averaged
    pub refused: f64,
    /// The controller's limit in connections/s, averaged; null: none. With mode = observe: the limit that it would set
    pub controlled_rate: Option<f64>,
    /// Why the controller limits the class; null if it does not
    pub reason: Option<String>,
}

/// A change that the controller made.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Decision {
    /// When the controller decided, in ms since 1970 UTC
    pub at_unix_ms: u64,
    /// The class whose limit changed
    pub class: String,
    /// The limit before, in connections/s; null: none
    pub from: Option<f64>,
    /// The limit from then on, in connections/s; null: lifted
    pub to: Option<f64>,
    /// Whether the controller only reported a decision (mode = observe)
    pub observed: bool,
    /// Why the controller decided so
    pub reason: String,
}
