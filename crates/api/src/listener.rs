//! A listener under guard and its sockets.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Class, Residence, TimeWait, Workload};

/// A listener: its queue, its counters and its settings.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Listener {
    /// The listener's name
    pub name: String,
    /// The listener's address and port; `*` is any address
    pub address: String,
    /// Whether refusals are carried out (enforce) or only counted (observe)
    pub mode: String,
    /// What the listener does with a SYN, in words: establish, reject_syn, admit and its target_wait
    pub policy: String,
    /// Whether weir guards the listener: false while weir is attached to none of its interfaces, or does not see the SYNs of connections that come
    pub in_force: bool,
    /// Why weir does not guard the listener; absent while it does
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_in_force_because: Option<String>,
    /// Whether a socket listens at its address and port at the moment
    pub listening: bool,
    /// Connections that wait for accept(), over all sockets of the listener
    ///
    /// The kernel takes one more than queue_limit: 5/4 is a full queue where the kernel decides (establish = default or abort, mode = observe). reserv and no-syn-drop stop at 4/4.
    pub queue_length: u32,
    /// Places in the listen queues, over all sockets of the listener
    pub queue_limit: u32,
    /// Handshakes under way: the kernel has answered their SYN, and their final ACK has not come yet
    ///
    /// With reserv each of them holds a place. Clients that hold a cookie hold none and are not counted.
    pub half_open: u32,
    /// What orders the waiting connections: parking, exec or fifo
    ///
    /// parking: weir holds them before the server's own queue. exec: a process beside the server, started by `weir exec`, decides at each accept(). fifo: the kernel's order. queue_way_because says why it is not the configured one.
    #[serde(default)]
    pub queue_way: String,
    /// Why the order of waiting connections is not that of queue = priority
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_way_because: Option<String>,
    /// Connections that wait before the server's own queue at the moment (queue = priority)
    ///
    /// They are a part of queue_length. Those of the highest class go straight to the server's own queue.
    #[serde(default)]
    pub parked: u32,
    /// Parked connections that weir has released to the server (queue = priority)
    #[serde(default)]
    pub released: u64,
    /// Connections that the server got before one that had come earlier: what the order by priority has changed
    ///
    /// 0 of many: classes of higher priority never waited behind lower ones.
    #[serde(default)]
    pub overtook: u64,
    /// The estimated wait for accept(), in microseconds; null while not known
    ///
    /// The longest of the listener's sockets: the connections before a new one, times the measured time between accepts.
    pub wait_us: Option<u64>,
    /// The measured time between two accepts of the busy server, in microseconds; null while not known
    ///
    /// The longest of the listener's sockets. A pool of four workers that take 2 s each accepts every 500 000.
    #[serde(default)]
    pub service_us: Option<u64>,
    /// Connections that weir leaves waiting where a wait of target_wait cannot be kept; null where it can
    ///
    /// One service takes longer there than target_wait. With fewer the server would be idle from time to time.
    #[serde(default)]
    pub kept_queue_length: Option<u32>,
    /// The wait of so many connections, in microseconds; null where target_wait can be kept
    #[serde(default)]
    pub kept_wait_us: Option<u64>,
    /// The wait that is kept at the listener, in microseconds; null where no wait decides
    ///
    /// target_wait, or kept_wait_us where that is longer. Beside a controller with a target_wait, the controller's.
    #[serde(default)]
    pub target_in_force_us: Option<u64>,
    /// Connections that have come since weir looks, each counted once; null unless mode = observe
    ///
    /// A client whose SYN the kernel drops tries again. The counters have each try, and `syn_retried` how many of them are repeats.
    #[serde(default)]
    pub offered: Option<u64>,
    /// Connections of offered that enforcement would have refused, about; null unless mode = observe
    ///
    /// From what came and what the server accepted. The verdicts of observe mode are on a queue that nobody keeps short, so they say more. Those for residence, and of classes that the controller holds, are not among them: their counters say how many.
    #[serde(default)]
    pub would_refuse: Option<u64>,
    /// The policy in force, where the configured one is not possible; null if there is none
    ///
    /// fallback_because says why.
    pub fallback: Option<String>,
    /// Why the policy in force is not the configured one, and what would change that
    pub fallback_because: Option<String>,
    /// Which end remembers a closed connection: off or negotiate
    #[serde(default)]
    pub timewait_mode: String,
    /// TIME-WAIT of the listener's connections, in figures
    #[serde(default)]
    pub timewait: TimeWait,
    /// How long requests may stay in the server before weir refuses more; observe: it only measures that; off: not even that
    #[serde(default)]
    pub residence_mode: String,
    /// Requests that the server has not answered, in figures; null where they are not watched
    #[serde(default)]
    pub residence: Option<Residence>,
    /// Verdicts or events, each by its name, since the start
    ///
    /// `weir explain` lists all of them; `weir status --all` shows zeros too.
    pub counters: BTreeMap<String, u64>,
    /// The classes of a listener; of the only listener all classes, `other` last
    ///
    /// Where there are several listeners, a class without `listener` is of all of them, and so are its counters: such classes are in
    /// `classes` of the whole report. `weir class list` shows their settings too.
    #[serde(default)]
    pub classes: Vec<Class>,
    /// How many classes the listener has besides those that status lists; absent if status lists all
    ///
    /// Status lists 1000 of a listener and its table 40; `weir class list` has all.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub classes_left_out: usize,
    /// The listening sockets of the listener: several with SO_REUSEPORT or several addresses
    pub sockets: Vec<Socket>,
    /// The containers, units or network namespaces in which the listener is guarded (`where`); absent without `where`
    ///
    /// The other fields of the listener are sums over them, and its wait is their longest. Counters of those that have ended stay in the sum.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workloads: Vec<Workload>,
    /// The config keys in effect, beside the fields above (`interfaces`, `establish`, …)
    #[serde(flatten)]
    pub settings: BTreeMap<String, Value>,
}

/// A listening socket.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Socket {
    /// The socket's local address and port
    pub address: String,
    /// Connections that wait for accept()
    pub queue_length: u32,
    /// The socket's backlog in force
    pub queue_limit: u32,
    /// Handshakes under way
    pub half_open: u32,
    /// The estimated wait for accept(), in microseconds; null while not known
    pub wait_us: Option<u64>,
    /// Whether the socket listens with MPTCP: cookies and parking do not work there
    ///
    /// `weir exec -- SERVER` starts a server without MPTCP.
    #[serde(default)]
    pub mptcp: bool,
}

pub(crate) fn is_zero(number: &usize) -> bool {
    *number == 0
}

pub(crate) fn is_false(flag: &bool) -> bool {
    !flag
}
