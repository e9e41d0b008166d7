//! Which packets are control segments: what goes to the high queue of SPA (BHD18, Section V).
//!
//! Integers only and no state: the kernel half has the same function in C.

/// TCP flag FIN.
pub const FIN: u8 = 0x01;
/// TCP flag SYN.
pub const SYN: u8 = 0x02;
/// TCP flag RST.
pub const RST: u8 = 0x04;
/// TCP flag ACK.
pub const ACK: u8 = 0x10;

/// Protocol number of TCP.
const TCP: u8 = 6;
/// The shortest headers.
const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
const TCP_BYTES: usize = 20;
/// Of the word with flags and offset of an IPv4 header.
const MORE_FRAGMENTS_AND_OFFSET: usize = 0x3fff;

/// What a packet controls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Control {
    /// Nothing: data, a bare ACK, a RST, another protocol, or a SYN or FIN with payload.
    #[default]
    None,
    /// It opens a connection: SYN without payload.
    Syn,
    /// It accepts one: SYN/ACK without payload.
    SynAck,
    /// It closes one direction: FIN without payload.
    Fin,
}

impl Control {
    /// Whether it is for the high queue; with `fin` a FIN is as well.
    pub fn is_high(self, fin: bool) -> bool {
        match self {
            Control::Syn | Control::SynAck => true,
            Control::Fin => fin,
            Control::None => false,
        }
    }
}

/// Judges a TCP segment by its flags and the bytes of its payload (IP total length less the IP header and the TCP
/// header).
///
/// A SYN or a FIN that carries payload is no control segment: with the flag set on all data a sender could otherwise
/// have the high queue for its transfer. Such a segment is as slow as any data; it is not dropped. SYN together with
/// FIN or RST opens nothing.
pub fn control_of(flags: u8, payload_bytes: u32) -> Control {
    if payload_bytes != 0 {
        return Control::None;
    }
    match flags & (SYN | FIN | RST) {
        SYN if flags & ACK != 0 => Control::SynAck,
        SYN => Control::Syn,
        FIN => Control::Fin,
        _ => Control::None,
    }
}

/// Judges a packet from its IP header on: plain TCP over IPv4, also with options, or over IPv6 without extension headers.
/// Everything else is [`Control::None`]: another protocol, a fragment, a packet that is cut, lengths that contradict.
pub fn control_of_packet(ip: &[u8]) -> Control {
    let word = |at: usize| usize::from(u16::from_be_bytes([ip[at], ip[at + 1]]));
    let (tcp_at, ip_bytes) = match ip.first().map(|first| (first >> 4, first & 15)) {
        Some((4, words)) if ip.len() >= IPV4_BYTES + TCP_BYTES => {
            let is_whole = word(6) & MORE_FRAGMENTS_AND_OFFSET == 0;
            match ip[9] == TCP && words >= 5 && is_whole {
                true => (4 * usize::from(words), word(2)),
                false => return Control::None,
            }
        }
        Some((6, _)) if ip.len() >= IPV6_BYTES + TCP_BYTES && ip[6] == TCP => {
            (IPV6_BYTES, IPV6_BYTES + word(4))
        }
        _ => return Control::None,
    };
    let Some(tcp) = ip.get(tcp_at..tcp_at + TCP_BYTES) else {
        return Control::None;
    };
    let header_bytes = 4 * usize::from(tcp[12] >> 4);
    match ip_bytes.checked_sub(tcp_at + header_bytes) {
        Some(payload) if header_bytes >= TCP_BYTES => control_of(tcp[13], payload as u32),
        _ => Control::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ECE and CWR, which a SYN that asks for ECN has.
    const ECN_SETUP: u8 = 0xc0;

    #[test]
    fn control_segments_have_one_of_syn_and_fin_and_no_payload() {
        for (flags, payload, control) in [
            (SYN, 0, Control::Syn),
            (SYN | ACK, 0, Control::SynAck),
            (SYN | ECN_SETUP, 0, Control::Syn),
            (SYN | ACK | ECN_SETUP, 0, Control::SynAck),
            (FIN | ACK, 0, Control::Fin),
            (SYN, 1, Control::None),
            (SYN | ACK, 1460, Control::None),
            (FIN | ACK, 1, Control::None),
            (SYN | FIN, 0, Control::None),
            (SYN | RST, 0, Control::None),
            (RST | ACK, 0, Control::None),
            (ACK, 0, Control::None),
            (0, 0, Control::None),
        ] {
            assert_eq!(control_of(flags, payload), control, "{flags:#x} {payload}");
        }
    }
}
