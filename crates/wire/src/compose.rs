//! From a TCP segment to a frame.

use etherparse::PacketBuilder;

use crate::frame::{Segment, flag};

const MAC_OF_SOURCE: [u8; 6] = [2, 0, 0, 0, 0, 1];
const MAC_OF_DESTINATION: [u8; 6] = [2, 0, 0, 0, 0, 2];
const TTL: u8 = 64;

/// An Ethernet frame with a segment whose data are zeros, over IPv4 where both addresses are mapped ones. Lengths and
/// checksums are right.
///
/// # Panics
/// The segment does not fit into an IP packet (64 KiB).
pub fn compose(segment: &Segment) -> Vec<u8> {
    let (source, destination) = (segment.source, segment.destination);
    let ethernet = PacketBuilder::ethernet2(MAC_OF_SOURCE, MAC_OF_DESTINATION);
    let ip = match (
        source.address.to_ipv4_mapped(),
        destination.address.to_ipv4_mapped(),
    ) {
        (Some(from), Some(to)) => ethernet.ipv4(from.octets(), to.octets(), TTL),
        _ => ethernet.ipv6(source.address.octets(), destination.address.octets(), TTL),
    };
    let mut tcp = ip.tcp(source.port, destination.port, segment.seq, segment.window);
    if segment.has(flag::FIN) {
        tcp = tcp.fin();
    }
    if segment.has(flag::SYN) {
        tcp = tcp.syn();
    }
    if segment.has(flag::RST) {
        tcp = tcp.rst();
    }
    if segment.has(flag::ACK) {
        tcp = tcp.ack(segment.ack);
    }
    let payload = vec![0; segment.payload as usize];
    let mut frame = Vec::with_capacity(tcp.size(payload.len()));
    tcp.write(&mut frame, &payload)
        .expect("a vector takes any frame that fits into an IP packet");
    frame
}
