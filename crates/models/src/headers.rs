//! The TCP header behind IPv4 options, behind IPv6 extension headers, or in a first fragment: the model of
//! bpf/lib/headers.h.

/// Bytes of a packet, from its IP header, in which the guard looks.
pub const HEADERS_MAX: usize = 2048;

const TCP: u8 = 6;
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION: u8 = 60;

/// A TCP header, or the beginning of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Client port.
    pub source_port: u16,
    /// Server port.
    pub destination_port: u16,
    /// TCP flags; `None` where they are in another fragment.
    pub flags: Option<u8>,
}

/// Whether the guard looks here for what [`crate::packet::parse`] did not find in `ip`, a packet from its IP header on.
pub fn is_unusual(ip: &[u8], v6: bool) -> bool {
    match v6 {
        true => [HOP_BY_HOP, ROUTING, FRAGMENT, DESTINATION].contains(&ip[6]),
        false => ip[9] == TCP && (ip[0] != 0x45 || word(ip, 6) & 0x3fff != 0),
    }
}

fn word(ip: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([ip[at], ip[at + 1]])
}

/// Where the header behind all others begins, its protocol, and whether other fragments follow. `None`: the packet is
/// no first fragment, or the kernel drops it.
fn last_header(ip: &[u8], v6: bool) -> Option<(usize, u8, bool)> {
    if !v6 {
        let (length, fragment) = (usize::from(ip[0] & 15) * 4, word(ip, 6));
        let first = ip[0] >> 4 == 4 && length >= 20 && fragment & 0x1fff == 0;
        return first.then_some((length, ip[9], fragment & 0x2000 != 0));
    }
    let (mut at, mut next, mut more) = (40, ip[6], false);
    if ip[0] >> 4 != 6 {
        return None;
    }
    loop {
        let header = ip.get(at..at + 8);
        match next {
            HOP_BY_HOP if at != 40 => return None,
            HOP_BY_HOP | ROUTING | DESTINATION => {
                let header = header?;
                (at, next) = (at + (usize::from(header[1]) + 1) * 8, header[0]);
            }
            FRAGMENT => {
                let header = header?;
                let fragment = word(header, 2);
                if fragment & 0xfff8 != 0 {
                    return None;
                }
                more |= fragment & 1 != 0;
                (at, next) = (at + 8, header[0]);
            }
            _ => return Some((at, next, more)),
        }
    }
}

/// Finds the TCP header in `ip`, a packet from its IP header (at least 20 or 40 bytes) on. `None`: there is none, or the
/// kernel drops the packet.
pub fn find(ip: &[u8], v6: bool) -> Option<Found> {
    let length = match v6 {
        true => 40 + usize::from(word(ip, 4)),
        false => usize::from(word(ip, 2)),
    };
    let ip = &ip.get(..length)?[..length.min(HEADERS_MAX)];
    if ip.len() < if v6 { 40 } else { 20 } {
        return None;
    }
    let (at, protocol, more) = last_header(ip, v6)?;
    let tcp = ip.get(at..).filter(|_| protocol == TCP)?;
    let whole = tcp.len() >= 20 && (20..=tcp.len()).contains(&(usize::from(tcp[12] >> 4) * 4));
    if !(whole || more && tcp.len() >= 4) {
        return None;
    }
    Some(Found {
        source_port: word(tcp, 0),
        destination_port: word(tcp, 2),
        flags: tcp.get(13).copied(),
    })
}
