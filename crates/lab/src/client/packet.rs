//! Frames in and out: Ethernet, IPv4 or IPv6, TCP with the options that Linux uses.
//!
//! Written by hand because every packet passes here: a frame is composed in one pass into a buffer
//! on the stack and parsed without allocation; the tests hold it against etherparse.

use std::net::IpAddr;

use crate::bed::{GATEWAY_MAC, SERVER_MAC};

/// TCP flags.
pub mod flag {
    /// No more data from the sender.
    pub const FIN: u8 = 0x01;
    /// Synchronize sequence numbers.
    pub const SYN: u8 = 0x02;
    /// Reset the connection.
    pub const RST: u8 = 0x04;
    /// Push.
    pub const PSH: u8 = 0x08;
    /// The acknowledgment field counts.
    pub const ACK: u8 = 0x10;
}

/// A TCP segment, without its addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment<'a> {
    /// See [`flag`].
    pub flags: u8,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgment number.
    pub ack: u32,
    /// TSval and TSecr (RFC 7323), if the segment has the option.
    pub timestamps: Option<(u32, u32)>,
    /// Whoever sends it takes no data for now (window 0); never of a segment that goes out.
    pub window_closed: bool,
    /// Data.
    pub payload: &'a [u8],
}

impl Segment<'_> {
    /// Whether all these flags are set.
    pub fn has(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }

    /// The sequence space that it takes: data, SYN and FIN.
    pub fn length(&self) -> u32 {
        let bits = u32::from(self.has(flag::SYN)) + u32::from(self.has(flag::FIN));
        self.payload.len() as u32 + bits
    }
}

/// Address and port of one end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// IPv4 or IPv6 address.
    pub ip: IpAddr,
    /// TCP port.
    pub port: u16,
}

/// Longest frame that [`compose`] makes: headers, SYN options and a request of up to 1 KiB.
pub const MAX_FRAME_BYTES: usize = 14 + 40 + 60 + 1024;

const ETHERNET_BYTES: usize = 14;
const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
const TCP_BYTES: usize = 20;
const PROTOCOL_TCP: u8 = 6;
/// Linux's initial window: 44 segments of 1460 bytes, and the same in units of 2^7.
const WINDOW_SYN: u16 = 64_240;
const WINDOW_SCALED: u16 = WINDOW_SYN >> 7;

/// Composes a frame from a client to the server; returns its length.
pub fn compose(
    from: Endpoint,
    to: Endpoint,
    segment: &Segment,
    frame: &mut [u8; MAX_FRAME_BYTES],
) -> usize {
    frame[0..6].copy_from_slice(&SERVER_MAC);
    frame[6..12].copy_from_slice(&GATEWAY_MAC);
    let ip_bytes = match to.ip {
        IpAddr::V4(_) => IPV4_BYTES,
        IpAddr::V6(_) => IPV6_BYTES,
    };
    let tcp_at = ETHERNET_BYTES + ip_bytes;
    let tcp_bytes = write_tcp(from.port, to.port, segment, &mut frame[tcp_at..]);
    let pseudo = write_ip(from.ip, to.ip, tcp_bytes, &mut frame[12..tcp_at]);
    let checksum = fold(pseudo + sum(&frame[tcp_at..tcp_at + tcp_bytes]));
    frame[tcp_at + 16..tcp_at + 18].copy_from_slice(&checksum.to_be_bytes());
    tcp_at + tcp_bytes
}

/// Writes the EtherType and the IP header; returns the sum of the TCP pseudo-header.
fn write_ip(from: IpAddr, to: IpAddr, tcp_bytes: usize, out: &mut [u8]) -> u32 {
    let pseudo = u32::from(PROTOCOL_TCP) + tcp_bytes as u32;
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            out[0..2].copy_from_slice(&[0x08, 0x00]);
            let header = &mut out[2..2 + IPV4_BYTES];
            header[0..2].copy_from_slice(&[0x45, 0]);
            header[2..4].copy_from_slice(&((IPV4_BYTES + tcp_bytes) as u16).to_be_bytes());
            // No identification, "don't fragment", TTL 64, checksum 0 while summing.
            header[4..12].copy_from_slice(&[0, 0, 0x40, 0, 64, PROTOCOL_TCP, 0, 0]);
            header[12..16].copy_from_slice(&from.octets());
            header[16..20].copy_from_slice(&to.octets());
            let checksum = fold(sum(header));
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
            pseudo + sum(&header[12..20])
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            out[0..2].copy_from_slice(&[0x86, 0xdd]);
            let header = &mut out[2..2 + IPV6_BYTES];
            header[0..4].copy_from_slice(&[0x60, 0, 0, 0]);
            header[4..6].copy_from_slice(&(tcp_bytes as u16).to_be_bytes());
            header[6..8].copy_from_slice(&[PROTOCOL_TCP, 64]);
            header[8..24].copy_from_slice(&from.octets());
            header[24..40].copy_from_slice(&to.octets());
            pseudo + sum(&header[8..40])
        }
        _ => unreachable!("client and server addresses are of one family by construction"),
    }
}

