//! Blocks of pcapng that are not enhanced packet blocks: each is read, passed over, or counted.

mod common;

use std::io::{Cursor, Read};

use weir_wire::{Capture, Endpoint, Error, Frame, Packet, Segment, compose, flag};

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const PACKET: u32 = 2;
const ENHANCED_PACKET: u32 = 6;
const SECRETS: u32 = 10;
const ETHERNET: u16 = 1;
const WIFI: u16 = 105;

/// Writes in one byte order.
#[derive(Clone, Copy)]
struct Order {
    is_big: bool,
}

const BOTH: [Order; 2] = [Order { is_big: false }, Order { is_big: true }];

impl Order {
    fn word(self, value: u32) -> [u8; 4] {
        match self.is_big {
            true => value.to_be_bytes(),
            false => value.to_le_bytes(),
        }
    }

    fn short(self, value: u16) -> [u8; 2] {
        match self.is_big {
            true => value.to_be_bytes(),
            false => value.to_le_bytes(),
        }
    }

    fn block(self, kind: u32, body: &[u8]) -> Vec<u8> {
        let padding = vec![0; body.len().next_multiple_of(4) - body.len()];
        let len = self.word((body.len() + padding.len()) as u32 + 12);
        [&self.word(kind), &len, body, &padding, &len].concat()
    }

    /// A section and its interfaces.
    fn head(self, links: &[u16]) -> Vec<u8> {
        let section = [
            &self.word(0x1a2b_3c4d)[..],
            &self.short(1),
            &self.short(0),
            &[0xff; 8],
        ];
        let mut head = self.block(SECTION_HEADER, &section.concat());
        for &link in links {
            head.extend(self.block(
                INTERFACE,
                &[self.short(link), [0; 2], [0; 2], [0; 2]].concat(),
            ));
        }
        head
    }

    /// A packet in a block of the current type.
    fn enhanced(self, interface: u32, number: u32) -> Vec<u8> {
        let frame = compose(&segment(number));
        let len = frame.len() as u32;
        let head = [interface, 0, number, len, len]
            .map(|word| self.word(word))
            .concat();
        self.block(ENHANCED_PACKET, &[head, frame].concat())
    }

    /// A packet in a block of the type that old captures have.
    fn old(self, number: u32) -> Vec<u8> {
        let frame = compose(&segment(number));
        let len = frame.len() as u32;
        let words = [0, number, len, len].map(|word| self.word(word)).concat();
        let (interface, drops) = (self.short(0), self.short(u16::MAX));
        self.block(PACKET, &[&interface, &drops, &words[..], &frame].concat())
    }
}

fn segment(number: u32) -> Segment {
    let end = |last, port| Endpoint {
        address: std::net::Ipv4Addr::new(192, 0, 2, last).to_ipv6_mapped(),
        port,
    };
    Segment {
        source: end(1, 40_000),
        destination: end(2, 80),
        seq: number * 100,
        ack: 1,
        flags: flag::ACK,
        window: 500,
        payload: 100,
    }
}

fn expected(number: u32) -> Packet {
    Packet {
        at_ns: u64::from(number) * 1000,
        frame: Frame::Tcp(segment(number)),
    }
}

fn read(stream: impl Read + Send + 'static) -> (Vec<Packet>, Option<Error>) {
    common::all_of(Capture::new(stream).unwrap())
}

fn read_bytes(bytes: Vec<u8>) -> (Vec<Packet>, Option<Error>) {
    read(Cursor::new(bytes))
}

#[test]
fn packets_in_blocks_of_the_old_type_are_read() {
    for order in BOTH {
        let mut bytes = order.head(&[ETHERNET]);
        (0..16).for_each(|number| bytes.extend(order.old(number)));
        let (found, error) = read_bytes(bytes);
        assert!(error.is_none(), "{error:?}");
        assert_eq!(found, (0..16).map(expected).collect::<Vec<_>>());
    }
}

