//! Shaped interfaces: the discipline, the rate, and what each queue has counted.

use serde::{Deserialize, Serialize};

/// One direction of an interface whose traffic weir shapes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Shape {
    /// The interface's name
    pub dev: String,
    /// `egress`: what the interface sends. `ingress`: what it receives
    #[serde(default)]
    pub direction: String,
    /// What does the work: `tc` (qdiscs of the kernel and a classifier of weir's), `bpf` (a qdisc of weir's)
    pub backend: String,
    /// The queueing discipline
    pub discipline: String,
    /// The rate of this direction at most, bit/s, counted with link headers
    pub rate_bits_per_s: u64,
    /// Its queues, the one that is served first before the others
    pub queues: Vec<ShapeQueue>,
}

/// A queue of a shaped interface.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ShapeQueue {
    /// `high`: control segments. `low`: everything else. `demoted`: control segments over the limit
    pub name: String,
    /// The kernel's qdisc in it
    pub qdisc: String,
    /// Packets that left it
    pub sent_packets: u64,
    /// Bytes of them, with link headers
    pub sent_bytes: u64,
    /// Packets that it dropped
    pub dropped_packets: u64,
    /// Packets that wait now
    pub waiting_packets: u64,
    /// Bytes of them, with link headers
    pub waiting_bytes: u64,
}
