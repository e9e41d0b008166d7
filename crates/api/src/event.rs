//! Events: what happened, one after the other; and what is kept of refusals, by their sources.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::listener::is_false;
use crate::{Cause, Decision};

/// The kinds of events of this version.
pub const EVENT_KINDS: [&str; 18] = [
    "start",
    "stop",
    "reload",
    "reload_failed",
    "overload",
    "over_rate",
    "syn_flood",
    "not_in_force",
    "in_force",
    "workload_on",
    "workload_off",
    "class_held",
    "class_released",
    "class_changed",
    "backend_down",
    "backend_up",
    "refusal",
    "left_out",
];

/// Events that a process keeps, the oldest first.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Events {
    /// The process whose events they are
    pub pid: u32,
    /// When the process began, in ms since 1970 UTC
    ///
    /// The numbers of its events begin with 1. A client that follows events and finds another value here asks from the
    /// beginning again (after = 0).
    pub since_unix_ms: u64,
    /// The number of the last event here, to ask for those that follow (after); that of the question if there is none
    pub last: u64,
    /// Events that the question covers and that are not kept any more
    pub missed: u64,
    /// Whether there are more events than the answer has
    pub more: bool,
    /// The events
    pub events: Vec<Event>,
}

/// Something that happened. `kind` says what; fields that say nothing of it are absent.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Event {
    /// When it happened, in UTC (RFC 3339)
    pub time: String,
    /// When it happened, in ms since 1970 UTC
    pub at_unix_ms: u64,
    /// The process that says so
    pub pid: u32,
    /// The number of the event in its process, from 1 without gaps
    pub number: u64,
    /// How grave it is: info, warn or error
    pub severity: String,
    /// What happened, in one word
    ///
    /// start, stop; reload, reload_failed; overload, over_rate and syn_flood (episode says whether it begins, lasts or
    /// has ended); not_in_force, in_force; workload_on, workload_off, a workload that comes under guard or is no longer; class_held
    /// and class_released by the controller; class_changed by a user; backend_down, backend_up; refusal, a sampled one; left_out,
    /// refusals or changes of workloads that the bound on events left out. Clients pass words over that they do not know.
    pub kind: String,
    /// What happened, in a sentence
    pub text: String,
    /// The listener, or the QUIC listener: protocol says which
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listener: Option<String>,
    /// Of a QUIC listener: quic, which runs over UDP. Absent: TCP
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// The container, unit, pod or network namespace in which the listener is guarded (`where`); absent in weir's own
    /// namespace, but for workload_on and workload_off
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    /// The class
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// The proxy
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy: Option<String>,
    /// The address of the proxy's backend
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// Whether weir only counted what it would have done (mode = observe)
    #[serde(default, skip_serializing_if = "is_false")]
    pub observed: bool,
    /// Of kind overload, over_rate and syn_flood: figures of the episode so far
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub episode: Option<Episode>,
    /// Of kind class_held and class_released: what the controller decided, and why
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<Decision>,
    /// Of kind reload and reload_failed: what came of it
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reload: Option<Reload>,
    /// Of kind refusal: who was refused, and what the guard saw
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<Refusal>,
    /// Of kind left_out: how many sampled refusals, or changes of workloads, were no events
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out: Option<u64>,
}

/// A time in which a listener turns connections away.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Episode {
    /// Whether the episode begins, lasts or has ended: begins, lasts or ends
    pub state: String,
    /// How long connections have been turned away, in ms
    pub duration_ms: u64,
    /// Connections turned away since the episode began; of a syn_flood, SYNs that were answered with a cookie
    pub turned_away: u64,
    /// Connections let in since the episode began
    pub let_in: u64,
    /// The longest wait for accept() that was read, in microseconds; of a QUIC listener for the server's answer
    pub peak_wait_us: u64,
    /// The longest listen queue that was read; of a QUIC listener 0, which has none
    pub peak_queue_length: u32,
    /// The limit of the listen queue; likewise
    pub queue_limit: u32,
    /// The most half-open connections that were read; likewise
    pub peak_half_open: u32,
    /// Of a QUIC listener: the most connection attempts that were not answered
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_pending: Option<u32>,
    /// Of a QUIC listener: the largest share of the receive buffer of a server's socket that was taken, 0 to 1
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_buffer: Option<f64>,
    /// Classes that the controller has held meanwhile, each with its lowest rate in connections/s
    #[serde(default)]
    pub held: BTreeMap<String, f64>,
}

/// What came of a reload.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Reload {
    /// The config file
    pub config: Option<String>,
    /// Listeners of the file
    pub listeners: usize,
    /// Proxies of the file
    pub proxies: usize,
    /// Listeners that are not in force, and why
    #[serde(default)]
    pub not_in_force: Vec<Cause>,
    /// What differs otherwise from what the file asks for
    #[serde(default)]
    pub warnings: Vec<String>,
    /// Why nothing has changed; empty if it has
    #[serde(default)]
    pub errors: Vec<Cause>,
}

