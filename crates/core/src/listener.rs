//! A listener under guard and its policy. The values of the enumerations are those of bpf/abi/guard.h.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::abi;
use crate::timewait::{Holder, ListenerTimeWait};
use crate::workload::Where;

/// How connections are established when the listen queue is short of room (SB06, Table III).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Establish {
    /// As the kernel does it: SYN and final ACK are dropped silently when a queue is full.
    Default = abi::ESTABLISH_DEFAULT,
    /// A connection that finds the queue full at its final ACK is reset.
    Abort = abi::ESTABLISH_ABORT,
    /// A SYN is answered only if a place in the listen queue is reserved for it.
    Reserv = abi::ESTABLISH_RESERV,
    /// Every SYN is answered, with a cookie where there is no room; decided at the final ACK.
    NoSynDrop = abi::ESTABLISH_NO_SYN_DROP,
}

/// What a SYN that cannot be served gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum RejectSyn {
    /// Nothing; the client retransmits after 1 s, and again and again
    Drop = abi::REJECT_DROP,
    /// A RST; `connect()` fails at once with ECONNREFUSED.
    Rst = abi::REJECT_RST,
}

/// When the listen queue counts as having no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Admit {
    /// When all its places are taken or reserved (the papers' rule).
    Queue = abi::ADMIT_QUEUE,
    /// Also when its standing wait is over `target_wait`; short bursts may fill it.
    Wait = abi::ADMIT_WAIT,
}

/// What a client's FIN without data does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum HalfClose {
    /// Half-closes the connection, as TCP says.
    Keep = abi::HALF_CLOSE_KEEP,
    /// Resets the connection (rst-fin of SB06 Section IV).
    Reset = abi::HALF_CLOSE_RESET,
}

/// Which waiting connection the server accepts next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QueueOrder {
    /// The one that has waited longest.
    Fifo,
    /// That of the class with the highest priority (VTFM01).
    Priority,
}

/// Whether verdicts are carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Verdicts are carried out.
    Enforce,
    /// Verdicts are counted; no packet is touched.
    Observe,
}

/// What weir does about requests that a server has accepted and has not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ResidenceMode {
    /// Nothing; nothing is loaded.
    Off,
    /// It counts them, and how long they stay ([`crate::residence`]).
    Observe,
    /// It refuses SYNs while requests that are let in would stay longer than this. 10 ms..=60 s.
    Within(Duration),
}

/// Where the guard first looks at packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Front {
    /// At tc ingress, after receive steering (works on every device).
    Tc,
    /// Refusals also at XDP in the driver, before receive steering; the rest at tc.
    Xdp,
}

/// The addresses and the port that a listener stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ListenAddress {
    /// One address; `None` is every address, IPv4 and IPv6. `0.0.0.0` is every IPv4 address and
    /// `::` every IPv6 address and, like a dual-stack socket, every IPv4 address that no other
    /// listener names.
    pub ip: Option<IpAddr>,
    /// TCP port, 1..=65535.
    pub port: u16,
}

impl ListenAddress {
    /// Whether a packet could belong to both, with nothing that says to which.
    pub fn conflicts(&self, other: &ListenAddress) -> bool {
        let any = |ip: Option<IpAddr>| ip.is_none_or(|ip| ip.is_unspecified());
        let one_is_all = self.ip.is_none() || other.ip.is_none();
        self.port == other.port
            && (self.ip == other.ip || one_is_all && any(self.ip) && any(other.ip))
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ip {
            None => write!(f, "*:{}", self.port),
            Some(IpAddr::V4(ip)) => write!(f, "{ip}:{}", self.port),
            Some(IpAddr::V6(ip)) => write!(f, "[{ip}]:{}", self.port),
        }
    }
}

