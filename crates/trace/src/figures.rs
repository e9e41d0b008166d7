//! The figures of a direction, as Tables I and II of BHD18 have them.

use serde::Serialize;

use crate::sums::{Delays, Sums};

/// Which direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Name {
    /// From the ends that open connections: their SYNs go here.
    ToServer,
    /// From the ends that answer: their SYN/ACKs go here.
    ToClient,
}

/// What one direction of a capture shows. Only connections count of which a SYN or SYN/ACK was seen in this direction. A
/// figure is `None` where there is nothing to divide by.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figures {
    /// Which direction.
    pub name: Name,
    /// TCP packets of the connections.
    pub packets: u64,
    /// Connections.
    pub connections: u64,
    /// Retransmissions, of all packets.
    pub packet_rtx_probability: Option<f64>,
    /// SYNs and SYN/ACKs, of all retransmissions.
    pub syn_share_of_rtx: Option<f64>,
    /// Retransmissions, of all SYNs and SYN/ACKs.
    pub syn_rtx_probability: Option<f64>,
    /// Mean time from a segment to its retransmission, ms, over all retransmissions.
    pub mean_rtx_delay_ms: Option<f64>,
    /// The same for connections whose SYN or SYN/ACK was sent again.
    pub mean_rtx_delay_with_syn_loss_ms: Option<f64>,
    /// The same for the other connections.
    pub mean_rtx_delay_without_syn_loss_ms: Option<f64>,
    /// Connections that do not count, because something was sent again after more than 45 s.
    pub filtered_over_45s: u64,
    /// Hosts whose connections do not count, because they show the signs of a SYN flood.
    pub filtered_syn_flood_hosts: u64,
    /// Connections of these hosts.
    pub filtered_syn_flood_connections: u64,
    /// Packets with data, SYN or FIN: what can be sent again.
    pub segments: u64,
    /// Segments that were sent again.
    pub retransmissions: u64,
    /// Retransmissions, of all segments. Packets that only acknowledge are never sent again, and are not in here.
    pub segment_rtx_probability: Option<f64>,
    /// SYNs and SYN/ACKs.
    pub syns: u64,
    /// SYNs and SYN/ACKs that were sent again.
    pub syn_retransmissions: u64,
    /// Connections whose SYN or SYN/ACK was sent again.
    pub connections_with_syn_rtx: u64,
    /// Time in retransmissions of these connections, of that of all.
    pub syn_loss_share_of_rtx_delay: Option<f64>,
    /// Retransmissions whose first transmission was not seen, or forgotten for want of memory: not in any mean.
    pub rtx_of_unknown_delay: u64,
}

const NS_PER_MS: f64 = 1e6;

impl Figures {
    pub(crate) fn of(name: Name, sums: &Sums) -> Figures {
        let all = sums.with_syn_loss.plus(sums.without_syn_loss);
        Figures {
            name,
            packets: sums.packets,
            connections: sums.connections,
            packet_rtx_probability: ratio(sums.rtx, sums.packets),
            syn_share_of_rtx: ratio(sums.syn_rtx, sums.rtx),
            syn_rtx_probability: ratio(sums.syn_rtx, sums.syns),
            mean_rtx_delay_ms: mean_ms(all),
            mean_rtx_delay_with_syn_loss_ms: mean_ms(sums.with_syn_loss),
            mean_rtx_delay_without_syn_loss_ms: mean_ms(sums.without_syn_loss),
            filtered_over_45s: sums.filtered_over_45s,
            filtered_syn_flood_hosts: sums.flood_hosts.len() as u64,
            filtered_syn_flood_connections: sums.filtered_flood_connections,
            segments: sums.segments,
            retransmissions: sums.rtx,
            segment_rtx_probability: ratio(sums.rtx, sums.segments),
            syns: sums.syns,
            syn_retransmissions: sums.syn_rtx,
            connections_with_syn_rtx: sums.connections_with_syn_rtx,
            syn_loss_share_of_rtx_delay: (all.sum_ns > 0)
                .then(|| sums.with_syn_loss.sum_ns as f64 / all.sum_ns as f64),
            rtx_of_unknown_delay: sums.untimed,
        }
    }
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

fn mean_ms(delays: Delays) -> Option<f64> {
    (delays.count > 0).then(|| delays.sum_ns as f64 / delays.count as f64 / NS_PER_MS)
}