/// Writes header, options and payload with a zero checksum; returns their length.
fn write_tcp(from: u16, to: u16, segment: &Segment, out: &mut [u8]) -> usize {
    let syn = segment.has(flag::SYN);
    let options_bytes = match (syn, segment.timestamps) {
        (true, _) => 20,
        (false, Some(_)) => 12,
        (false, None) => 0,
    };
    let header_bytes = TCP_BYTES + options_bytes;
    out[0..2].copy_from_slice(&from.to_be_bytes());
    out[2..4].copy_from_slice(&to.to_be_bytes());
    out[4..8].copy_from_slice(&segment.seq.to_be_bytes());
    out[8..12].copy_from_slice(&segment.ack.to_be_bytes());
    out[12] = (header_bytes as u8 / 4) << 4;
    out[13] = segment.flags;
    let window = if syn { WINDOW_SYN } else { WINDOW_SCALED };
    out[14..16].copy_from_slice(&window.to_be_bytes());
    out[16..20].fill(0);
    if options_bytes > 0 {
        write_options(
            syn,
            segment.timestamps.unwrap_or_default(),
            &mut out[20..header_bytes],
        );
    }
    out[header_bytes..header_bytes + segment.payload.len()].copy_from_slice(segment.payload);
    header_bytes + segment.payload.len()
}

/// The options in Linux's order: MSS 1460, SACK permitted, timestamps, window scale 7 on a SYN;
/// timestamps alone elsewhere.
fn write_options(syn: bool, (value, echo): (u32, u32), out: &mut [u8]) {
    let stamps_at = if syn {
        out[0..6].copy_from_slice(&[2, 4, 0x05, 0xb4, 4, 2]);
        out[16..20].copy_from_slice(&[1, 3, 3, 7]);
        6
    } else {
        out[0..2].copy_from_slice(&[1, 1]);
        2
    };
    out[stamps_at..stamps_at + 2].copy_from_slice(&[8, 10]);
    out[stamps_at + 2..stamps_at + 6].copy_from_slice(&value.to_be_bytes());
    out[stamps_at + 6..stamps_at + 10].copy_from_slice(&echo.to_be_bytes());
}

/// A frame from the server to a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Incoming<'a> {
    /// The server's end.
    pub from: Endpoint,
    /// The client's end.
    pub to: Endpoint,
    /// The segment.
    pub segment: Segment<'a>,
}

/// Parses a frame; `None` for anything that is not a whole TCP segment (ARP, router solicitations).
/// Checksums are not verified: the frame comes from the kernel on the same machine.
pub fn parse(frame: &[u8]) -> Option<Incoming<'_>> {
    let (from, to, tcp) = match frame.get(12..14)? {
        [0x08, 0x00] => parse_ipv4(&frame[14..])?,
        [0x86, 0xdd] => parse_ipv6(&frame[14..])?,
        _ => return None,
    };
    let header_bytes = usize::from(*tcp.get(12)? >> 4) * 4;
    let options = tcp.get(TCP_BYTES..header_bytes)?;
    let segment = Segment {
        flags: tcp[13],
        seq: be32(&tcp[4..8]),
        ack: be32(&tcp[8..12]),
        timestamps: find_timestamps(options),
        window_closed: tcp[14..16] == [0, 0],
        payload: &tcp[header_bytes..],
    };
    let port = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
    Some(Incoming {
        from: Endpoint {
            ip: from,
            port: port(0),
        },
        to: Endpoint {
            ip: to,
            port: port(2),
        },
        segment,
    })
}

fn parse_ipv4(packet: &[u8]) -> Option<(IpAddr, IpAddr, &[u8])> {
    let header_bytes = usize::from(packet.first()? & 15) * 4;
    let total = usize::from(u16::from_be_bytes([*packet.get(2)?, *packet.get(3)?]));
    if *packet.get(9)? != PROTOCOL_TCP {
        return None;
    }
    let address = |at: usize| {
        Some(IpAddr::from(
            <[u8; 4]>::try_from(packet.get(at..at + 4)?).ok()?,
        ))
    };
    Some((address(12)?, address(16)?, packet.get(header_bytes..total)?))
}

fn parse_ipv6(packet: &[u8]) -> Option<(IpAddr, IpAddr, &[u8])> {
    let length = usize::from(u16::from_be_bytes([*packet.get(4)?, *packet.get(5)?]));
    if *packet.get(6)? != PROTOCOL_TCP {
        return None;
    }
    let address = |at: usize| {
        Some(IpAddr::from(
            <[u8; 16]>::try_from(packet.get(at..at + 16)?).ok()?,
        ))
    };
    Some((
        address(8)?,
        address(24)?,
        packet.get(IPV6_BYTES..IPV6_BYTES + length)?,
    ))
}