/// One listener under guard: where it is and its whole policy.
#[derive(Debug, Clone, PartialEq)]
pub struct Listener {
    /// Its name in status and metrics; unique.
    pub name: String,
    /// Where it listens.
    pub address: ListenAddress,
    /// In which network namespaces it is guarded, and for whose sockets.
    pub location: Where,
    /// Interfaces on which it is guarded; empty: all. At most [`MAX_INTERFACES`].
    pub interfaces: Vec<String>,
    /// How connections are established.
    pub establish: Establish,
    /// What a SYN that cannot be served gets.
    pub reject_syn: RejectSyn,
    /// Share of the backlog that `reserv` may promise beyond it, 0.0..=16.0.
    pub overbook: f64,
    /// When the queue counts as having no room.
    pub admit: Admit,
    /// Wait in the listen queue above which `admit = wait` refuses once it stands. 1 ms..=10 s.
    pub target_wait: Duration,
    /// How long the wait must stand over the target before it refuses. 1 ms..=10 s.
    pub interval: Duration,
    /// Waiting connections from which on `admit = wait` refuses; 0: the wait alone decides. No key sets it:
    /// it is of a listener beside a controller (`core::controller`).
    pub least_length: u16,
    /// Which waiting connection the server accepts next.
    pub queue: QueueOrder,
    /// How long a connection waits until it counts as of the next higher priority; `None`: never
    /// does. 1 ms..=1 h. Only with [`QueueOrder::Priority`].
    pub ageing: Option<Duration>,
    /// What is done about requests that the server has and has not answered.
    pub residence: ResidenceMode,
    /// The port of the server whose requests they are, behind this listener; `None`: its own. 1..=65535.
    pub residence_of: Option<u16>,
    /// Whether SYNs of steady sources (`bpf/lib/steady.h`) are let in where others are refused.
    pub health_checks: bool,
    /// What a client's FIN without data does.
    pub half_close: HalfClose,
    /// Which end remembers a closed connection.
    pub timewait: ListenerTimeWait,
    /// Which end is to, with [`ListenerTimeWait::Negotiate`].
    pub holder: Holder,
    /// Applications may choose for single sockets.
    pub per_socket: bool,
    /// Put a short text that says why into each RST (RFC 1122, 4.2.2.12).
    pub reason: bool,
    /// Whether verdicts are carried out.
    pub mode: Mode,
    /// Where packets are first looked at.
    pub front: Front,
}

/// Interfaces that one listener can name.
pub const MAX_INTERFACES: usize = abi::MAX_INTERFACES as usize;
/// Listeners that can be guarded in one network namespace.
pub const MAX_LISTENERS: usize = abi::MAX_LISTENERS as usize;
/// Default of [`Listener::target_wait`].
pub const DEFAULT_TARGET_WAIT: Duration = Duration::from_millis(20);
/// Default of [`Listener::interval`]: twice CoDel's (RFC 8289, Section 4.2). A server works off a burst
/// of four times its rate for 50 ms in about 270 ms; 100 ms still refused in such bursts, measured.
pub const DEFAULT_INTERVAL: Duration = Duration::from_millis(200);

/// Default of [`Listener::ageing`]: no class starves, and a client of the lowest is served before it
/// gives up.
pub const DEFAULT_AGEING: Duration = Duration::from_secs(2);

impl Listener {
    /// A listener with the default policy of `weir protect`: reserv, RST, refusal by standing wait.
    pub fn new(name: impl Into<String>, address: ListenAddress) -> Listener {
        Listener {
            name: name.into(),
            address,
            location: Where::Here,
            interfaces: Vec::new(),
            establish: Establish::Reserv,
            reject_syn: RejectSyn::Rst,
            overbook: 0.0,
            admit: Admit::Wait,
            target_wait: DEFAULT_TARGET_WAIT,
            interval: DEFAULT_INTERVAL,
            least_length: 0,
            queue: QueueOrder::Fifo,
            ageing: Some(DEFAULT_AGEING),
            residence: ResidenceMode::Off,
            residence_of: None,
            health_checks: true,
            half_close: HalfClose::Keep,
            timewait: ListenerTimeWait::Off,
            holder: Holder::Client,
            per_socket: false,
            reason: false,
            mode: Mode::Enforce,
            front: Front::Tc,
        }
    }

    /// The port whose requests [`Listener::residence`] is about.
    pub fn residence_port(&self) -> u16 {
        self.residence_of.unwrap_or(self.address.port)
    }

    /// Whether the holder of its connections' TIME-WAIT is negotiated.
    pub fn negotiates(&self) -> bool {
        self.timewait == ListenerTimeWait::Negotiate && self.mode == Mode::Enforce
    }

    /// Whether applications may choose for single sockets.
    pub fn lets_sockets_choose(&self) -> bool {
        self.per_socket && self.mode == Mode::Enforce
    }

    /// Places promised beyond the backlog, in 1/1024 of it: only `reserv` overbooks.
    pub fn overbook_1024(&self) -> u16 {
        match self.establish {
            Establish::Reserv => (self.overbook * 1024.0).round() as u16,
            _ => 0,
        }
    }
}
