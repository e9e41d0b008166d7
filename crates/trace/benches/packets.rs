//! What a packet costs from its bytes in a capture to the state of its connection.
//!
//! `weir trace` is to take a million packets/s on one core, 1000 ns each.

use std::hint::black_box;
use std::io::Cursor;
use std::sync::Arc;
use std::time::Instant;

use weir_trace::{Options, Tracker};
use weir_wire::Capture;

#[allow(dead_code, reason = "its main() is that of the example")]
#[path = "../examples/lossy_capture.rs"]
mod lossy_capture;

const PACKETS: u64 = 2_000_000;
const SEED: u64 = 1;
const ROUNDS: usize = 5;
const NS_MAX: f64 = 1000.0;

fn main() {
    let mut bytes: Vec<u8> = Vec::new();
    lossy_capture::write(PACKETS, SEED, &mut bytes).expect("a vector takes all");
    let bytes: Arc<[u8]> = bytes.into();
    let best = |round: &dyn Fn() -> u64| {
        let ns = |_| {
            let begun = Instant::now();
            let packets = round();
            begun.elapsed().as_nanos() as f64 / packets as f64
        };
        (0..ROUNDS).map(ns).fold(f64::INFINITY, f64::min)
    };
    let read = || {
        let mut capture = Capture::new(Cursor::new(Arc::clone(&bytes))).expect("it is a capture");
        let mut packets = 0;
        while let Some(packet) = capture.next_packet().expect("it is whole") {
            black_box(packet);
            packets += 1;
        }
        packets
    };
    let follow = || {
        let mut capture = Capture::new(Cursor::new(Arc::clone(&bytes))).expect("it is a capture");
        let mut tracker = Tracker::new(Options::default());
        while let Some(packet) = capture.next_packet().expect("it is whole") {
            tracker.packet(&packet);
        }
        black_box(tracker.report()).counts.packets
    };
    println!("trace: ns per packet, best of {ROUNDS} rounds of {PACKETS} packets");
    println!("  read and parse             {:6.0}", best(&read));
    let followed = best(&follow);
    println!(
        "  and follow its connection  {followed:6.0}   ({:.1} million packets/s)",
        1000.0 / followed
    );
    assert!(followed <= NS_MAX, "more than {NS_MAX} ns");
}
