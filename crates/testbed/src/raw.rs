//! Hosts made of frames: the far end of a device, for handshakes that stop half way and for packets that
//! no socket sends.

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use etherparse::{
    IpFragOffset, IpHeaders, IpNumber, Ipv4Extensions, Ipv4Header, Ipv4Options, Ipv6Extensions,
    Ipv6Header, Ipv6RawExtHeader, PacketBuilder, SlicedPacket, TcpHeader, TransportSlice,
};
use nix::errno::Errno;

use crate::bed::{GATEWAY_MAC, SERVER_MAC, SERVER_V4, SERVER_V6, Tap, Tun};
use crate::error;
use crate::netns::Netns;
use crate::wait::{PATIENCE, until};

/// A TCP endpoint on the wire, talking to one port of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// The end that the test plays.
    pub client: SocketAddr,
    /// The kernel's end.
    pub server: SocketAddr,
}

impl Peer {
    /// The IPv4 client of this number, 0 to 2^23 - 2, and this port of the server on the wire.
    pub fn v4(number: u32, port: u16) -> Peer {
        let client = std::net::Ipv4Addr::from_bits(0x0a80_0001 + number);
        Peer {
            client: (client, 40_000).into(),
            server: (SERVER_V4, port).into(),
        }
    }

    /// The IPv6 client of this number, and this port of the server on the wire.
    pub fn v6(number: u16, port: u16) -> Peer {
        let client = std::net::Ipv6Addr::new(0xfd66, 1, 0, 0, 0, 0, 1, number);
        Peer {
            client: (client, 40_000).into(),
            server: (SERVER_V6, port).into(),
        }
    }
}

/// What lies between Ethernet and TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Nothing but an IP header.
    Plain,
    /// IPv4: a router alert option. IPv6: a destination options header.
    Options,
    /// VLAN 7.
    Vlan,
    /// A priority tag: VLAN 0 (IEEE 802.1Q).
    Priority,
}

/// A segment to send.
#[derive(Debug, Clone, Default)]
pub struct Segment {
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number; `None` leaves the flag ACK off.
    pub ack: Option<u32>,
    /// Opens a connection; brings its options along.
    pub syn: bool,
    /// Ends this direction.
    pub fin: bool,
    /// Ends the connection at once.
    pub rst: bool,
    /// Timestamps: its own, and the one that it echoes.
    pub stamps: Option<(u32, u32)>,
    /// Options that come last, as they stand on the wire.
    pub options: Vec<u8>,
    /// Data.
    pub payload: Vec<u8>,
}

/// A TCP segment that came from the server.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Its TCP header with options.
    pub header: TcpHeader,
    /// Its data.
    pub payload: Vec<u8>,
    /// IP and TCP checksums are right.
    pub sound: bool,
    peer: Peer,
}

impl Answer {
    /// Its timestamp, if it has one.
    pub fn stamp(&self) -> Option<u32> {
        let mut options = self.header.options_iterator().flatten();
        options.find_map(|option| match option {
            etherparse::TcpOptionElement::Timestamp(own, _) => Some(own),
            _ => None,
        })
    }

    /// Whether it is the second segment of a handshake.
    pub fn is_syn_ack(&self) -> bool {
        self.header.syn && self.header.ack
    }
}

/// Something that carries Ethernet frames.
pub trait Wire: Sync {
    /// Hands one frame to the kernel.
    fn send(&self, frame: &[u8]) -> Result<(), Errno>;
    /// Takes one that the kernel has sent; `None` when there is none at the moment.
    fn receive<'a>(&self, buffer: &'a mut [u8]) -> Result<Option<&'a [u8]>, Errno>;
}

impl Wire for Tap {
    fn send(&self, frame: &[u8]) -> Result<(), Errno> {
        Tap::send(self, frame)
    }

    fn receive<'a>(&self, buffer: &'a mut [u8]) -> Result<Option<&'a [u8]>, Errno> {
        Tap::receive(self, buffer)
    }
}

const ETHERNET_BYTES: usize = 14;

