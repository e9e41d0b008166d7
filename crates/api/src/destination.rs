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
    /// Which end remembers a closed connection: off, client-rst or negotiate
    pub mode: String,
    /// TIME-WAIT of the destination's connections, in figures
    pub timewait: TimeWait,
    /// The config keys in effect, beside the fields above (`to`, `to_port`, `timewait_length`)
    #[serde(flatten)]
    pub settings: BTreeMap<String, Value>,
}

/// TIME-WAIT of the connections of a destination or a listener. Counters run since it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct TimeWait {
    /// Records here, which stand for TIME-WAIT; as of the last second
    ///
    /// Where this end is the holder and closes first, the kernel's own TIME-WAIT socket stands, and there is no record.
    pub held: u64,
    /// Connections that would have been in TIME-WAIT here, had the other end not held it by agreement (negotiate)
    pub avoided: u64,
    /// Connections whose TIME-WAIT the other end holds by agreement, whichever end closed first (negotiate)
    pub held_by_peer: u64,
    /// Connections whose TIME-WAIT the server was told to drop by a RST, for a record here (client-rst)
    ///
    /// A server with tcp_rfc1337 = 1 keeps its TIME-WAIT all the same, and one whose RST was lost.
    pub swapped: u64,
    /// Records that gave way to a new connection before their time, because its sequence numbers or timestamps keep old segments out (RFC 1122, RFC 6191)
    pub reused: u64,
    /// SYN/ACKs that weir turned away because a record has their addresses and ports (the kernel sends its SYN again), or because the server chose a holder that accept excludes (connect() failed with ECONNREFUSED)
    ///
    /// At a listener: SYNs that a record turned away, acknowledged in its name as the kernel's TIME-WAIT does.
    pub refused: u64,
    /// Connections whose TIME-WAIT is where it would be without weir: the other end does not negotiate, or there was no free record
    ///
    /// At a listener with holder = "client" also those whose handshake's last ACK was lost and came with data: nothing says then that the client agrees. It holds all the same, and held_by_peer counts them too.
    pub fallback: u64,
    /// Kernel memory of the records here, in bytes
    pub bytes: u64,
}
