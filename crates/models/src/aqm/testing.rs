//! A packet and surroundings for the tests of the disciplines.

use super::control::Control;
use super::packet::{Ecn, Packet};
use super::queue::{Cause, Hooks};

/// A packet of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Its flow; the source as well, if that is not given.
    pub flow: u32,
    /// Its source.
    pub source: Option<u32>,
    /// Its number in the flow.
    pub number: u32,
    /// Bytes.
    pub len: u32,
    /// What it controls.
    pub control: Control,
    /// Its ECN field.
    pub ecn: Ecn,
}

impl Segment {
    /// 1500 bytes of data.
    pub fn data(flow: u32, number: u32) -> Segment {
        Segment {
            flow,
            source: None,
            number,
            len: 1500,
            control: Control::None,
            ecn: Ecn::NotEct,
        }
    }

    /// A SYN of 60 bytes.
    pub fn syn(flow: u32) -> Segment {
        Segment {
            len: 60,
            control: Control::Syn,
            ..Segment::data(flow, 0)
        }
    }
}

impl Packet for Segment {
    fn len_bytes(&self) -> u32 {
        self.len
    }

    fn flow_hash(&self) -> u32 {
        self.flow.wrapping_mul(0x9e37_79b1)
    }

    fn source_hash(&self) -> u32 {
        self.source.unwrap_or(self.flow).wrapping_mul(0x85eb_ca77)
    }

    fn destination_hash(&self) -> u32 {
        self.flow.wrapping_mul(0xc2b2_ae3d)
    }

    fn control(&self) -> Control {
        self.control
    }

    fn ecn(&self) -> Ecn {
        self.ecn
    }

    fn set_ce(&mut self) {
        self.ecn = Ecn::Ce;
    }
}

/// Randomness from a seed, and what was dropped.
#[derive(Debug, Clone)]
pub struct World {
    state: u64,
    /// In the order of dropping.
    pub dropped: Vec<(Segment, Cause)>,
}

impl World {
    /// With a seed.
    pub fn new(seed: u64) -> World {
        World {
            state: seed,
            dropped: Vec::new(),
        }
    }
}

impl Hooks<Segment> for World {
    /// splitmix64 (Steele, Lea, Flood 2014).
    fn random(&mut self) -> u32 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 32) as u32
    }

    fn dropped(&mut self, packet: Segment, cause: Cause) {
        self.dropped.push((packet, cause));
    }
}
