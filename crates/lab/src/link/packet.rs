//! An IP packet of the emulated link, as a queueing discipline sees it.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;

use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use weir_sim::aqm::control::control_of;
use weir_sim::aqm::{Control, Ecn, Packet};

/// Where the ECN field is in the second byte of a header: of IPv4, and of IPv6.
const ECN_V4: u32 = 0;
const ECN_V6: u32 = 4;

/// A packet that waits or is on its way.
#[derive(Debug)]
pub struct Frame {
    bytes: Vec<u8>,
    /// When it came, ns of the engine's clock.
    pub came_ns: u64,
    flow_hash: u32,
    source_hash: u32,
    destination_hash: u32,
    control: Control,
}

impl Frame {
    /// An IPv4 or IPv6 packet that came at this time. What cannot be read is data of one flow.
    pub fn read(bytes: Vec<u8>, came_ns: u64) -> Frame {
        let (flow_hash, [source_hash, destination_hash], control) =
            look(&bytes).unwrap_or_default();
        Frame {
            bytes,
            came_ns,
            flow_hash,
            source_hash,
            destination_hash,
            control,
        }
    }

    /// The packet.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn ecn_shift(&self) -> u32 {
        match self.bytes.first().map(|byte| byte >> 4) {
            Some(6) => ECN_V6,
            _ => ECN_V4,
        }
    }
}

/// The hash of the flow, those of the source and of the destination, and what the packet controls.
fn look(bytes: &[u8]) -> Option<(u32, [u32; 2], Control)> {
    let packet = SlicedPacket::from_ip(bytes).ok()?;
    let (source, destination) = addresses(packet.net.as_ref()?)?;
    let mut control = Control::None;
    let ports = match &packet.transport {
        Some(TransportSlice::Tcp(tcp)) => {
            // Data offset and flags are bytes 12 and 13.
            control = control_of(tcp.slice()[13], tcp.payload().len() as u32);
            (6, tcp.source_port(), tcp.destination_port())
        }
        Some(TransportSlice::Udp(udp)) => (17, udp.source_port(), udp.destination_port()),
        // Fragments too: all of two hosts are one flow.
        _ => (0, 0, 0),
    };
    let of_host = |address| match address {
        IpAddr::V4(address) => hash(address),
        IpAddr::V6(address) => hash(&address.octets()[..8]),
    };
    let hosts = [source, destination].map(of_host);
    Some((hash((source, destination, ports)), hosts, control))
}

fn addresses(net: &NetSlice<'_>) -> Option<(IpAddr, IpAddr)> {
    match net {
        NetSlice::Ipv4(ip) => {
            let header = ip.header();
            Some((
                header.source_addr().into(),
                header.destination_addr().into(),
            ))
        }
        NetSlice::Ipv6(ip) => {
            let header = ip.header();
            Some((
                header.source_addr().into(),
                header.destination_addr().into(),
            ))
        }
        _ => None,
    }
}

/// The same for the same value in every run.
fn hash(value: impl Hash) -> u32 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish() as u32
}

impl Packet for Frame {
    fn len_bytes(&self) -> u32 {
        self.bytes.len() as u32
    }

    fn flow_hash(&self) -> u32 {
        self.flow_hash
    }

    fn source_hash(&self) -> u32 {
        self.source_hash
    }

    fn destination_hash(&self) -> u32 {
        self.destination_hash
    }

    fn control(&self) -> Control {
        self.control
    }

    fn ecn(&self) -> Ecn {
        let field = self.bytes.get(1).map_or(0, |byte| byte >> self.ecn_shift());
        match field & 3 {
            0 => Ecn::NotEct,
            3 => Ecn::Ce,
            _ => Ecn::Ect,
        }
    }