/// A device without a link header.
#[derive(Debug)]
pub struct Tunnel(Tap);

impl Tunnel {
    /// Creates the device inside a namespace; it exists as long as this value.
    pub fn create(netns: &Netns, device: &str) -> error::Result<Tunnel> {
        Tap::create(netns, device, Tun::Packets).map(Tunnel)
    }
}

/// The Ethernet header is taken off, and put on for the reader.
impl Wire for Tunnel {
    fn send(&self, frame: &[u8]) -> Result<(), Errno> {
        self.0.send(&frame[ETHERNET_BYTES..])
    }

    fn receive<'a>(&self, buffer: &'a mut [u8]) -> Result<Option<&'a [u8]>, Errno> {
        let Some(packet) = self.0.receive(&mut buffer[ETHERNET_BYTES..])? else {
            return Ok(None);
        };
        let bytes = packet.len();
        let ipv6 = buffer[ETHERNET_BYTES] >> 4 == 6;
        buffer[..ETHERNET_BYTES].copy_from_slice(&ethernet(if ipv6 { 0x86dd } else { 0x0800 }));
        Ok(Some(&buffer[..ETHERNET_BYTES + bytes]))
    }
}

/// The far end of a wire: any number of hosts made of frames. Its functions panic where the wire fails, as
/// the tests that use them do.
pub struct Raw<'a>(pub &'a dyn Wire);

impl Raw<'_> {
    /// Sends a SYN with MSS 1460, window scale 7 and SACK.
    pub fn syn(&self, peer: Peer, seq: u32) {
        self.send(
            peer,
            Shape::Plain,
            &Segment {
                seq,
                syn: true,
                ..Segment::default()
            },
        );
    }

    /// Sends a segment with right checksums.
    pub fn send(&self, peer: Peer, shape: Shape, segment: &Segment) {
        self.send_frame(&frame(peer, shape, segment));
    }

    /// Sends a frame as it is.
    pub fn send_frame(&self, frame: &[u8]) {
        let end = Instant::now() + PATIENCE;
        while let Err(error) = self.0.send(frame) {
            assert!(
                error == Errno::EAGAIN && Instant::now() < end,
                "wire: {error}"
            );
        }
    }

    /// Takes the next TCP segment for a peer from the wire, if there is one now.
    fn next(&self) -> Option<Answer> {
        let mut buffer = [0; 2048];
        while let Some(frame) = self.0.receive(&mut buffer).unwrap() {
            if let Some(answer) = parse(frame) {
                return Some(answer);
            }
        }
        None
    }

    /// Throws away what the server has sent so far.
    pub fn discard(&self) {
        while self.next().is_some() {}
    }

    /// Waits for the server's next segment to this peer; segments to others are lost.
    pub fn answer(&self, peer: Peer) -> Answer {
        until("an answer on the wire", || {
            self.next().filter(|a| a.peer == peer)
        })
    }

    /// Everything that the server has to say to this peer about what was sent before: the wire and
    /// the kernel keep the order, so it comes before the RST of a closed port.
    pub fn answers_until_now(&self, peer: Peer) -> Vec<Answer> {
        const CLOSED_PORT: u16 = 1;
        let mut marker = peer;
        marker.server.set_port(CLOSED_PORT);
        marker.client.set_port(peer.client.port() + 1);
        self.syn(marker, 0);
        let mut answers = Vec::new();
        loop {
            let answer = until("the marker's RST", || self.next());
            if answer.peer == marker {
                return answers;
            }
            answers.extend(Some(answer).filter(|a| a.peer == peer));
        }
    }

    /// Begins a handshake and stops before its final ACK. Gives the server's sequence number.
    pub fn half_open(&self, peer: Peer) -> u32 {
        self.syn(peer, 0);
        let answer = self.answer(peer);
        assert!(answer.is_syn_ack(), "{answer:?}");
        answer.header.sequence_number
    }

    /// The final ACK of a handshake.
    pub fn final_ack(&self, peer: Peer, server_seq: u32) {
        let ack = Some(server_seq.wrapping_add(1));
        self.send(
            peer,
            Shape::Plain,
            &Segment {
                seq: 1,
                ack,
                ..Segment::default()
            },
        );
    }

    /// Sends an ICMP echo request of so many bytes, in fragments if it does not fit, and gives the
    /// length of the reply.
    pub fn ping(&self, client: IpAddr, bytes: usize) -> usize {
        for frame in echo_request(client, bytes) {
            self.send_frame(&frame);
        }
        let mut received = 0;
        let mut buffer = [0; 2048];
        until("an echo reply", || {
            let frame = self.0.receive(&mut buffer).unwrap()?;
            received += echo_reply_bytes(frame, client);
            (received >= bytes).then_some(received)
        })
    }
}

