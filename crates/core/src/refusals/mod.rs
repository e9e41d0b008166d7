//! What is kept of refused connections, in bounded memory: who was refused and why ([`Memory`]), and which sources are
//! refused most ([`TopSources`]).
//!
//! Both are fed with *sampled* refusals. Each has a weight: how many refusals it stands for.

mod memory;
mod share;
mod source;
mod top;

pub use ipnet::IpNet;
pub use memory::{KEPT_REFUSALS, Kept, MINUTES, Memory, Minute, Network, PER_SOURCE};
pub use share::{Batch, Share};
pub use source::network_of;
pub use top::{TopSource, TopSources};

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::verdict::{Kind, Verdict};

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
    pub verdict: Verdict,
    /// Client.
    pub source: SocketAddr,
    /// Server.
    pub destination: SocketAddr,
    /// Connections that waited for accept().
    pub queue_length: u32,
    /// Handshakes under way.
    pub half_open: u32,
    /// The queue's limit.
    pub queue_limit: u32,
    /// Estimated wait in the queue.
    pub wait: Duration,
    /// Observed only: the packet passed.
    pub observe: bool,
}

impl Refusal {
    /// Whether the guard looked at the queue; a rate decides before that.
    pub fn knows_queue(&self) -> bool {
        !matches!(
            self.verdict,
            Verdict::SynDroppedRate
                | Verdict::SynResetRate
                | Verdict::SynDroppedHeld
                | Verdict::SynResetHeld
        )
    }
}

/// Whether a packet with this verdict turned a client away. weir leaves some SYNs to a kernel that drops them, and samples
/// none of these.
pub fn turns_away(verdict: Verdict) -> bool {
    let kind = verdict.info().kind;
    kind == Kind::Refuse || verdict == Verdict::SynLeft
}
