//! Captures of every format, whole, cut and mutated.

mod common;

use std::io::{self, Cursor, Read, Write};
use std::net::Ipv4Addr;

use weir_testbed::seed::seed;
use weir_wire::{
    Capture, Endpoint, Error, Frame, Packet, Segment, Writer, compose, decompressed, flag,
};

const START_NS: u64 = 1_700_000_000_123_456_789;

fn segment(number: u32) -> Segment {
    let end = |last, port| Endpoint {
        address: Ipv4Addr::new(192, 0, 2, last).to_ipv6_mapped(),
        port,
    };
    Segment {
        source: end(1, 40_000),
        destination: end(2, 80),
        seq: number * 100,
        ack: 1,
        flags: flag::ACK,
        window: u16::MAX,
        payload: 100,
    }
}

fn packets(count: u32) -> Vec<Packet> {
    let packet = |number| Packet {
        at_ns: START_NS + u64::from(number) * 1000,
        frame: Frame::Tcp(segment(number)),
    };
    (0..count).map(packet).collect()
}

/// pcap with times in ns.
fn pcap(count: u32) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), 262_144).unwrap();
    for number in 0..count {
        let at_ns = START_NS + u64::from(number) * 1000;
        writer.frame(at_ns, &compose(&segment(number))).unwrap();
    }
    writer.into_inner()
}

/// pcapng in one byte order, with times in ns.
fn pcapng(count: u32, big: bool) -> Vec<u8> {
    let word = |value: u32| {
        if big {
            value.to_be_bytes()
        } else {
            value.to_le_bytes()
        }
    };
    let short = |value: u16| {
        if big {
            value.to_be_bytes()
        } else {
            value.to_le_bytes()
        }
    };
    let block = |kind: u32, body: &[u8]| {
        let len = word(body.len() as u32 + 12);
        [&word(kind), &len, body, &len].map(<[u8]>::to_vec).concat()
    };
    let section = [
        word(0x1a2b_3c4d).to_vec(),
        short(1).to_vec(),
        short(0).to_vec(),
        vec![0xff; 8],
    ]
    .concat();
    let resolution = [
        short(9).to_vec(),
        short(1).to_vec(),
        vec![9, 0, 0, 0],
        vec![0; 4],
    ]
    .concat();
    let interface = [
        short(1).to_vec(),
        short(0).to_vec(),
        word(0).to_vec(),
        resolution,
    ]
    .concat();
    let mut all = [block(0x0a0d_0d0a, &section), block(1, &interface)].concat();
    for number in 0..count {
        let at_ns = START_NS + u64::from(number) * 1000;
        let frame = compose(&segment(number));
        let len = frame.len() as u32;
        let head = [0, (at_ns >> 32) as u32, at_ns as u32, len, len]
            .map(word)
            .concat();
        let padding = vec![0; frame.len().next_multiple_of(4) - frame.len()];
        all.extend(block(6, &[head, frame, padding].concat()));
    }
    all
}

fn read(bytes: &[u8]) -> (Vec<Packet>, Option<Error>) {
    read_stream(Cursor::new(bytes.to_vec()))
}

fn read_stream(stream: impl Read + Send + 'static) -> (Vec<Packet>, Option<Error>) {
    let opened = decompressed(stream)
        .map_err(Error::Io)
        .and_then(Capture::new);
    match opened {
        Ok(capture) => common::all_of(capture),
        Err(error) => (Vec::new(), Some(error)),
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
}

#[test]
fn every_format_has_the_same_packets() {
    // More than a buffer of them.
    let count = 4000;
    let plain = pcap(count);
    let (half, rest) = plain.split_at(plain.len() / 2);
    let to_skip = [0x53, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3];
    let rows = [
        ("pcap", plain.clone()),
        ("pcapng", pcapng(count, false)),
        ("pcapng, big-endian", pcapng(count, true)),
        ("gzip", gzip(&plain)),
        ("gzip, two members", [gzip(half), gzip(rest)].concat()),
        ("zstd", zstd(&plain)),
        (
            "zstd, two frames and one to skip",
            [&zstd(half)[..], &to_skip, &zstd(rest)].concat(),
        ),
        ("pcapng in gzip", gzip(&pcapng(count, false))),
    ];
    for (name, bytes) in rows {
        let (found, error) = read(&bytes);
        assert!(error.is_none(), "{name}: {error:?}");
        assert!(found == packets(count), "{name}: {} packets", found.len());
    }
}

/// A stream that gives a few bytes at a time, as a pipe may.
struct Trickle(Cursor<Vec<u8>>);

impl Read for Trickle {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = buffer.len().min(7);
        self.0.read(&mut buffer[..len])
    }
}

