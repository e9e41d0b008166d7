//! Settings that weir suggests, and the figures that they come from.

use serde::{Deserialize, Serialize};

/// What weir suggests for each listener, from what the listener has gone through while weir looked.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Suggestions {
    /// The listeners under guard
    pub listeners: Vec<Suggestion>,
    /// The QUIC listeners under guard; absent if there is none
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quic: Vec<QuicSuggestion>,
}

/// What weir suggests for a listener.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Suggestion {
    /// The listener's name
    pub listener: String,
    /// The listener's address and port; `*` is any address
    pub address: String,
    /// For how long weir has looked at the listener, in s
    ///
    /// It begins anew when weir restarts, and when a reload changes the listener.
    pub looked_s: u64,
    /// Why weir suggests nothing yet, in a sentence; absent if it does
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
    /// For about how much longer weir is to look, in s; absent if it suggests, or while no connection has come
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing_s: Option<u64>,
    /// The figures that the suggestions come from
    pub profile: Profile,
    /// The keys of `[[listener]]` or `[[quic]]` that weir has looked into
    #[serde(default)]
    pub keys: Vec<SuggestedKey>,
    /// The backlog that the server should have, each socket of several; absent if the present one is enough
    ///
    /// It is a setting of the server, the argument of its listen(), and no key of weir.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backlog: Option<u32>,
    /// What else follows from the figures, a sentence each: the backlog, SYN floods; of QUIC the receive buffer
    #[serde(default)]
    pub notes: Vec<String>,
    /// What weir cannot know, a sentence each
    #[serde(default)]
    pub unknown: Vec<String>,
    /// The table of the config file with the suggested values, and the reasons as comments; empty while something is missing
    #[serde(default)]
    pub toml: String,
}

/// What weir suggests for a QUIC listener.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct QuicSuggestion {
    /// The QUIC listener's name
    pub listener: String,
    /// The QUIC listener's address and UDP port; `*` is any address
    pub address: String,
    /// For how long weir has looked at the listener, in s
    ///
    /// It begins anew when weir restarts, and when a reload changes the QUIC listener.
    pub looked_s: u64,
    /// Why weir suggests nothing yet, in a sentence; absent if it does
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
    /// For about how much longer weir is to look, in s; absent if it suggests, or while no connection has come
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing_s: Option<u64>,
    /// The figures that the suggestions come from
    pub profile: QuicProfile,
    /// The keys of `[[listener]]` or `[[quic]]` that weir has looked into
    #[serde(default)]
    pub keys: Vec<SuggestedKey>,
    /// The receive buffer that the server should ask for, in bytes; absent if the present one is enough
    ///
    /// It is a setting of the server (SO_RCVBUF), and no key of weir. Linux takes twice as much, and no more than
    /// net.core.rmem_max allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receive_buffer: Option<u32>,
    /// What else follows from the figures, a sentence each: the backlog, SYN floods; of QUIC the receive buffer; of QUIC the receive buffer
    #[serde(default)]
    pub notes: Vec<String>,
    /// What weir cannot know, a sentence each
    #[serde(default)]
    pub unknown: Vec<String>,
    /// The table of the config file with the suggested values, and the reasons as comments; empty while something is missing
    #[serde(default)]
    pub toml: String,
    /// A `[[listener]]` for the TCP port, with the reason as a comment; empty if one guards it
    #[serde(default)]
    pub tcp_toml: String,
}

