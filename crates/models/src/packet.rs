//! What the guard reads of a packet: the model of bpf/lib/packet.h.

use weir_core::verdict::{Kind, Verdict};

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

/// A plain, whole TCP packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// Over IPv6.
    pub v6: bool,
    /// Client port.
    pub source_port: u16,
    /// Server port.
    pub destination_port: u16,
    /// TCP flags.
    pub flags: u8,
    /// TCP header with options, 20..=60 bytes.
    pub header_len: u8,
    /// TCP header and payload, bytes, by the IP header.
    pub tcp_len: u32,
}

const ETH_P_IP: u16 = 0x0800;
const ETH_P_IPV6: u16 = 0x86dd;
const IPPROTO_TCP: u8 = 6;

/// Reads the packet in `frame`, whose IP header starts at `l3`. `None` for everything that is not a
/// plain, whole TCP header over IPv4 without options or IPv6 without extension headers.
pub fn parse(frame: &[u8], l3: usize, ethertype: u16) -> Option<Packet> {
    let ip = frame.get(l3..)?;
    let word = |b: &[u8], at: usize| u16::from_be_bytes([b[at], b[at + 1]]);
    let (v6, header, ip_len) = match ethertype {
        ETH_P_IP if ip.len() >= 40 => {
            let plain = ip[0] == 0x45 && ip[9] == IPPROTO_TCP && word(ip, 6) & 0x3fff == 0;
            (false, plain.then_some(20)?, usize::from(word(ip, 2)))
        }
        ETH_P_IPV6 if ip.len() >= 60 => {
            let plain = ip[0] >> 4 == 6 && ip[6] == IPPROTO_TCP;
            (true, plain.then_some(40)?, 40 + usize::from(word(ip, 4)))
        }
        _ => return None,
    };
    let (tcp, tcp_len) = (&ip[header..], ip_len.checked_sub(header)?);
    let header_len = (tcp[12] >> 4) * 4;
    if tcp_len < 20 || header_len < 20 || usize::from(header_len) > tcp_len || ip_len > ip.len() {
        return None;
    }
    Some(Packet {
        v6,
        source_port: word(tcp, 0),
        destination_port: word(tcp, 2),
        flags: tcp[13],
        header_len,
        tcp_len: tcp_len as u32,
    })
}

impl Packet {
    const STEERING: u8 = flag::SYN | flag::ACK | flag::RST | flag::FIN;

    /// The first packet of a handshake.
    pub fn is_syn(&self) -> bool {
        self.flags & Self::STEERING == flag::SYN
    }

    /// An acknowledgement that opens and closes nothing.
    pub fn is_plain_ack(&self) -> bool {
        self.flags & Self::STEERING == flag::ACK
    }
}

/// A TIME-WAIT socket, as the kernel looks at it when a SYN comes for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeWait {
    /// The next sequence number of the old connection.
    pub rcv_nxt: u32,
    /// The last timestamp of its client; `None` if it had no timestamps.
    pub ts_recent: Option<u32>,
    /// Its client has not closed yet (FIN-WAIT-2).
    pub fin_wait2: bool,
}

impl TimeWait {
    /// Whether the kernel lets a SYN with this sequence number and timestamp take the place of the socket:
    /// `tcp_timewait_state_process()`. If not, it answers for the old connection.
    pub fn yields(&self, seq: u32, timestamp: Option<u32>) -> bool {
        let newer = match (self.ts_recent, timestamp) {
            (Some(recent), Some(now)) => now.wrapping_sub(recent) as i32,
            _ => 0,
        };
        // PAWS (RFC 7323, Section 5). A timestamp of 0 was none: `tcp_paws_check()`.
        let is_old = newer < 0 && self.ts_recent != Some(0);
        let is_after = seq.wrapping_sub(self.rcv_nxt) as i32 > 0;
        !self.fin_wait2 && !is_old && (newer > 0 || is_after)
    }
}

/// Whether the headers of a frame are sound (checksums right, both ends addresses that can be ends), so that the guard
/// may answer it. `frame` must have parsed as `packet` at `l3`.
pub fn answerable(frame: &[u8], l3: usize, packet: &Packet) -> bool {
    let ip = &frame[l3..];
    let header = if packet.v6 { 40 } else { 20 };
    let addresses = if packet.v6 { &ip[8..40] } else { &ip[12..20] };
    let (source, destination) = addresses.split_at(addresses.len() / 2);
    let endpoint = |address: &[u8]| match packet.v6 {
        true => address[0] != 0xff && address.iter().any(|&b| b != 0),
        false => address[0] >> 4 != 14 && address != [0; 4] && address != [255; 4],
    };
    let ip_sound = packet.v6 || sum(&ip[..20], 0) == 0xffff;
    let pseudo = packet.tcp_len + u32::from(IPPROTO_TCP);
    let segment = &ip[header..header + packet.tcp_len as usize];
    // A SYN with payload is not summed: that would cost more than answering it.
    let unsummed = packet.tcp_len != u32::from(packet.header_len);
    endpoint(source)
        && endpoint(destination)
        && ip_sound
        && (unsummed || sum(segment, u64::from(sum(addresses, pseudo.into()))) == 0xffff)
}

/// Internet checksum's sum (RFC 1071), not complemented, on top of `start`.
pub fn sum(bytes: &[u8], start: u64) -> u16 {
    let mut total = bytes.chunks(2).fold(start, |total, pair| {
        total + u64::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]))
    });
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}

/// What a verdict does to a SYN or a final ACK at tc: pass it, drop it, or send an answer in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Goes on to the stack, unchanged.
    Pass,
    /// Gone.
    Drop,
    /// An answer goes back in its place.
    Answer,
}

/// What an enforced verdict does to a SYN or to the final ACK of a cookie.
pub fn fate(verdict: Verdict) -> Fate {
    match verdict {
        Verdict::SynDroppedFull | Verdict::SynDroppedWait => Fate::Drop,
        Verdict::SynDroppedRate | Verdict::SynDroppedHeld => Fate::Drop,
        Verdict::SynDroppedResidence => Fate::Drop,
        // The kernel makes the connection from this packet.
        Verdict::CookieAccepted => Fate::Pass,
        _ => match verdict.info().kind {
            Kind::Pass | Kind::Note => Fate::Pass,
            Kind::Refuse | Kind::Answer => Fate::Answer,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sum_is_that_of_rfc_1071() {
        // The example of RFC 1071, Section 3.
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(sum(&bytes, 0), 0xddf2);
    }

    #[test]
    fn short_frames_are_not_ours() {
        for len in 0..54 {
            assert_eq!(parse(&vec![0x45; len], 14, ETH_P_IP), None);
        }
    }
}
