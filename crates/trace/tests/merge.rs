//! Several captures as one.

use std::io::Cursor;
use std::net::Ipv4Addr;

use weir_trace::{Merge, Options, Report, Source, Tracker};
use weir_wire::{Capture, Endpoint, Error, Segment, Writer, compose, flag};

const START_NS: u64 = 1_700_000_000_000_000_000;
const MS: u64 = 1_000_000;

/// Time, ms; whether the client sends it; the segment's flags, sequence number and bytes of data.
type Row = (u64, bool, u8, u32, u32);

/// Connections of which every third loses its SYN and every fifth a segment of the reply.
fn rows(number: u32) -> Vec<Row> {
    let mut rows = vec![(0, true, flag::SYN, 0, 0)];
    let mut at = 0;
    if number.is_multiple_of(3) {
        at = 1000;
        rows.push((at, true, flag::SYN, 0, 0));
    }
    rows.push((at + 20, false, flag::SYN | flag::ACK, 0, 0));
    rows.push((at + 40, true, flag::ACK, 1, 100));
    rows.push((at + 60, false, flag::ACK, 1, 1000));
    if number.is_multiple_of(5) {
        rows.push((at + 360, false, flag::ACK, 1, 1000));
    }
    rows
}

/// Frames in the order of time, and whether a client sends them.
fn frames() -> Vec<(u64, bool, Vec<u8>)> {
    let server = Endpoint {
        address: Ipv4Addr::new(10, 0, 0, 2).to_ipv6_mapped(),
        port: 80,
    };
    let mut frames = Vec::new();
    for number in 0..200_u32 {
        let client = Endpoint {
            address: Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped(),
            port: 1000 + number as u16,
        };
        for (ms, by_client, flags, seq, payload) in rows(number) {
            let (source, destination) = if by_client {
                (client, server)
            } else {
                (server, client)
            };
            let segment = Segment {
                source,
                destination,
                seq,
                ack: 1,
                flags,
                window: u16::MAX,
                payload,
            };
            let at_ns = START_NS + (ms + u64::from(number) * 7) * MS;
            frames.push((at_ns, by_client, compose(&segment)));
        }
    }
    frames.sort();
    frames
}

fn source(
    name: &str,
    frames: impl IntoIterator<Item = (u64, bool, Vec<u8>)>,
    cut: usize,
) -> Source {
    let mut writer = Writer::new(Vec::new(), 96).unwrap();
    for (at_ns, _, frame) in frames {
        writer.frame(at_ns, &frame).unwrap();
    }
    let mut bytes = writer.into_inner();
    bytes.truncate(bytes.len() - cut);
    Source {
        name: name.to_owned(),
        capture: Capture::new(Cursor::new(bytes)).unwrap(),
    }
}

fn track(sources: Vec<Source>) -> (Report, Vec<weir_trace::Broken>) {
    let mut merge = Merge::new(sources);
    let mut tracker = Tracker::new(Options::default());
    merge.by_ref().for_each(|packet| tracker.packet(&packet));
    (tracker.report(), merge.broken())
}

#[test]
fn captures_of_each_direction_and_pieces_in_any_order_are_one_capture() {
    let (whole, broken) = track(vec![source("whole", frames(), 0)]);
    assert!(broken.is_empty());
    assert!(
        whole
            .directions
            .iter()
            .all(|figures| figures.retransmissions >= 40)
    );
    let (to_server, to_client): (Vec<_>, Vec<_>) = frames().into_iter().partition(|frame| frame.1);
    let (directions, _) = track(vec![
        source("out", to_client, 0),
        source("in", to_server, 0),
    ]);
    assert_eq!(directions, whole);
    let mut rest = frames();
    let first = rest.drain(..rest.len() / 2).collect::<Vec<_>>();
    let (pieces, _) = track(vec![source("second", rest, 0), source("first", first, 0)]);
    assert_eq!(pieces, whole);
}

#[test]
fn a_source_that_breaks_does_not_stop_the_others() {
    let (to_server, to_client): (Vec<_>, Vec<_>) = frames().into_iter().partition(|frame| frame.1);
    let packets = (to_server.len() + to_client.len()) as u64;
    let (report, broken) = track(vec![
        source("cut", to_server, 1),
        source("whole", to_client, 0),
    ]);
    assert_eq!(report.counts.packets, packets - 1);
    assert_eq!(broken.len(), 1);
    assert_eq!(broken[0].name, "cut");
    assert!(matches!(broken[0].error, Error::Cut { .. }));
}