/// What a QUIC listener has gone through.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct QuicProfile {
    /// Whether refusals were carried out (enforce) or only counted (observe)
    pub mode: String,
    /// Seconds that weir has looked at
    pub seconds: u64,
    /// Attempts to connect that came
    pub attempts: u64,
    /// Attempts that the server has answered
    pub answered: u64,
    /// Attempts that were refused; in observe mode, that enforcement would have refused, about
    pub refused: u64,
    /// Attempts whose verdict was that the receive buffer is fuller than room; in observe mode more than enforcement would have refused
    pub refused_room: u64,
    /// Of refused_room, those that came in bursts: while no wait stood over target_wait
    pub refused_in_bursts: u64,
    /// Attempts whose verdict was that the wait is over target_wait; in observe mode more than enforcement would have refused
    pub refused_wait: u64,
    /// Attempts in a second: in the median
    pub rate_median: u64,
    /// Attempts in a second: in the busiest one
    pub rate_peak: u64,
    /// Sockets to which attempts came
    pub sockets: usize,
    /// How many bytes the smallest of their receive buffers takes, as the kernel counts them; absent while no attempt has come
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffer_limit: Option<u32>,
    /// Seconds in which a receive buffer was fuller than room
    pub full_seconds: u64,
    /// The largest share of a receive buffer that was seen taken, 0 to 1
    pub peak_buffer: f64,
    /// The most attempts that were seen let in and not answered
    pub peak_pending: u32,
    /// The longest wait for an answer of a second, in microseconds: in the median
    pub wait_median_us: u64,
    /// The longest wait of a second, in microseconds: in 99 of 100 seconds no longer than this
    pub wait_p99_us: u64,
    /// The longest wait for an answer that was seen, in microseconds
    pub peak_wait_us: u64,
    /// Attempts that a socket's server answers per second while some wait, in the median; absent if none was seen to wait
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answers_per_second: Option<f64>,
    /// About which share of the attempts would be refused with longer values of target_wait
    #[serde(default)]
    pub over: Vec<ShareOver>,
}

/// A key with the value that weir suggests.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SuggestedKey {
    /// The key
    pub key: String,
    /// The value in force, as in the config file
    pub now: String,
    /// The suggested value, as in the config file; the one in force if weir would not change it
    pub value: String,
    /// Why, in figures
    pub reason: String,
}

/// What a listener has gone through.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Profile {
    /// Whether refusals were carried out (enforce) or only counted (observe)
    pub mode: String,
    /// Seconds that weir has looked at
    pub seconds: u64,
    /// Connections that came, each once
    pub connections: u64,
    /// Connections that were refused; in observe mode, that enforcement would have refused, about
    pub refused: u64,
    /// Of the refused ones, those for which the listen queue had no place
    pub refused_full: u64,
    /// Of the refused ones, those for which the wait was over target_wait
    pub refused_wait: u64,
    /// SYNs that came while half-open connections held most places, as in a SYN flood
    pub flood: u64,
    /// Connections in a second: in the median
    pub rate_median: u64,
    /// Connections in a second: in the busiest one
    pub rate_peak: u64,
    /// The limit of the listen queue; 0 while nothing has listened
    pub queue_limit: u32,
    /// Seconds in which the listen queue was full, or had no place for a connection
    pub full_seconds: u64,
    /// The longest listen queue of a second: in the median
    pub queue_length_median: u64,
    /// The longest listen queue that was seen
    pub peak_queue_length: u32,
    /// The most half-open connections that were seen
    pub peak_half_open: u32,
    /// The longest wait for accept() of a second, in microseconds: in the median
    pub wait_median_us: u64,
    /// The longest wait of a second, in microseconds: in 99 of 100 seconds no longer than this
    pub wait_p99_us: u64,
    /// The longest wait for accept() that was seen, in microseconds
    pub peak_wait_us: u64,
    /// Connections that the server accepts per second while some wait, in the median; absent if none was seen to wait
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepts_per_second: Option<f64>,
    /// About which share of the connections would be refused with other values of target_wait
    #[serde(default)]
    pub over: Vec<ShareOver>,
    /// The sources that were refused most in some minute, the largest first
    #[serde(default)]
    pub sources: Vec<RefusedSource>,
}

/// How many connections a target_wait would refuse.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ShareOver {
    /// The target, in microseconds
    pub target_wait_us: u64,
    /// About this share of the connections would be refused, 0 to 1
    pub share: f64,
}

/// A source that was refused much.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RefusedSource {
    /// The address, or the network as a prefix: /24 of IPv4, /56 of IPv6
    pub source: String,
    /// The most refused connections per second, averaged over about a minute
    pub per_second: f64,
    /// Its share of all refused connections at that time, 0 to 1
    pub share: f64,
}