fn find_timestamps(mut options: &[u8]) -> Option<(u32, u32)> {
    loop {
        match *options {
            [8, 10, ref stamps @ ..] if stamps.len() >= 8 => {
                return Some((be32(&stamps[0..4]), be32(&stamps[4..8])));
            }
            [] | [0, ..] => return None,
            [1, ref rest @ ..] => options = rest,
            [_, length, ..] if length >= 2 => options = options.get(usize::from(length)..)?,
            _ => return None,
        }
    }
}

fn be32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// Sum of 16-bit words; no overflow below 64 KiB of data.
fn sum(bytes: &[u8]) -> u32 {
    let words = bytes.chunks_exact(2);
    let odd = words
        .remainder()
        .first()
        .map_or(0, |&byte| u32::from(byte) << 8);
    words
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum::<u32>()
        + odd
}

/// The Internet checksum of a sum (RFC 1071).
fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(ipv6: bool) -> (Endpoint, Endpoint) {
        let [from, to] = if ipv6 {
            ["fd66:1::abcd", "fd66::1"]
        } else {
            ["10.128.3.7", "10.66.0.1"]
        };
        let end = |ip: &str, port| Endpoint {
            ip: ip.parse().unwrap(),
            port,
        };
        (end(from, 2049), end(to, 80))
    }

    fn samples() -> [Segment<'static>; 4] {
        let base = Segment {
            flags: flag::SYN,
            seq: 7,
            ack: 0,
            timestamps: Some((9, 0)),
            window_closed: false,
            payload: b"",
        };
        [
            base,
            Segment {
                flags: flag::ACK,
                ack: 77,
                timestamps: Some((u32::MAX, 1)),
                ..base
            },
            Segment {
                flags: flag::ACK | flag::PSH,
                timestamps: Some((3, 4)),
                payload: b"odd",
                ..base
            },
            Segment {
                flags: flag::RST,
                seq: u32::MAX,
                timestamps: None,
                ..base
            },
        ]
    }

    #[test]
    fn composed_frames_are_valid_to_etherparse() {
        for (ipv6, segment) in [false, true]
            .into_iter()
            .flat_map(|v6| samples().map(|s| (v6, s)))
        {
            let (from, to) = ends(ipv6);
            let mut frame = [0xff; MAX_FRAME_BYTES];
            let length = compose(from, to, &segment, &mut frame);
            let parsed = etherparse::PacketHeaders::from_ethernet_slice(&frame[..length]).unwrap();
            let tcp = parsed.transport.unwrap().tcp().unwrap();
            let checksum = match parsed.net.unwrap() {
                etherparse::NetHeaders::Ipv4(ip, _) => {
                    assert_eq!(ip.header_checksum, ip.calc_header_checksum());
                    tcp.calc_checksum_ipv4(&ip, segment.payload).unwrap()
                }
                etherparse::NetHeaders::Ipv6(ip, _) => {
                    tcp.calc_checksum_ipv6(&ip, segment.payload).unwrap()
                }
                other => panic!("{other:?}"),
            };
            assert_eq!(tcp.checksum, checksum, "{segment:?}");
            assert_eq!((tcp.source_port, tcp.destination_port), (2049, 80));
            assert_eq!(
                (tcp.sequence_number, tcp.acknowledgment_number),
                (segment.seq, segment.ack)
            );
            assert_eq!(parsed.payload.slice(), segment.payload);
        }
    }

    #[test]
    fn a_syn_carries_the_options_of_linux() {
        let (from, to) = ends(false);
        let mut frame = [0; MAX_FRAME_BYTES];
        let length = compose(from, to, &samples()[0], &mut frame);
        let parsed = etherparse::PacketHeaders::from_ethernet_slice(&frame[..length]).unwrap();
        use etherparse::TcpOptionElement::*;
        let options: Vec<_> = parsed
            .transport
            .unwrap()
            .tcp()
            .unwrap()
            .options_iterator()
            .map(|o| o.unwrap())
            .collect();
        let expected = [
            MaximumSegmentSize(1460),
            SelectiveAcknowledgementPermitted,
            Timestamp(9, 0),
            Noop,
            WindowScale(7),
        ];
        assert_eq!(options, expected);
    }

    #[test]
    fn parsing_gives_back_what_was_composed() {
        for (ipv6, segment) in [false, true]
            .into_iter()
            .flat_map(|v6| samples().map(|s| (v6, s)))
        {
            let (from, to) = ends(ipv6);
            let mut frame = [0; MAX_FRAME_BYTES];
            let length = compose(from, to, &segment, &mut frame);
            assert_eq!(
                parse(&frame[..length]),
                Some(Incoming { from, to, segment })
            );
        }
    }

    #[test]
    fn truncated_frames_are_no_segments_and_never_panic() {
        let (from, to) = ends(false);
        let mut frame = [0; MAX_FRAME_BYTES];
        let length = compose(from, to, &samples()[1], &mut frame);
        for cut in 0..length {
            assert_eq!(parse(&frame[..cut]), None, "cut at {cut}");
        }
    }
}