#[test]
fn a_block_of_the_old_type_that_contradicts_itself_is_malformed() {
    for order in BOTH {
        let mut longer = order.old(1);
        let captured = 8 + 12;
        longer[captured..captured + 4].copy_from_slice(&order.word(1 << 20));
        let short = order.block(PACKET, &[0; 16]);
        let of_no_interface = order.block(PACKET, &[9; 20]);
        for block in [longer, short, of_no_interface] {
            let (found, error) = read_bytes([order.head(&[ETHERNET]), block].concat());
            assert!(error.is_none(), "{error:?}");
            assert_eq!(found[0].frame, Frame::Malformed);
        }
    }
}

/// A stream of so many bytes at a time.
struct Slow(Cursor<Vec<u8>>);

impl Read for Slow {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let len = buffer.len().min(10_007);
        self.0.read(&mut buffer[..len])
    }
}

#[test]
fn secrets_of_several_mib_are_passed_over() {
    for order in BOTH {
        let keys = vec![b'k'; 9 << 20];
        let body = [
            &order.word(0x544c_534b)[..],
            &order.word(keys.len() as u32),
            &keys,
        ]
        .concat();
        let bytes = [
            order.head(&[ETHERNET]),
            order.enhanced(0, 1),
            order.block(SECRETS, &body),
            order.enhanced(0, 2),
            order.block(SECRETS, &body),
        ]
        .concat();
        let whole = vec![expected(1), expected(2)];
        let (found, error) = read_bytes(bytes.clone());
        assert!(error.is_none() && found == whole, "{error:?}");
        let (found, error) = read(Slow(Cursor::new(bytes.clone())));
        assert!(error.is_none() && found == whole, "{error:?}");
        // Cut within the last one.
        let (found, error) = read_bytes(bytes[..bytes.len() - 5_000_000].to_vec());
        assert!(
            matches!(error, Some(Error::Cut { packets: 2 })),
            "{error:?}"
        );
        assert_eq!(found, whole);
    }
}

#[test]
fn blocks_of_unknown_kinds_are_counted_whatever_their_length() {
    for order in BOTH {
        for len in [8, 1 << 20] {
            let bytes = [
                order.head(&[ETHERNET]),
                order.block(0x201, &vec![7; len]),
                order.enhanced(0, 2),
            ];
            let (found, error) = read_bytes(bytes.concat());
            assert!(error.is_none(), "{error:?}");
            assert_eq!(found[0].frame, Frame::UnknownBlock);
            assert_eq!(found[1..], [expected(2)]);
        }
        // Names and what programs keep for themselves hold no packet.
        let names = order.block(4, &[0; 4]);
        let custom = order.block(0xbad, &[0; 8]);
        let bytes = [order.head(&[ETHERNET]), names, custom, order.enhanced(0, 2)];
        let (found, error) = read_bytes(bytes.concat());
        assert!(error.is_none(), "{error:?}");
        assert_eq!(found, [expected(2)]);
    }
}

#[test]
fn a_capture_of_which_nothing_can_be_read_says_so() {
    for order in BOTH {
        let unknown = [order.head(&[ETHERNET]), order.block(0x201, &[7; 8])];
        let (_, error) = read_bytes(unknown.concat());
        assert!(matches!(error, Some(Error::Blocks(0x201))), "{error:?}");

        let radio = [
            order.head(&[WIFI]),
            order.enhanced(0, 1),
            order.enhanced(0, 2),
        ];
        let (found, error) = read_bytes(radio.concat());
        assert!(matches!(error, Some(Error::LinkType(105))), "{error:?}");
        assert_eq!(found.len(), 2);

        // Of two interfaces, one is read.
        let both = [
            order.head(&[WIFI, ETHERNET]),
            order.enhanced(0, 1),
            order.enhanced(1, 2),
        ];
        let (found, error) = read_bytes(both.concat());
        assert!(error.is_none(), "{error:?}");
        assert_eq!(found[0].frame, Frame::UnknownLink);
        assert_eq!(found[1], expected(2));

        // Without any packet there is nothing to say.
        let (found, error) = read_bytes(order.head(&[ETHERNET]));
        assert!(error.is_none() && found.is_empty(), "{error:?}");
    }
}
