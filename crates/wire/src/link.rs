//! From the first byte of a frame to its IP header.

/// What a frame begins with, by the link type of its capture (<https://www.tcpdump.org/linktypes.html>).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// Ethernet (LINKTYPE_ETHERNET, 1).
    Ethernet,
    /// Four bytes with the address family, of BSD's loopback (LINKTYPE_NULL, 0, and LINKTYPE_LOOP, 108).
    Loopback,
    /// An IP header (LINKTYPE_RAW, 101, LINKTYPE_IPV4, 228, LINKTYPE_IPV6, 229).
    Ip,
    /// Linux cooked capture, as of `tcpdump -i any` (LINKTYPE_LINUX_SLL, 113).
    Cooked,
    /// Its second version (LINKTYPE_LINUX_SLL2, 276).
    Cooked2,
    /// PPP (LINKTYPE_PPP, 9), perhaps in HDLC framing (LINKTYPE_PPP_HDLC, 50), which is Cisco's on some lines
    /// (LINKTYPE_C_HDLC, 104).
    Ppp,
}

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
/// IEEE 802.1Q, 802.1ad (QinQ), and what some switches used for QinQ before it.
const ETHERTYPES_VLAN: [u16; 3] = [0x8100, 0x88a8, 0x9100];
const ETHERTYPES_MPLS: [u16; 2] = [0x8847, 0x8848];
/// IEEE 802.1BR, E-TAG: six bytes, then the next ethertype.
const ETHERTYPE_ETAG: u16 = 0x893f;
const ETAG_BYTES: usize = 6;
/// What is less is the length of an IEEE 802.3 frame.
const ETHERTYPE_MIN: u16 = 0x0600;
/// Such a frame has an ethertype behind this (IEEE 802.2 and RFC 1042).
const SNAP: [u8; 6] = [0xaa, 0xaa, 3, 0, 0, 0];
/// RFC 2516.
const ETHERTYPE_PPPOE_SESSION: u16 = 0x8864;
const PPPOE_HEADER_BYTES: usize = 6;
/// RFC 1332 and RFC 5072.
const PPP_IPV4: u16 = 0x0021;
const PPP_IPV6: u16 = 0x0057;
/// Address and control of Cisco's HDLC framing: to one receiver, and to all.
const CISCO_HEADS: [[u8; 2]; 2] = [[0x0f, 0x00], [0x8f, 0x00]];
/// What Linux cooked captures have at [`SLL_TYPE`] and [`SLL2_TYPE`] of a packet that goes out (PACKET_OUTGOING).
const OUTGOING: u8 = 4;
const SLL_TYPE: usize = 1;
const SLL2_TYPE: usize = 10;
const SLL2_INTERFACE: usize = 4;
/// Tags and labels that are skipped at most. Real frames have three.
const TAGS_MAX: usize = 8;

impl Link {
    /// The link of a LINKTYPE number; `None` if no IP is read from it.
    pub fn from_number(number: i32) -> Option<Link> {
        // The upper bits say whether frames end with a checksum, and how long it is.
        match number & 0xffff {
            1 => Some(Link::Ethernet),
            0 | 108 => Some(Link::Loopback),
            // 12 and 14 are what OpenBSD and others wrote for 101.
            12 | 14 | 101 | 228 | 229 => Some(Link::Ip),
            113 => Some(Link::Cooked),
            276 => Some(Link::Cooked2),
            9 | 50 | 104 => Some(Link::Ppp),
            _ => None,
        }
    }

    /// Interface and way of a frame, as far as it tells: cooked ones of `-i any` do.
    pub(crate) fn way(self, frame: &[u8]) -> u32 {
        let is_outgoing = |at: usize| u32::from(frame.get(at) == Some(&OUTGOING));
        match self {
            Link::Cooked => is_outgoing(SLL_TYPE),
            Link::Cooked2 => {
                let interface = word(frame, SLL2_INTERFACE + 2).unwrap_or(0);
                u32::from(interface) << 1 | is_outgoing(SLL2_TYPE)
            }
            _ => 0,
        }
    }

    /// Where the IP header of a frame begins. `None`: the frame carries something else, or ends before.
    pub(crate) fn ip_offset(self, frame: &[u8]) -> Option<usize> {
        match self {
            Link::Ethernet => behind_ethertype(frame, 12),
            Link::Loopback => Some(4),
            Link::Ip => Some(0),
            Link::Cooked => behind_ethertype(frame, 14),
            Link::Cooked2 => behind_ethertype_at(frame, 0, 20),
            Link::Ppp => {
                // RFC 1662: address and control may be there. Cisco's have other values, and an ethertype behind them
                // (RFC 1547, 4.3.1).
                if CISCO_HEADS.iter().any(|head| frame.starts_with(head)) {
                    return behind_ethertype(frame, 2);
                }
                let framed = frame.starts_with(&[0xff, 0x03]);
                behind_ppp(frame, if framed { 2 } else { 0 })
            }
        }
    }
}

fn word(frame: &[u8], at: usize) -> Option<u16> {
    let bytes = frame.get(at..at + 2)?;
    Some(u16::from_be_bytes([bytes[0], bytes[1]]))
}

fn behind_ethertype(frame: &[u8], at: usize) -> Option<usize> {
    behind_ethertype_at(frame, at, at + 2)
}