    fn set_ce(&mut self) {
        let word = |bytes: &[u8], at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let shift = self.ecn_shift();
        let before = word(&self.bytes, 0);
        self.bytes[1] |= 3 << shift;
        if shift == ECN_V6 {
            return;
        }
        // RFC 1624, equation 3: the sum without the old word and with the new one.
        let sum = u32::from(!word(&self.bytes, 10))
            + u32::from(!before)
            + u32::from(word(&self.bytes, 0));
        let sum = (sum & 0xffff) + (sum >> 16);
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        self.bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::{Ipv4Header, PacketBuilder};

    fn v4(
        source: [u8; 4],
        port: u16,
        flags: fn(&mut etherparse::TcpHeader),
        payload: &[u8],
    ) -> Frame {
        let mut tcp = etherparse::TcpHeader::new(port, 80, 1, 1000);
        flags(&mut tcp);
        let mut bytes = Vec::new();
        let builder = PacketBuilder::ipv4(source, [10, 128, 0, 1], 64);
        builder.tcp_header(tcp).write(&mut bytes, payload).unwrap();
        Frame::read(bytes, 0)
    }

    fn v6(host: u8, port: u16) -> Frame {
        let mut source = [0; 16];
        (source[0], source[15]) = (0xfd, host);
        let mut bytes = Vec::new();
        let builder = PacketBuilder::ipv6(source, [1; 16], 64)
            .tcp(port, 80, 1, 1000)
            .syn();
        builder.write(&mut bytes, &[]).unwrap();
        Frame::read(bytes, 0)
    }

    #[test]
    fn control_segments_are_known_by_flags_and_length_in_both_families() {
        let one = [10, 64, 0, 1];
        for (frame, control) in [
            (v4(one, 1, |tcp| tcp.syn = true, &[]), Control::Syn),
            (v4(one, 1, |tcp| tcp.syn = true, &[1]), Control::None),
            (
                v4(one, 1, |tcp| (tcp.syn, tcp.ack) = (true, true), &[]),
                Control::SynAck,
            ),
            (
                v4(one, 1, |tcp| (tcp.fin, tcp.ack) = (true, true), &[]),
                Control::Fin,
            ),
            (v4(one, 1, |tcp| tcp.ack = true, &[0; 1400]), Control::None),
            (v6(1, 1), Control::Syn),
            (Frame::read(vec![0x45, 0], 0), Control::None),
            (Frame::read(Vec::new(), 0), Control::None),
        ] {
            assert_eq!(frame.control(), control, "{frame:?}");
        }
    }

    #[test]
    fn flows_differ_by_ports_and_sources_by_address_or_prefix() {
        let ack = |tcp: &mut etherparse::TcpHeader| tcp.ack = true;
        let [one, same, port, host] = [
            v4([10, 64, 0, 1], 1, ack, &[]),
            v4([10, 64, 0, 1], 1, ack, &[1, 2]),
            v4([10, 64, 0, 1], 2, ack, &[]),
            v4([10, 64, 0, 2], 1, ack, &[]),
        ];
        assert_eq!(one.flow_hash(), same.flow_hash());
        assert_ne!(one.flow_hash(), port.flow_hash());
        assert_eq!(one.source_hash(), port.source_hash());
        assert_ne!(one.source_hash(), host.source_hash());
        // One /64.
        assert_eq!(v6(1, 1).source_hash(), v6(2, 1).source_hash());
        assert_ne!(v6(1, 1).flow_hash(), v6(2, 1).flow_hash());
    }

    #[test]
    fn a_mark_changes_the_ecn_field_alone_and_the_checksum_stays_right() {
        let mut frame = v4([10, 64, 0, 1], 1, |tcp| tcp.ack = true, &[7; 9]);
        assert_eq!(frame.ecn(), Ecn::NotEct);
        for ect in [1, 2] {
            for id in 0..300_u16 {
                let mut header = Ipv4Header::from_slice(frame.bytes()).unwrap().0;
                header.ecn = etherparse::IpEcn::try_new(ect).unwrap();
                header.identification = id.wrapping_mul(219);
                header.header_checksum = header.calc_header_checksum();
                frame.bytes[..20].copy_from_slice(&header.to_bytes());
                assert_eq!(frame.ecn(), Ecn::Ect);
                frame.set_ce();
                assert_eq!(frame.ecn(), Ecn::Ce);
                let marked = Ipv4Header::from_slice(frame.bytes()).unwrap().0;
                assert_eq!(marked.header_checksum, marked.calc_header_checksum());
                assert_eq!(
                    (marked.dscp, marked.identification),
                    (header.dscp, header.identification)
                );
            }
        }
        let mut frame = v6(1, 1);
        frame.bytes[1] |= 2 << 4;
        let before = frame.bytes.clone();
        assert_eq!(frame.ecn(), Ecn::Ect);
        frame.set_ce();
        assert_eq!(frame.ecn(), Ecn::Ce);
        assert_eq!(
            (frame.bytes[0], &frame.bytes[2..]),
            (before[0], &before[2..])
        );
    }
}
