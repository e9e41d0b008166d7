//! Frames of every kind, against what they were composed of.

use std::net::{Ipv4Addr, Ipv6Addr};

use weir_wire::{Endpoint, Frame, Link, Segment, compose, flag, parse};

fn v4(last: u8, port: u16) -> Endpoint {
    let address = Ipv4Addr::new(192, 0, 2, last).to_ipv6_mapped();
    Endpoint { address, port }
}

fn v6(last: u16, port: u16) -> Endpoint {
    let address = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last);
    Endpoint { address, port }
}

fn segments() -> [Segment; 2] {
    let of = |source, destination| Segment {
        source,
        destination,
        seq: 0xffff_fff0,
        ack: 77,
        flags: flag::ACK | flag::FIN,
        window: u16::MAX,
        payload: 1000,
    };
    [of(v4(1, 40_000), v4(2, 80)), of(v6(1, 40_000), v6(2, 443))]
}

/// Behind the Ethernet header of a composed frame.
fn ip(segment: &Segment) -> Vec<u8> {
    compose(segment)[14..].to_vec()
}

#[test]
fn a_composed_frame_parses_as_its_segment() {
    for segment in segments() {
        let frame = compose(&segment);
        assert_eq!(
            parse(Link::Ethernet, &frame, frame.len() as u32),
            Frame::Tcp(segment)
        );
    }
}

#[test]
fn the_length_of_data_survives_any_snap_length_that_keeps_the_flags() {
    for segment in segments() {
        let frame = compose(&segment);
        let flags_end = frame.len() - 1000 - 20 + 14;
        for snap_len in 0..frame.len() {
            let found = parse(Link::Ethernet, &frame[..snap_len], frame.len() as u32);
            match found {
                Frame::Tcp(found) => {
                    assert_eq!(found, segment);
                    assert!(snap_len >= flags_end);
                }
                // So short that nobody knows what it is.
                Frame::Other => assert!(snap_len < 14, "{snap_len}"),
                other => {
                    assert_eq!(other, Frame::Cut, "{snap_len}");
                    assert!(snap_len < flags_end);
                }
            }
        }
    }
}

#[test]
fn padding_of_short_frames_is_no_data() {
    let segment = Segment {
        payload: 0,
        ..segments()[0]
    };
    let mut frame = compose(&segment);
    frame.resize(60, 0);
    assert_eq!(parse(Link::Ethernet, &frame, 60), Frame::Tcp(segment));
}

#[test]
fn ipv6_extension_headers_are_passed() {
    let segment = segments()[1];
    let mut packet = ip(&segment);
    // Hop-by-hop options, then destination options, 8 bytes each, with padding (RFC 8200).
    let extensions = [60, 0, 1, 4, 0, 0, 0, 0, 6, 0, 1, 4, 0, 0, 0, 0];
    packet[6] = 0;
    let payload_len = u16::from_be_bytes([packet[4], packet[5]]) + extensions.len() as u16;
    packet[4..6].copy_from_slice(&payload_len.to_be_bytes());
    packet.splice(40..40, extensions);
    assert_eq!(
        parse(Link::Ip, &packet, packet.len() as u32),
        Frame::Tcp(segment)
    );
}

#[test]
fn ipv4_options_are_passed() {
    let segment = segments()[0];
    let mut packet = ip(&segment);
    packet[0] = 0x46;
    let total_len = u16::from_be_bytes([packet[2], packet[3]]) + 4;
    packet[2..4].copy_from_slice(&total_len.to_be_bytes());
    packet.splice(20..20, [1; 4]);
    assert_eq!(
        parse(Link::Ip, &packet, packet.len() as u32),
        Frame::Tcp(segment)
    );
}

#[test]
fn only_the_first_fragment_has_a_tcp_header() {
    let [of_v4, of_v6] = segments();
    let mut first = ip(&of_v4);
    first[6] = 0x20;
    assert_eq!(
        parse(Link::Ip, &first, first.len() as u32),
        Frame::Tcp(of_v4)
    );
    let mut later = first.clone();
    later[7] = 100;
    assert_eq!(parse(Link::Ip, &later, later.len() as u32), Frame::Fragment);

    let mut packet = ip(&of_v6);
    packet[6] = 44;
    let payload_len = u16::from_be_bytes([packet[4], packet[5]]) + 8;
    packet[4..6].copy_from_slice(&payload_len.to_be_bytes());
    packet.splice(40..40, [6, 0, 0, 1, 0, 0, 0, 9]);
    assert_eq!(
        parse(Link::Ip, &packet, packet.len() as u32),
        Frame::Tcp(of_v6)
    );
    packet[42..44].copy_from_slice(&0x0101_u16.to_be_bytes());
    assert_eq!(
        parse(Link::Ip, &packet, packet.len() as u32),
        Frame::Fragment
    );
}

#[test]
fn a_packet_too_long_for_its_length_field_has_the_length_of_its_frame() {
    for segment in segments() {
        let mut packet = ip(&segment);
        match packet[0] >> 4 {
            4 => packet[2..4].fill(0),
            _ => packet[4..6].fill(0),
        }
        let wire_len = packet.len() as u32 + 200_000;
        let longer = Segment {
            payload: 201_000,
            ..segment
        };
        assert_eq!(parse(Link::Ip, &packet, wire_len), Frame::Tcp(longer));
    }
}

#[test]
fn lengths_that_contradict_each_other_are_malformed() {
    let packet = ip(&segments()[0]);
    let len = packet.len() as u32;
    let rows: [(&str, usize, u8); 3] = [
        ("IP header of 16 bytes", 0, 0x44),
        ("TCP header of 16 bytes", 32, 0x40),
        ("TCP header longer than the packet", 3, 44),
    ];
    for (name, at, value) in rows {
        let mut packet = packet.clone();
        packet[at] = value;
        if name.starts_with("TCP header longer") {
            packet[2] = 0;
            packet[32] = 0xf0;
        }
        assert_eq!(parse(Link::Ip, &packet, len), Frame::Malformed, "{name}");
    }
}
