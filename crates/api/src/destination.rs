//! A destination: connections that this machine opens, and their TIME-WAIT.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A destination: its settings, and what has become of the TIME-WAIT of its connections.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Destination {
    /// The destination's name
    pub name: String,
    /// Which end remembers a closed connection: off or client-rst
    pub mode: String,
    /// TIME-WAIT of the destination's connections, in figures
    pub timewait: TimeWait,
    /// The config keys in effect, beside the fields above (`to`, `to_port`, `timewait_length`)
    #[serde(flatten)]
    pub settings: BTreeMap<String, Value>,
}

/// TIME-WAIT of the connections of a destination. Counters run since the destination is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TimeWait {
    /// Records here, which stand for the TIME-WAIT of servers; as of the last second
    pub held: u64,
    /// Connections whose TIME-WAIT the server was told to drop by a RST, for a record here
    ///
    /// A server with tcp_rfc1337 = 1 keeps its TIME-WAIT all the same, and one whose RST was lost.
    pub swapped: u64,
    /// Records that gave way to a new connection before their time, because timestamps keep old segments out (RFC 6191)
    pub reused: u64,
    /// New connections that weir reset because a record has their addresses and ports: connect() failed with ECONNREFUSED
    pub refused: u64,
    /// Connections whose TIME-WAIT stayed at the server, because there was no free record
    pub fallback: u64,
    /// Kernel memory of the records here, in bytes
    pub bytes: u64,
}