/// Behind the tags: an ethertype stands at `at`, and what it announces begins at `next`.
fn behind_ethertype_at(frame: &[u8], at: usize, next: usize) -> Option<usize> {
    let (mut ethertype, mut next) = (word(frame, at)?, next);
    for _ in 0..TAGS_MAX {
        match ethertype {
            ETHERTYPE_IPV4 | ETHERTYPE_IPV6 => return Some(next),
            vlan if ETHERTYPES_VLAN.contains(&vlan) => {
                ethertype = word(frame, next + 2)?;
                next += 4;
            }
            ETHERTYPE_ETAG => {
                ethertype = word(frame, next + ETAG_BYTES)?;
                next += ETAG_BYTES + 2;
            }
            length if length < ETHERTYPE_MIN => {
                let snap = frame.get(next..next + SNAP.len())?;
                ethertype = word(frame, next + SNAP.len()).filter(|_| snap == SNAP)?;
                next += SNAP.len() + 2;
            }
            mpls if ETHERTYPES_MPLS.contains(&mpls) => return behind_labels(frame, next),
            ETHERTYPE_PPPOE_SESSION => return behind_ppp(frame, next + PPPOE_HEADER_BYTES),
            _ => return None,
        }
    }
    None
}

/// Behind an MPLS stack (RFC 3032). What follows it is IP if it looks like IP.
fn behind_labels(frame: &[u8], mut at: usize) -> Option<usize> {
    for _ in 0..TAGS_MAX {
        let is_last = frame.get(at + 2)? & 1 == 1;
        at += 4;
        if is_last {
            return matches!(frame.get(at)? >> 4, 4 | 6).then_some(at);
        }
    }
    None
}

fn behind_ppp(frame: &[u8], at: usize) -> Option<usize> {
    // RFC 1661: an odd first byte is a protocol of one byte.
    let (protocol, bytes) = match frame.get(at)? {
        odd if odd & 1 == 1 => (u16::from(*odd), 1),
        _ => (word(frame, at)?, 2),
    };
    matches!(protocol, PPP_IPV4 | PPP_IPV6).then_some(at + bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever the link, the IP header that follows it is found.
    #[test]
    fn the_ip_header_is_found_behind_every_link() {
        let mac = [0u8; 12];
        let with = |parts: &[&[u8]]| parts.concat();
        let rows: &[(&str, Link, Vec<u8>)] = &[
            ("Ethernet", Link::Ethernet, with(&[&mac, &[8, 0]])),
            (
                "Ethernet, IPv6",
                Link::Ethernet,
                with(&[&mac, &[0x86, 0xdd]]),
            ),
            (
                "VLAN",
                Link::Ethernet,
                with(&[&mac, &[0x81, 0, 0, 5, 8, 0]]),
            ),
            (
                "QinQ",
                Link::Ethernet,
                with(&[&mac, &[0x88, 0xa8, 0, 5, 0x81, 0, 0, 6, 8, 0]]),
            ),
            (
                "PPPoE",
                Link::Ethernet,
                with(&[&mac, &[0x88, 0x64, 0x11, 0, 0, 1, 0, 42, 0, 0x21]]),
            ),
            (
                "two MPLS labels",
                Link::Ethernet,
                with(&[&mac, &[0x88, 0x47, 0, 1, 0, 9, 0, 1, 1, 9]]),
            ),
            (
                "E-TAG",
                Link::Ethernet,
                with(&[&mac, &[0x89, 0x3f, 0x10, 0, 0, 0xd8, 0, 0, 8, 0]]),
            ),
            (
                "IEEE 802.3 with SNAP",
                Link::Ethernet,
                with(&[&mac, &[0, 50, 0xaa, 0xaa, 3, 0, 0, 0, 8, 0]]),
            ),
            (
                "VLAN and SNAP",
                Link::Ethernet,
                with(&[&mac, &[0x81, 0, 0, 5, 0, 50, 0xaa, 0xaa, 3, 0, 0, 0, 8, 0]]),
            ),
            ("BSD loopback", Link::Loopback, vec![2, 0, 0, 0]),
            ("raw", Link::Ip, vec![]),
            ("cooked", Link::Cooked, with(&[&[0; 14], &[8, 0]])),
            ("cooked 2", Link::Cooked2, with(&[&[8, 0], &[0; 18]])),
            ("PPP", Link::Ppp, vec![0, 0x57]),
            ("PPP, framed", Link::Ppp, vec![0xff, 3, 0, 0x21]),
            ("PPP, short protocol", Link::Ppp, vec![0x21]),
            ("Cisco HDLC", Link::Ppp, vec![0x0f, 0, 8, 0]),
            ("Cisco HDLC, to all", Link::Ppp, vec![0x8f, 0, 0x86, 0xdd]),
        ];
        for (name, link, head) in rows {
            let frame = with(&[head, &[0x45; 20]]);
            assert_eq!(link.ip_offset(&frame), Some(head.len()), "{name}");
            for cut in 0..head.len() {
                let found = link.ip_offset(&frame[..cut]);
                assert!(found.is_none_or(|at| at >= cut), "{name}, cut at {cut}");
            }
        }
    }

    #[test]
    fn what_is_not_ip_is_not_taken_for_it() {
        let arp = [[0u8; 12].as_slice(), &[8, 6], &[0; 28]].concat();
        assert_eq!(Link::Ethernet.ip_offset(&arp), None);
        let spanning_tree = [[0u8; 12].as_slice(), &[0, 38, 0x42, 0x42, 3], &[0; 36]].concat();
        assert_eq!(Link::Ethernet.ip_offset(&spanning_tree), None);
        let endless = [[0u8; 12].as_slice(), &[0x81, 0, 0, 1].repeat(40)].concat();
        assert_eq!(Link::Ethernet.ip_offset(&endless), None);
        assert_eq!(Link::from_number(105), None, "IEEE 802.11");
    }
}
