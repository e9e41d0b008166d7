//! What the operator changes of the disciplines that `weir shape` puts on a device. [`Setup`](super::Setup) computes it for a
//! link.

use super::limit::LimitParams;

/// Of CoDel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CodelParams {
    /// Delay that may stand, ns; default 5 ms. Not below the time of one full packet on the link.
    pub target_ns: u64,
    /// How long the delay must be over the target, ns; default 100 ms, a usual round-trip time.
    pub interval_ns: u64,
    /// With at most so many bytes behind a packet it is never dropped: the size of one full packet.
    pub mtu_bytes: u32,
    /// Mark ECN-capable packets instead of dropping them.
    pub ecn: bool,
}

/// Of flow queues, as FQ-CoDel has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowParams {
    /// Flow queues; 1..=65536, default 1024. With `in_sets` a multiple of 8.
    pub flows: u32,
    /// Whether a flow has any queue of a set, and not always the same one.
    pub in_sets: bool,
    /// Bytes that a queue may send in its turn; default one full packet.
    pub quantum_bytes: u32,
    /// Bytes that a new queue may send before it is old; default the quantum, as RFC 8290 has it.
    pub fresh_bytes: u32,
    /// With more packets than that in all queues together they are crowded; [`u32::MAX`], the default, is never.
    pub crowd_packets: u32,
    /// Bytes that a queue may send before it is old that is new while they are crowded.
    pub crowd_bytes: u32,
    /// Packets in all queues together; default 10240.
    pub limit_packets: u32,
    /// Of the CoDel in each queue.
    pub codel: CodelParams,
    /// Whether other flows' packets count as behind a packet when CoDel asks if it is the last one, as in the kernel's
    /// fq_codel. If not, a flow's last packet is never dropped: its loss could only be mended by a time-out.
    pub others_are_behind: bool,
}

/// Of SPA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpaParams {
    /// FIN is high as well.
    pub fin: bool,
    /// CoDel of the high queue and of the demoted one.
    pub high: CodelParams,
    /// Room of the high queue, packets.
    pub limit_packets: u32,
    /// What may overtake data; `None`: every control segment, as the paper has it.
    pub limit: Option<LimitParams>,
    /// Room of the demoted queue, packets.
    pub demoted_packets: u32,
    /// While both wait, the demoted queue sends one byte for each 2^`demoted_log` bytes of data; 0..=10. A power of two,
    /// since a division costs as much as the rest of the decision.
    pub demoted_log: u32,
}

/// Of PIE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PieParams {
    /// Delay that the controller keeps, ns; QDELAY_REF, 15 ms.
    pub target_ns: u64,
    /// Time between its rounds, ns; T_UPDATE, 15 ms.
    pub update_ns: u64,
    /// Bursts of this length pass, ns; MAX_BURST, 150 ms.
    pub burst_ns: u64,
    /// Weight of the distance from the target, in 1/16 per second; 2.
    pub alpha_16: u64,
    /// Weight of the change, in 1/16 per second; 20.
    pub beta_16: u64,
    /// Size of one full packet, bytes. With at most two waiting nothing is dropped.
    pub mtu_bytes: u32,
    /// Room, packets.
    pub limit_packets: u32,
    /// Mark ECN-capable packets while the probability is at most 10 %.
    pub ecn: bool,
    /// As in the kernel, and not in RFC 8033, the probability rises by 2 % more in each round over 250 ms of delay, and
    /// may be above 1: it then takes as much longer to fall.
    pub is_kernels: bool,
}

/// Of SFQ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SfqParams {
    /// Packets in all flows together; default 127.
    pub limit_packets: u32,
    /// Bytes that a flow may send in its turn.
    pub quantum_bytes: u32,
}
