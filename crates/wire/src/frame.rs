//! From a frame to its TCP segment.

use std::net::{IpAddr, Ipv6Addr};

use etherparse::{IpNumber, Ipv6ExtensionSlice, LaxIpSlice};

use crate::link::Link;

/// TCP flags.
pub mod flag {
    /// No more data from the sender.
    pub const FIN: u8 = 0x01;
    /// Synchronise sequence numbers.
    pub const SYN: u8 = 0x02;
    /// Reset.
    pub const RST: u8 = 0x04;
    /// The acknowledgement field counts.
    pub const ACK: u8 = 0x10;
}

/// One end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// An IPv4 address is mapped (`::ffff:192.0.2.1`).
    pub address: Ipv6Addr,
    /// TCP port.
    pub port: u16,
}

/// What is read of a TCP segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Its sender.
    pub source: Endpoint,
    /// Its receiver.
    pub destination: Endpoint,
    /// Sequence number of the SYN, or else of the first byte of data.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// TCP flags ([`flag`]).
    pub flags: u8,
    /// How many bytes more the sender takes, as the header has it: the scale is not applied. 65535 where the snap length
    /// has cut it.
    pub window: u16,
    /// Bytes of data that were sent, by the IP header: the capture may have fewer.
    pub payload: u32,
}

impl Segment {
    /// Whether all these flags are set.
    pub fn has(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }

    /// Sequence numbers that it takes up: data, SYN and FIN.
    pub fn sequence_len(&self) -> u32 {
        let flags = u32::from(self.has(flag::SYN)) + u32::from(self.has(flag::FIN));
        self.payload.saturating_add(flags)
    }
}

/// What a frame carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame {
    /// A TCP segment.
    Tcp(Segment),
    /// Something else than TCP over IP.
    Other,
    /// A later fragment of an IP packet, without a TCP header. (The first one counts as [`Frame::Tcp`].)
    Fragment,
    /// The snap length has cut the frame before the TCP flags.
    Cut,
    /// Lengths that contradict each other.
    Malformed,
    /// A TCP segment that the capture had before: from another interface, or from a mirror port.
    Copy,
    /// From a link of a kind that weir does not read ([`Link`]).
    UnknownLink,
    /// No packet, but a block of pcapng of a kind that weir does not know.
    UnknownBlock,
}

/// What a TCP segment has beside its [`Segment`], to know it again.
pub(crate) struct Header<'a> {
    /// Identification of its IP packet; 0 where it has none.
    pub identification: u16,
    /// Hops that its IP packet has left.
    pub hops: u8,
    /// Its TCP header with the options, as much as was captured.
    pub tcp: &'a [u8],
}

/// From the start of a TCP header to behind its flags.
const TCP_NEEDED_BYTES: usize = 14;
const TCP_HEADER_BYTES_MIN: usize = 20;

/// Reads a frame. `wire_len` is its length on the link in bytes: `frame` may have less of it. Checksums are not
/// verified: where the network card computes them, captures have wrong ones.
pub fn parse(link: Link, frame: &[u8], wire_len: u32) -> Frame {
    match read(link, frame, wire_len) {
        Ok((segment, _)) => Frame::Tcp(segment),
        Err(other) => other,
    }
}

/// The TCP segment of a frame, or what the frame is instead.
pub(crate) fn read(
    link: Link,
    frame: &[u8],
    wire_len: u32,
) -> Result<(Segment, Header<'_>), Frame> {
    let is_cut = frame.len() < wire_len as usize;
    let cut_or = |other| if is_cut { Frame::Cut } else { other };
    let Some(at) = link.ip_offset(frame) else {
        return Err(Frame::Other);
    };
    let Some(packet) = frame.get(at..).filter(|packet| !packet.is_empty()) else {
        return Err(cut_or(Frame::Malformed));
    };
    let Ok((ip, stopped)) = LaxIpSlice::from_slice(packet) else {
        // Neither 4 nor 6: what a loopback or raw capture has besides IP.
        return Err(match packet[0] >> 4 {
            4 | 6 => cut_or(Frame::Malformed),
            _ => Frame::Other,
        });
    };
    if stopped.is_some() {
        return Err(cut_or(Frame::Malformed));
    }
    if ip.payload_ip_number() != IpNumber::TCP {
        return Err(Frame::Other);
    }
    if fragment_offset(&ip) != 0 {
        return Err(Frame::Fragment);
    }
    let tcp = ip.payload().payload;
    let Some(header) = tcp.get(..TCP_NEEDED_BYTES) else {
        return Err(cut_or(Frame::Malformed));
    };
    let ip_headers = tcp.as_ptr() as usize - packet.as_ptr() as usize;
    let tcp_header = usize::from(header[12] >> 4) * 4;
    let Some(ip_len) = ip_len(&ip).or((wire_len as usize).checked_sub(at)) else {
        return Err(Frame::Malformed);
    };
    let payload = ip_len.checked_sub(ip_headers + tcp_header);
    let (TCP_HEADER_BYTES_MIN.., Some(payload)) = (tcp_header, payload) else {
        return Err(Frame::Malformed);
    };
    let long = |at: usize| {
        u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    };
    let short = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    let segment = Segment {
        source: endpoint(ip.source_addr(), short(0)),
        destination: endpoint(ip.destination_addr(), short(2)),
        seq: long(4),
        ack: long(8),
        flags: header[13],
        window: tcp.get(14..16).map_or(u16::MAX, |window| {
            u16::from_be_bytes([window[0], window[1]])
        }),
        payload: payload as u32,
    };
    let (identification, hops) = match &ip {
        LaxIpSlice::Ipv4(ip) => (ip.header().identification(), ip.header().ttl()),
        LaxIpSlice::Ipv6(ip) => (0, ip.header().hop_limit()),
    };
    let tcp = &tcp[..tcp.len().min(tcp_header)];
    Ok((
        segment,
        Header {
            identification,
            hops,
            tcp,
        },
    ))
}

fn endpoint(address: IpAddr, port: u16) -> Endpoint {
    let address = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    Endpoint { address, port }
}

/// Bytes from the first of the IP header to the last of the packet. `None` where the header says 0: a packet longer
/// than 64 KiB that the kernel hands to the network card in one piece (BIG TCP), captured before it is cut.
fn ip_len(ip: &LaxIpSlice<'_>) -> Option<usize> {
    match ip {
        LaxIpSlice::Ipv4(ip) => Some(usize::from(ip.header().total_len())).filter(|&len| len > 0),
        LaxIpSlice::Ipv6(ip) => match ip.header().payload_length() {
            0 => None,
            len => Some(ip.header().slice().len() + usize::from(len)),
        },
    }
}

/// In units of 8 bytes; 0 for what is whole or begins a packet.
fn fragment_offset(ip: &LaxIpSlice<'_>) -> u16 {
    match ip {
        LaxIpSlice::Ipv4(ip) => ip.header().fragments_offset().value(),
        LaxIpSlice::Ipv6(ip) if ip.is_payload_fragmented() => {
            let offset = |extension| match extension {
                Ipv6ExtensionSlice::Fragment(fragment) => Some(fragment.fragment_offset().value()),
                _ => None,
            };
            ip.extensions()
                .clone()
                .into_iter()
                .find_map(offset)
                .unwrap_or(0)
        }
        LaxIpSlice::Ipv6(_) => 0,
    }
}
