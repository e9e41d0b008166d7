//! Packets that a capture has twice, beside packets that were sent again.

use std::io::Cursor;
use std::net::{Ipv4Addr, Ipv6Addr};

use weir_wire::{Capture, Endpoint, Frame, Segment, compose, flag};

const MS: u64 = 1_000_000;
const ETHERNET_BYTES: usize = 14;
const ETHERNET: u32 = 1;
const COOKED: u32 = 113;
const COOKED_2: u32 = 276;
/// Packet types of cooked captures.
const INCOMING: u8 = 0;
const OUTGOING: u8 = 4;

fn segment(is_v6: bool, payload: u32) -> Segment {
    let end = |last: u8, port| Endpoint {
        address: match is_v6 {
            true => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last.into()),
            false => Ipv4Addr::new(192, 0, 2, last).to_ipv6_mapped(),
        },
        port,
    };
    Segment {
        source: end(1, 40_000),
        destination: end(2, 80),
        seq: 1000,
        ack: 1,
        flags: flag::ACK,
        window: 500,
        payload,
    }
}

/// An IP packet with an identification (IPv4) and a lifetime, which a router changes.
fn ip(segment: &Segment, identification: u16, ttl: u8) -> Vec<u8> {
    let mut packet = compose(segment)[ETHERNET_BYTES..].to_vec();
    match packet[0] >> 4 {
        4 => {
            packet[4..6].copy_from_slice(&identification.to_be_bytes());
            packet[8] = ttl;
        }
        _ => packet[7] = ttl,
    }
    packet
}

/// A frame of a link. The interface counts in cooked captures of the second version alone, the way in both.
fn frame(link: u32, interface: u8, way: u8, ip: &[u8]) -> Vec<u8> {
    let ethertype: [u8; 2] = match ip[0] >> 4 {
        4 => [8, 0],
        _ => [0x86, 0xdd],
    };
    let head = match link {
        COOKED => [&[0, way, 0, 1, 0, 6][..], &[interface; 8], &ethertype].concat(),
        COOKED_2 => {
            let interface = [0, 0, 0, interface];
            [
                &ethertype[..],
                &[0; 2],
                &interface,
                &[0, 1, way, 6],
                &[interface[3]; 8],
            ]
            .concat()
        }
        _ => [&[interface; 12][..], &ethertype].concat(),
    };
    [&head, ip].concat()
}

/// pcap, with times in ns.
fn read(link: u32, frames: &[(u64, Vec<u8>)]) -> Vec<Frame> {
    let mut bytes = [0xa1b2_3c4d_u32, 0x0004_0002, 0, 0, 262_144, link]
        .map(u32::to_le_bytes)
        .concat();
    for (at_ns, frame) in frames {
        let len = frame.len() as u32;
        let head = [
            (at_ns / 1_000_000_000) as u32,
            (at_ns % 1_000_000_000) as u32,
            len,
            len,
        ];
        bytes.extend(head.map(u32::to_le_bytes).concat());
        bytes.extend(frame);
    }
    let mut capture = Capture::new(Cursor::new(bytes)).unwrap();
    std::iter::from_fn(|| capture.next_packet().unwrap())
        .map(|packet| packet.frame)
        .collect()
}

#[test]
fn a_router_on_all_interfaces_has_each_packet_once() {
    for is_v6 in [false, true] {
        for payload in [0, 100] {
            for (link, held) in [(COOKED, 0), (COOKED_2, 0), (COOKED, 400), (COOKED_2, 400)] {
                let segment = segment(is_v6, payload);
                let (came, went) = (ip(&segment, 7, 64), ip(&segment, 7, 63));
                let found = read(
                    link,
                    &[
                        (0, frame(link, 2, INCOMING, &came)),
                        (held * MS + 7000, frame(link, 3, OUTGOING, &went)),
                    ],
                );
                assert_eq!(found, [Frame::Tcp(segment), Frame::Copy], "{link}, {is_v6}");
            }
        }
    }
}

/// It comes in again, as it does where the router has dropped it, or the receiver's answer is lost; and goes out again.
#[test]
fn a_router_on_all_interfaces_has_a_segment_that_is_sent_again_twice() {
    for link in [COOKED, COOKED_2] {
        // IPv6 without timestamps: no bit differs.
        let segment = segment(true, 100);
        let (came, went) = (ip(&segment, 0, 64), ip(&segment, 0, 63));
        let rows = [
            (0, 2, INCOMING, &came),
            (200, 2, INCOMING, &came),
            (201, 3, OUTGOING, &went),
        ];
        let frames =
            rows.map(|(ms, interface, way, ip)| (ms * MS, frame(link, interface, way, ip)));
        let sent = Frame::Tcp(segment);
        assert_eq!(read(link, &frames), [sent, sent, Frame::Copy]);
    }
}

