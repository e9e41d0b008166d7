//! Loads weir's BPF programs and talks to them: the only crate with libbpf and with `unsafe`.
//!
//! Everything works on the network namespace of the calling thread.

use std::net::IpAddr;
use std::time::Duration;

use weir_core::listener::Listener;
use weir_core::verdict::{Counters, Verdict};

/// What went wrong, on which object, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel has not what is needed.
    #[error("{what} is not supported here: {cause}")]
    Unsupported {
        /// The mechanism.
        what: String,
        /// What is missing.
        cause: String,
        /// What to do about it.
        hint: String,
    },
    /// Not enough rights.
    #[error("no right to {what}: {cause}")]
    Denied {
        /// What was tried.
        what: String,
        /// The kernel's answer.
        cause: String,
    },
    /// Any other failure.
    #[error("cannot {what}: {cause}")]
    Failed {
        /// What was tried, with its object.
        what: String,
        /// The kernel's or libbpf's answer.
        cause: String,
    },
}

/// Result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// A guard that is loaded, and attached where [`Guard::attach`] said. Dropping it (or the death of
/// the process) detaches everything: no pins, no residue.
pub struct Guard {
    _todo: (),
}

/// One listening TCP socket of this network namespace, as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenSocket {
    /// Local address; `0.0.0.0` or `::` for any.
    pub ip: IpAddr,
    /// Local port.
    pub port: u16,
    /// An IPv6 socket that takes no IPv4 (IPV6_V6ONLY).
    pub v6only: bool,
    /// An MPTCP listener.
    pub mptcp: bool,
    /// Connections waiting for accept().
    pub queue_length: u32,
    /// The backlog in force.
    pub queue_limit: u32,
    /// Handshakes under way.
    pub half_open: u32,
    /// The guard's estimate of the wait in the queue; `None` while not known.
    pub wait: Option<Duration>,
}

/// One sampled refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Index of the listener in the slice last given to [`Guard::apply`], by name.
    pub listener: String,
    /// What was decided.
    pub verdict: Verdict,
    /// Client.
    pub source: std::net::SocketAddr,
    /// Server.
    pub destination: std::net::SocketAddr,
    /// The queue as the guard saw it.
    pub queue_length: u32,
    /// Handshakes under way.
    pub half_open: u32,
    /// The queue's limit.
    pub queue_limit: u32,
    /// Estimated wait.
    pub wait: Duration,
    /// Observed only: the packet passed.
    pub observe: bool,
}

impl Guard {
    /// Loads the BPF programs. Nothing is attached yet and no listener is guarded.
    pub fn load() -> Result<Guard> {
        Err(Error::Unsupported { what: "guard".into(), cause: "not built yet".into(), hint: String::new() })
    }

    /// Puts a policy in force, atomically for every packet: each packet is judged by the old policy
    /// or by the new one, whole. Listeners keep their counters by name. Fails without any change.
    pub fn apply(&mut self, _listeners: &[Listener]) -> Result<()> {
        unimplemented!()
    }

    /// Attaches to one interface (tcx ingress; with `xdp` also native XDP). Attaching twice is no error.
    /// An interface that has disappeared needs no detach.
    pub fn attach(&mut self, _ifindex: u32, _xdp: bool) -> Result<()> {
        unimplemented!()
    }

    /// Detaches from one interface; no error if not attached.
    pub fn detach(&mut self, _ifindex: u32) {
        unimplemented!()
    }

    /// Counters of the listener with this name.
    pub fn counters(&self, _name: &str) -> Result<Counters> {
        unimplemented!()
    }

    /// All listening TCP sockets of this network namespace.
    pub fn listen_sockets(&self) -> Result<Vec<ListenSocket>> {
        unimplemented!()
    }

    /// Sampled refusals since the last call (bounded by the ring's size; older ones are lost).
    pub fn events(&mut self) -> Result<Vec<Event>> {
        unimplemented!()
    }

    /// Before going: admits every SYN from now on and sends no new cookie, while cookies that are
    /// already out stay valid. Call, wait for about a round-trip time, then drop the guard.
    pub fn drain(&mut self) -> Result<()> {
        unimplemented!()
    }
}

/// One mechanism and whether this machine has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mechanism {
    /// Short name (`tcx`, `no-syn-drop`, `xdp`, …).
    pub name: &'static str,
    /// What weir uses it for.
    pub purpose: &'static str,
    /// Believed lowest kernel version.
    pub min_kernel: &'static str,
    /// `Ok` or why not.
    pub state: std::result::Result<(), String>,
    /// What falls back or fails without it.
    pub without: &'static str,
}

/// Tries each mechanism on this machine. Needs root; attaches nothing.
pub fn probe() -> Vec<Mechanism> {
    Vec::new()
}
