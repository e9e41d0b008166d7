//! Captures, from compressed bytes to figures.

use std::io::{Cursor, Read};

use weir_trace::{Options, Tracker};
use weir_wire::{Capture, Error, Frame, decompressed};

/// A few bytes of zstd are gigabytes of zeros: more is not worth the time.
const DECOMPRESSED_BYTES_MAX: u64 = 1 << 20;

/// The bytes are a file.
pub fn run(data: &[u8]) {
    let opened = decompressed(Cursor::new(data.to_vec()))
        .map_err(Error::Io)
        .and_then(|stream| Capture::new(stream.take(DECOMPRESSED_BYTES_MAX)));
    let Ok(mut capture) = opened else { return };
    // As few as there may be: connections are given up, too.
    let mut tracker = Tracker::new(Options {
        connections_max: 8,
        ..Options::default()
    });
    let mut packets = 0;
    loop {
        match capture.next_packet() {
            Ok(Some(packet)) => {
                packets += u64::from(packet.frame != Frame::UnknownBlock);
                tracker.packet(&packet);
            }
            Ok(None) => break,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                let next = capture.next_packet();
                assert!(matches!(next, Ok(None)), "an error comes once");
                break;
            }
        }
    }
    let report = tracker.report();
    let counts = &report.counts;
    assert_eq!(counts.packets, packets);
    let kinds = [
        counts.tcp,
        counts.other,
        counts.fragments,
        counts.cut,
        counts.malformed,
        counts.copies,
        counts.unknown_link,
    ];
    assert_eq!(kinds.iter().sum::<u64>(), packets);
    for figures in &report.directions {
        assert!(figures.syn_retransmissions <= figures.retransmissions);
        assert!(figures.retransmissions <= figures.segments);
        assert!(figures.segments <= figures.packets);
    }
    serde_json::to_string(&report).expect("a report is JSON");
}
