//! Packets that a capture has more than once: a router's at the interface where they come in and at that where they go
//! out, a bridge's also at the bridge itself, a mirror port's of both sides of a link.
//!
//! A sender that sends a segment again gives it another IP identification. At one place, therefore, what has the same one
//! at once is a copy. What has none (IPv6, SYN/ACKs of Linux) may be sent twice at once, as a SYN/ACK is when its time-out
//! meets the SYN that comes again: it is taken for a copy only where the capture repeats other packets. At another place a
//! copy comes within what a queue between the two holds, and no time-out is shorter than that.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::frame::{Header, Segment};

/// How long a router may hold a packet between two interfaces, ns. The first time-out of a SYN is no shorter (RFC 6298).
const OTHER_PLACE_NS: u64 = 1_000_000_000;
/// How much later a mirror port may repeat a packet, ns.
const SAME_PLACE_NS: u64 = 1_000_000;
/// Units of `Sighting::at`.
const NS_SHIFT: u32 = 16;
/// Packets that are remembered: as many as wait in a router's queue. A power of two.
const REMEMBERED: usize = 8192;

/// Where in its TCP header a segment has its checksum. Network cards compute it behind the capture.
const CHECKSUM: std::ops::Range<usize> = 16..18;

/// Where a packet was captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Place {
    /// Number of the interface in its capture.
    pub interface: u32,
    /// The same, and the way across it, as far as the frame tells.
    pub of_frame: u32,
    /// Hops that its packet had left: a router has it once before and once after.
    pub hops: u8,
}

/// Tells copies from other packets.
#[derive(Default)]
pub(crate) struct Copies {
    /// By the lower bits of a packet's identity; empty before the first packet.
    sightings: Vec<Sighting>,
    /// Packets with an identification, and copies of them at the same place.
    identified: u64,
    repeated: u64,
}

/// The first time that a packet was seen.
#[derive(Clone, Copy, Default)]
struct Sighting {
    /// The upper bits of its identity.
    identity: u32,
    place: Place,
    at: u32,
}

impl Copies {
    /// Whether this packet was captured before; if not, it is remembered.
    pub fn is_copy(
        &mut self,
        at_ns: u64,
        place: Place,
        segment: &Segment,
        header: &Header,
    ) -> bool {
        if self.sightings.is_empty() {
            self.sightings = vec![Sighting::default(); REMEMBERED];
        }
        let is_identified = header.identification != 0;
        let identity = identity(segment, header);
        let at = (at_ns >> NS_SHIFT) as u32;
        let first = &mut self.sightings[identity as usize % REMEMBERED];
        let identity = (identity >> 32) as u32;
        if first.identity == identity {
            // Captures may be out of order.
            let apart = first.at.wrapping_sub(at).min(at.wrapping_sub(first.at));
            let apart_ns = u64::from(apart) << NS_SHIFT;
            let repeats = self.repeated > 0 && self.repeated * 2 >= self.identified;
            let is_copy = match first.place == place {
                true => (is_identified || repeats) && apart_ns <= SAME_PLACE_NS,
                false => apart_ns <= OTHER_PLACE_NS,
            };
            if is_copy {
                self.repeated += u64::from(is_identified && first.place == place);
                return true;
            }
        }
        self.identified += u64::from(is_identified);
        *first = Sighting {
            identity,
            place,
            at,
        };
        false
    }
}

/// A hash of all that a router leaves as it is.
fn identity(segment: &Segment, header: &Header) -> u64 {
    let mut hasher = DefaultHasher::new();
    segment.source.hash(&mut hasher);
    segment.destination.hash(&mut hasher);
    segment.payload.hash(&mut hasher);
    header.identification.hash(&mut hasher);
    let tcp = header.tcp;
    tcp[..tcp.len().min(CHECKSUM.start)].hash(&mut hasher);
    tcp.get(CHECKSUM.end..).hash(&mut hasher);
    hasher.finish()
}