/// Payload in each but the last fragment: a multiple of 8.
const FRAGMENT_BYTES: usize = 1400;
const ICMP_HEADER_BYTES: usize = 8;

fn echo_request(client: IpAddr, bytes: usize) -> Vec<Vec<u8>> {
    let (IpAddr::V4(client), server) = (client, SERVER_V4) else {
        panic!("IPv4 only");
    };
    let header = etherparse::IcmpEchoHeader { id: 1, seq: 1 };
    let payload = vec![0x5a; bytes];
    let icmp = etherparse::Icmpv4Header::with_checksum(
        etherparse::Icmpv4Type::EchoRequest(header),
        &payload,
    );
    let message = [&icmp.to_bytes()[..], &payload].concat();
    let pieces = message.chunks(FRAGMENT_BYTES).enumerate();
    let last = message.len().div_ceil(FRAGMENT_BYTES) - 1;
    let frame = |(number, piece): (usize, &[u8])| {
        let (from, to) = (client.octets(), server.octets());
        let mut ip = Ipv4Header::new(piece.len() as u16, 64, IpNumber::ICMP, from, to).unwrap();
        ip.identification = 77;
        ip.dont_fragment = false;
        ip.more_fragments = number < last;
        let offset = number * FRAGMENT_BYTES / 8;
        ip.fragment_offset = IpFragOffset::try_new(offset as u16).unwrap();
        ip.header_checksum = ip.calc_header_checksum();
        let mut frame = ethernet(0x0800);
        ip.write(&mut frame).unwrap();
        frame.extend_from_slice(piece);
        frame
    };
    pieces.map(frame).collect()
}

/// Bytes of the echo's payload in one frame to the client.
fn echo_reply_bytes(frame: &[u8], client: IpAddr) -> usize {
    let Ok((ip, rest)) = Ipv4Header::from_slice(frame.get(14..).unwrap_or_default()) else {
        return 0;
    };
    if ip.protocol != IpNumber::ICMP || IpAddr::from(ip.destination) != client {
        return 0;
    }
    let header = if ip.fragment_offset.value() == 0 {
        ICMP_HEADER_BYTES
    } else {
        0
    };
    rest.len() - header
}

fn ethernet(ether_type: u16) -> Vec<u8> {
    [&SERVER_MAC[..], &GATEWAY_MAC, &ether_type.to_be_bytes()].concat()
}

/// The frame of a segment, with right checksums.
pub fn frame(peer: Peer, shape: Shape, segment: &Segment) -> Vec<u8> {
    let tcp = tcp_header(peer, segment);
    let builder = PacketBuilder::ethernet2(GATEWAY_MAC, SERVER_MAC);
    let ip = ip_headers(peer, shape == Shape::Options);
    let mut frame = Vec::new();
    let written = match shape {
        Shape::Vlan | Shape::Priority => {
            let number = if shape == Shape::Vlan { 7 } else { 0 };
            let vlan = etherparse::VlanId::try_new(number).unwrap();
            builder
                .single_vlan(vlan)
                .ip(ip)
                .tcp_header(tcp)
                .write(&mut frame, &segment.payload)
        }
        _ => builder
            .ip(ip)
            .tcp_header(tcp)
            .write(&mut frame, &segment.payload),
    };
    written.unwrap();
    frame
}