#[test]
fn a_pipe_that_trickles_is_read_whole() {
    for bytes in [pcap(1000), pcapng(1000, false), gzip(&pcap(1000))] {
        let (found, error) = read_stream(Trickle(Cursor::new(bytes)));
        assert!(error.is_none(), "{error:?}");
        assert!(found == packets(1000));
    }
}

#[test]
fn a_capture_that_is_cut_has_the_packets_before_the_cut() {
    for (name, bytes) in [("pcap", pcap(20)), ("pcapng", pcapng(20, false))] {
        for cut in 1..bytes.len() {
            let (found, error) = read(&bytes[..cut]);
            assert!(found == packets(20)[..found.len()], "{name} cut at {cut}");
            match error {
                None => {}
                Some(Error::Cut { packets }) => {
                    assert_eq!(packets, found.len() as u64, "{name} cut at {cut}")
                }
                // Too short for a magic number.
                Some(Error::NotACapture) => assert!(cut < 4, "{name} cut at {cut}"),
                Some(other) => panic!("{name} cut at {cut}: {other}"),
            }
        }
    }
    let whole = gzip(&pcap(4000));
    let (found, error) = read(&whole[..whole.len() - 100]);
    assert!(matches!(error, Some(Error::Cut { .. })), "{error:?}");
    assert!(!found.is_empty());
}

#[test]
fn what_is_no_capture_is_named() {
    for bytes in [&b""[..], b"hello, world: this is a text", &[0; 100]] {
        let (_, error) = read(bytes);
        assert!(matches!(error, Some(Error::NotACapture)), "{error:?}");
    }
    let mut wifi = pcap(3);
    wifi[20] = 105;
    assert!(matches!(read(&wifi).1, Some(Error::LinkType(105))));
    let mut endless = pcap(3);
    endless[24 + 8..24 + 12].fill(0xff);
    let (_, error) = read(&endless);
    assert!(
        matches!(error, Some(Error::Malformed { packets: 0, at: 24 })),
        "{error:?}"
    );
}

#[test]
fn a_fault_of_the_stream_is_told_as_it_is() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("the disk is on fire"))
        }
    }
    let bytes = pcap(4000);
    let (found, error) = read_stream(Cursor::new(bytes).chain(Broken));
    assert!(found == packets(4000));
    assert!(error.unwrap().to_string().contains("the disk is on fire"));
}

/// Times of pcapng in other units, and an offset.
#[test]
fn units_of_time_are_read() {
    let mut bytes = pcapng(1, false);
    // if_tsresol of 2^-30 s; the time is then in these units.
    let at = 28 + 8 + 8 + 4;
    assert_eq!(bytes[at], 9);
    bytes[at] = 0x80 | 30;
    let seconds = 1_700_000_000_u64;
    let units = seconds << 30 | 1 << 29;
    let packet = 28 + 32 + 8 + 4;
    bytes[packet..packet + 4].copy_from_slice(&((units >> 32) as u32).to_le_bytes());
    bytes[packet + 4..packet + 8].copy_from_slice(&(units as u32).to_le_bytes());
    let (found, error) = read(&bytes);
    assert!(error.is_none(), "{error:?}");
    assert_eq!(found[0].at_ns, seconds * 1_000_000_000 + 500_000_000);
}

/// Reading ends, and does not panic, whatever the bytes.
#[test]
fn mutated_captures_are_read_to_an_end() {
    let mut random = fastrand::Rng::with_seed(seed());
    let originals = [
        pcap(30),
        pcapng(30, false),
        pcapng(30, true),
        gzip(&pcap(30)),
        zstd(&pcap(30)),
    ];
    for _ in 0..500 {
        let mut bytes = originals[random.usize(..originals.len())].clone();
        for _ in 0..random.usize(1..20) {
            let at = random.usize(..bytes.len());
            match random.u8(0..4) {
                0 => bytes[at] = random.u8(..),
                1 => bytes[at] ^= 1 << random.u8(0..8),
                2 => bytes.truncate(at.max(1)),
                _ => {
                    let end = (at + random.usize(1..40)).min(bytes.len());
                    let part = bytes[at..end].to_vec();
                    bytes.splice(at..at, part);
                }
            }
        }
        read(&bytes);
    }
}
