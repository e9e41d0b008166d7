//! What is kept of refused connections, in bounded memory: who was refused and why ([`Memory`]), and which sources are
//! refused most ([`TopSources`]).
//!
//! Both are fed with *sampled* refusals. Each has a weight: how many refusals it stands for.

mod memory;
mod reason;
mod share;
mod source;
mod top;

pub use ipnet::IpNet;
pub use memory::{KEPT_REFUSALS, Kept, MINUTES, Memory, Minute, Network, PER_SOURCE};
pub use reason::{Protocol, Reason, Tally, Who};
pub use share::{Batch, Share};
pub use source::network_of;
pub use top::{TopSource, TopSources};

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::verdict::Verdict;

/// One sampled refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// When, by any clock that does not go back, as time since its beginning.
    pub at: Duration,
    /// The listener's name.
    pub listener: Arc<str>,
    /// The class's name; `None`: the listener has no classes.
    pub class: Option<Arc<str>>,
    /// What was decided.
    pub reason: Reason,
    /// Client.
    pub source: SocketAddr,
    /// Server.
    pub destination: SocketAddr,
    /// What the guard looked at.
    pub seen: Seen,
    /// Observed only: the packet passed.
    pub observe: bool,
}

/// What the guard saw of the server when it refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// Nothing: a rate decides before.
    Nothing,
    /// A listen queue.
    Queue {
        /// Connections that waited for accept().
        length: u32,
        /// Handshakes under way.
        half_open: u32,
        /// The queue's limit.
        limit: u32,
        /// Estimated wait in the queue.
        wait: Duration,
    },
    /// A socket of a QUIC server.
    Quic {
        /// Attempts that were let in and not answered.
        pending: u32,
        /// How long the attempt would have waited for its answer; `None`: not known, or none waits.
        wait: Option<Duration>,
        /// Bytes in the receive buffer.
        buffer: u32,
        /// Bytes that may be there.
        buffer_limit: u32,
    },
}

impl Seen {
    /// The same, where the verdict says whether the guard looked at the queue.
    pub fn at(self, verdict: Verdict) -> Seen {
        match verdict {
            Verdict::SynDroppedRate
            | Verdict::SynResetRate
            | Verdict::SynDroppedHeld
            | Verdict::SynResetHeld => Seen::Nothing,
            _ => self,
        }
    }
}

impl Refusal {
    /// Which listener refused.
    pub fn who(&self) -> Who {
        Who {
            protocol: self.reason.protocol(),
            name: self.listener.clone(),
        }
    }
}
