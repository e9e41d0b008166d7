//! What the tests of captures share.

use weir_wire::{Capture, Error, Packet};

/// All packets, and what ended them if that was an error.
pub fn all_of(mut capture: Capture) -> (Vec<Packet>, Option<Error>) {
    let mut packets = Vec::new();
    loop {
        match capture.next_packet() {
            Ok(Some(packet)) => packets.push(packet),
            Ok(None) => return (packets, None),
            Err(error) => {
                assert!(
                    capture.next_packet().unwrap().is_none(),
                    "an error comes once"
                );
                return (packets, Some(error));
            }
        }
    }
}