/// A refused connection that weir sampled.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Refusal {
    /// The client's address
    pub source: String,
    /// The client's port
    pub source_port: u16,
    /// The address and port that the client wanted
    pub destination: String,
    /// What weir decided; `weir explain VERDICT` says what to do about it
    pub verdict: String,
    /// Connections that waited for accept() then; null: weir did not look, because a rate decided, or it was a QUIC listener
    pub queue_length: Option<u32>,
    /// The limit of the listen queue; null likewise
    pub queue_limit: Option<u32>,
    /// Half-open connections then; null likewise
    pub half_open: Option<u32>,
    /// The wait that the connection would have had, in microseconds; null: weir did not look, because a rate decided, or did not know it
    pub wait_us: Option<u64>,
    /// Of a QUIC listener: connection attempts that weir had let in then and that the server had not answered
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<u32>,
    /// Of a QUIC listener: bytes in the receive buffer of the server's socket then
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffer: Option<u32>,
    /// Of a QUIC listener: how many bytes that receive buffer may have
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffer_limit: Option<u32>,
}

/// Why an address was refused, from what is kept.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Why {
    /// The address that was asked for
    pub address: String,
    /// The answer in one word: refused, not_refused or not_known
    ///
    /// not_refused: weir has kept every refusal since since_unix_ms, and none is of the address. not_known: none that
    /// is kept is of the address, and some were not kept.
    pub answer: String,
    /// The answer in a sentence
    pub text: String,
    /// Whether every listener is only observed now (mode = observe): what is said to be refused would have been
    #[serde(default, skip_serializing_if = "is_false")]
    pub observed: bool,
    /// Since when refusals are kept, in ms since 1970 UTC
    pub since_unix_ms: u64,
    /// Refusals of the address that are kept, the newest first: for each minute, listener and verdict the last one
    pub refusals: Vec<KeptRefusal>,
    /// Refusals of its network that are kept: /24 of IPv4, /56 of IPv6
    pub network: SourceNetwork,
    /// The minutes in which not all refusals were kept, the newest first
    pub gaps: Vec<RefusedMinute>,
}

/// The refusals of an address in one minute that had one verdict at one listener.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct KeptRefusal {
    /// When the last of them happened, in ms since 1970 UTC
    pub at_unix_ms: u64,
    /// How many were sampled
    pub sampled: u64,
    /// How many there were, estimated from the share of refusals that is sampled
    pub estimated: u64,
    /// The listener
    pub listener: String,
    /// The class; null: the listener has no classes
    pub class: Option<String>,
    /// Whether weir only counted the refusal (mode = observe)
    pub observed: bool,
    /// The last of them
    pub refusal: Refusal,
}

/// What is kept of the network of an address.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SourceNetwork {
    /// The network, as a prefix
    pub prefix: String,
    /// Addresses of the network of which refusals are kept
    pub addresses: usize,
    /// Refusals of the network that were sampled
    pub sampled: u64,
    /// How many there were, estimated
    pub estimated: u64,
}

/// The refusals of one minute.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RefusedMinute {
    /// When the minute began, in ms since 1970 UTC
    pub at_unix_ms: u64,
    /// Refusals of all listeners
    pub refused: u64,
    /// Of these, those that were sampled
    pub sampled: u64,
    /// Of the sampled ones, those that are kept
    pub kept: u64,
    /// Refusals by verdict; those that were 0 are left out
    pub verdicts: BTreeMap<String, u64>,
}

/// The sources that are refused most at present.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TopSources {
    /// Whether every listener is only observed now (mode = observe): what is said to be refused would have been
    #[serde(default, skip_serializing_if = "is_false")]
    pub observed: bool,
    /// After so many seconds a refusal counts half
    pub half_life_s: u64,
    /// Refusals, each counted less with its age
    pub refused: f64,
    /// Refusals per second, a moving mean: half of its weight is of the last half_life_s
    pub refused_per_second: f64,
    /// No source with a larger share of the refusals than this is missing, 0 to 1
    pub smallest_share: f64,
    /// Addresses, the most refused first
    pub addresses: Vec<TopSource>,
    /// Networks, the most refused first: /24 of IPv4, /56 of IPv6
    pub networks: Vec<TopSource>,
}

/// An address or a network that is refused.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TopSource {
    /// The address, or the network as a prefix
    pub source: String,
    /// Its refusals at most, each counted less with its age
    pub at_most: f64,
    /// Its refusals at least, likewise
    pub at_least: f64,
    /// Its share of all refusals at most, 0 to 1
    pub share: f64,
    /// Its refusals per second at most, a moving mean: half of its weight is of the last half_life_s
    pub per_second: f64,
    /// When it was last seen, in ms since 1970 UTC
    pub last_unix_ms: u64,
    /// The last verdict on it
    pub verdict: String,
    /// The listener of that verdict
    pub listener: String,
    /// The class of that verdict; null: the listener has no classes
    pub class: Option<String>,
}
