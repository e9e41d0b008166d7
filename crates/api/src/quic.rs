//! A QUIC listener under guard and its sockets.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Class;
use crate::listener::is_zero;

/// A QUIC listener: its counters, its sockets and its settings.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Quic {
    /// The QUIC listener's name
    pub name: String,
    /// The QUIC listener's address and UDP port; `*` is any address
    pub address: String,
    /// Whether refusals are carried out (enforce) or only counted (observe)
    pub mode: String,
    /// Whether weir guards the QUIC listener: false while weir is attached to none of its interfaces
    pub in_force: bool,
    /// Why weir does not guard the QUIC listener, or not as it was asked to; absent while it does
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
    /// Verdicts, each by its name, since the start
    ///
    /// `weir explain` lists all of them; `weir status --all` shows zeros too.
    pub counters: BTreeMap<String, u64>,
    /// Connections that have come since weir looks; null unless mode = observe
    ///
    /// Attempts that were judged: a repeated Initial is none.
    #[serde(default)]
    pub offered: Option<u64>,
    /// Connections of offered that enforcement would have refused, about; null unless mode = observe
    ///
    /// From what came and what the server answered. The verdicts of observe mode are on a wait that nobody keeps short, so they say more.
    #[serde(default)]
    pub would_refuse: Option<u64>,
    /// The sockets of the QUIC listener that connection attempts have come to: several with SO_REUSEPORT or several addresses
    pub sockets: Vec<QuicSocket>,
    /// The containers, units or network namespaces in which the QUIC listener is guarded (`where`); absent without `where`
    ///
    /// Counters are sums over them, those that have ended among them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workloads: Vec<String>,
    /// The classes that name the QUIC listener
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<Class>,
    /// How many classes the QUIC listener has besides those that status lists; absent if status lists all
    #[serde(default, skip_serializing_if = "is_zero")]
    pub classes_left_out: usize,
    /// The config keys in effect, beside the fields above (`interfaces`, `refuse`, `target_wait`, …)
    #[serde(flatten)]
    pub settings: BTreeMap<String, Value>,
}

/// How the server of one UDP socket answers new QUIC connections.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct QuicSocket {
    /// Connection attempts that weir has let in and that the server has not answered
    pub pending: u32,
    /// How long an attempt that comes now waits for the server's answer, in microseconds; null while not known
    ///
    /// The attempts before it, times the measured time between answers.
    pub wait_us: Option<u64>,
    /// The measured time from one answer to the next of the busy server, in microseconds; null while not known
    pub service_us: Option<u64>,
    /// Bytes in the socket's receive buffer when the last attempt came, as the kernel counts them
    pub buffer: u32,
    /// How many bytes the socket's receive buffer may have
    pub buffer_limit: u32,
    /// Whether the wait has stood over target_wait: weir refuses attempts that would wait longer, or would in observe mode
    pub standing: bool,
    /// So many attempts may wait whatever target_wait is: they keep the server busy
    #[serde(default)]
    pub least: u32,
}