#[test]
fn a_bridge_on_all_interfaces_has_each_packet_once() {
    let segment = segment(false, 100);
    let packet = ip(&segment, 7, 64);
    for link in [COOKED, COOKED_2] {
        let rows = [(0, 2, INCOMING), (5, 4, INCOMING), (9, 3, OUTGOING)];
        let frames =
            rows.map(|(us, interface, way)| (us * 1000, frame(link, interface, way, &packet)));
        assert_eq!(
            read(link, &frames),
            [Frame::Tcp(segment), Frame::Copy, Frame::Copy]
        );
    }
}

#[test]
fn a_mirror_port_has_each_packet_once() {
    let segment = segment(false, 100);
    let frames = [0, 20_000].map(|at_ns| (at_ns, frame(ETHERNET, 1, 0, &ip(&segment, 7, 64))));
    assert_eq!(read(ETHERNET, &frames), [Frame::Tcp(segment), Frame::Copy]);
}

/// A router behind a mirror port, or in a virtual switch: the packet again, with one hop less.
#[test]
fn both_sides_of_a_router_on_one_interface_have_each_packet_once() {
    for is_v6 in [false, true] {
        let segment = segment(is_v6, 100);
        let at = |ms, ttl| (ms * MS, frame(ETHERNET, 1, 0, &ip(&segment, 7, ttl)));
        let found = read(ETHERNET, &[at(0, 64), at(8, 63), at(250, 64), at(258, 63)]);
        let sent = Frame::Tcp(segment);
        assert_eq!(found, [sent, Frame::Copy, sent, Frame::Copy]);
    }
}

/// Linux sends a SYN/ACK twice at once, without an identification, where its time-out meets the SYN that comes again.
#[test]
fn what_has_no_identification_is_a_copy_only_where_others_are_repeated() {
    let at = |us: u64, identification, segment: &Segment| {
        let ip = ip(segment, identification, 64);
        (us * 1000, frame(ETHERNET, 1, 0, &ip))
    };
    let syn = Segment {
        flags: flag::SYN,
        ack: 0,
        ..segment(false, 0)
    };
    let syn_ack = Segment {
        flags: flag::SYN | flag::ACK,
        ..segment(false, 0)
    };
    let twice = [at(0, 9, &syn), at(20, 0, &syn_ack), at(300, 0, &syn_ack)];
    let sent = [syn, syn_ack, syn_ack].map(Frame::Tcp);
    assert_eq!(read(ETHERNET, &twice), sent);
    let mirrored = [
        at(0, 9, &syn),
        at(10, 9, &syn),
        at(20, 0, &syn_ack),
        at(30, 0, &syn_ack),
    ];
    let [syn, syn_ack, _] = sent;
    assert_eq!(
        read(ETHERNET, &mirrored),
        [syn, Frame::Copy, syn_ack, Frame::Copy]
    );
}

/// A sender has an identification for each packet.
#[test]
fn what_is_sent_again_is_no_copy() {
    let data = segment(false, 100);
    let at = |us: u64, identification, segment: &Segment| {
        (
            us * 1000,
            frame(ETHERNET, 1, 0, &ip(segment, identification, 64)),
        )
    };
    let sent = [Frame::Tcp(data); 2];
    assert_eq!(read(ETHERNET, &[at(0, 7, &data), at(20, 8, &data)]), sent);
    assert_eq!(read(ETHERNET, &[at(0, 0, &data), at(20, 0, &data)]), sent);
    assert_eq!(read(ETHERNET, &[at(0, 7, &data), at(1200, 7, &data)]), sent);
    // A router that has held it for longer than any does.
    let late = [
        (0, frame(COOKED, 2, INCOMING, &ip(&data, 7, 64))),
        (1100 * MS, frame(COOKED, 3, OUTGOING, &ip(&data, 7, 63))),
    ];
    assert_eq!(read(COOKED, &late), sent);
    // Duplicate acknowledgements.
    let ack = segment(false, 0);
    let acks = [Frame::Tcp(ack); 2];
    assert_eq!(read(ETHERNET, &[at(0, 0, &ack), at(20, 0, &ack)]), acks);
}