fn tcp_header(peer: Peer, segment: &Segment) -> TcpHeader {
    use etherparse::TcpOptionElement::{
        MaximumSegmentSize, Noop, SelectiveAcknowledgementPermitted, Timestamp, WindowScale,
    };
    let mut tcp = TcpHeader::new(peer.client.port(), peer.server.port(), segment.seq, 64_240);
    (tcp.syn, tcp.fin, tcp.rst) = (segment.syn, segment.fin, segment.rst);
    tcp.ack = segment.ack.is_some();
    tcp.acknowledgment_number = segment.ack.unwrap_or(0);
    let mut options = Vec::new();
    if segment.syn {
        options.extend([
            MaximumSegmentSize(1460),
            SelectiveAcknowledgementPermitted,
            Noop,
            WindowScale(7),
        ]);
    }
    if let Some((own, echo)) = segment.stamps {
        options.extend([Noop, Noop, Timestamp(own, echo)]);
    }
    if segment.syn && !segment.options.is_empty() {
        // Else the padding would end the options here.
        options.extend([Noop, Noop]);
    }
    tcp.set_options(&options).unwrap();
    if !segment.options.is_empty() {
        let all = [tcp.options.as_slice(), &segment.options].concat();
        tcp.set_options_raw(&all).unwrap();
    }
    tcp
}

fn ip_headers(peer: Peer, options: bool) -> IpHeaders {
    match (peer.client.ip(), peer.server.ip()) {
        (IpAddr::V4(client), IpAddr::V4(server)) => {
            let (from, to) = (client.octets(), server.octets());
            let mut ip = Ipv4Header::new(0, 64, IpNumber::TCP, from, to).unwrap();
            if options {
                const ROUTER_ALERT: [u8; 4] = [148, 4, 0, 0];
                ip.options = Ipv4Options::from(ROUTER_ALERT);
            }
            IpHeaders::Ipv4(ip, Ipv4Extensions::default())
        }
        (IpAddr::V6(client), IpAddr::V6(server)) => {
            let ip = Ipv6Header {
                hop_limit: 64,
                source: client.octets(),
                destination: server.octets(),
                next_header: IpNumber::TCP,
                ..Ipv6Header::default()
            };
            let mut extensions = Ipv6Extensions::default();
            if options {
                const PAD_N: [u8; 6] = [1, 4, 0, 0, 0, 0];
                let header = Ipv6RawExtHeader::new_raw(IpNumber::TCP, &PAD_N).unwrap();
                extensions.destination_options = Some(header);
            }
            IpHeaders::Ipv6(ip, extensions)
        }
        families => panic!("one family, not {families:?}"),
    }
}

fn parse(frame: &[u8]) -> Option<Answer> {
    let packet = SlicedPacket::from_ethernet(frame).ok()?;
    let TransportSlice::Tcp(tcp) = packet.transport? else {
        return None;
    };
    let header = tcp.to_header();
    let payload = tcp.payload();
    let (from, to, sound): (IpAddr, IpAddr, bool) = match packet.net? {
        etherparse::NetSlice::Ipv4(ip) => {
            let ip = ip.header().to_header();
            let sum = header.calc_checksum_ipv4(&ip, payload).ok()?;
            let sound = ip.header_checksum == ip.calc_header_checksum() && sum == header.checksum;
            (ip.source.into(), ip.destination.into(), sound)
        }
        etherparse::NetSlice::Ipv6(ip) => {
            let ip = ip.header().to_header();
            let sum = header.calc_checksum_ipv6(&ip, payload).ok()?;
            (
                ip.source.into(),
                ip.destination.into(),
                sum == header.checksum,
            )
        }
        _ => return None,
    };
    let peer = Peer {
        client: (to, header.destination_port).into(),
        server: (from, header.source_port).into(),
    };
    Some(Answer {
        payload: payload.to_vec(),
        header,
        sound,
        peer,
    })
}
