//! Frames as the guard reads them: the C core against its Rust model, on one input.

use weir_kernel::testing::pure;
use weir_models::aqm::control::control_of_packet;
use weir_models::{headers, packet};

const ETHERNET_BYTES: usize = 14;
/// The C side of headers.h reads an IPv6 header at least; its caller makes sure of it.
const IP_BYTES_MIN: usize = 40;
const ETHERTYPES: [u16; 2] = [0x0800, 0x86dd];

/// The bytes are an Ethernet frame.
pub fn run(data: &[u8]) {
    for ethertype in ETHERTYPES {
        let model = packet::parse(data, ETHERNET_BYTES, ethertype);
        assert_eq!(pure::parse(data, ETHERNET_BYTES as u32, ethertype), model);
        if let Some(model) = model {
            answer(data, &model);
        }
    }
    let ip = data.get(ETHERNET_BYTES..).unwrap_or_default();
    assert_eq!(pure::control(ip).0, control_of_packet(ip));
    if ip.len() >= IP_BYTES_MIN {
        for v6 in [false, true] {
            assert_eq!(pure::find_headers(ip, v6), headers::find(ip, v6));
            assert_eq!(pure::is_unusual(ip, v6), headers::is_unusual(ip, v6));
        }
    }
    pure::options(data);
}

/// A RST in the frame's place: a whole packet the other way, with sound sums.
fn answer(frame: &[u8], read: &packet::Packet) {
    let ip_bytes = if read.v6 { 40 } else { 20 };
    let len = ETHERNET_BYTES + ip_bytes + usize::from(read.header_len);
    let mut answer = frame.to_vec();
    answer.resize(len, 0);
    assert!(pure::answer_rst(
        &mut answer,
        read.v6,
        7,
        9,
        read.header_len
    ));
    let ethertype = ETHERTYPES[usize::from(read.v6)];
    let back = packet::parse(&answer, ETHERNET_BYTES, ethertype).expect("an answer is a packet");
    assert_eq!(back.source_port, read.destination_port);
    assert_eq!(back.destination_port, read.source_port);
    assert_eq!(back.tcp_len, u32::from(read.header_len));
    if packet::answerable(frame, ETHERNET_BYTES, read) {
        assert!(packet::answerable(&answer, ETHERNET_BYTES, &back));
    }
}
