//! TCP segments as the simulation has them.

use crate::aqm::control::{FIN, SYN, control_of};
use crate::aqm::{Control, Ecn, Packet};

/// Payload of a full segment, bytes: 1500 less IP, TCP and its timestamps.
pub const MSS: u16 = 1448;
/// IP and TCP headers with timestamps, bytes.
const HEADERS: u32 = 52;
/// Those of a SYN, whose options are more.
const SYN_HEADERS: u32 = 60;
/// A SACK option with its padding, and each of its blocks, bytes.
const SACK: u32 = 4;
const SACK_BLOCK: u32 = 8;
/// The most blocks beside timestamps (RFC 2018, Section 3).
pub const SACK_BLOCKS: usize = 3;

/// One of the two ends of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// It opens the connection, and is behind the bottleneck.
    Client,
    /// It sends the reply.
    Server,
}

impl Side {
    /// The other end.
    pub fn other(self) -> Side {
        match self {
            Side::Client => Side::Server,
            Side::Server => Side::Client,
        }
    }
}

/// A segment on its way.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Segment {
    /// Index of its connection; `None`: it belongs to a flood, and nobody waits for it.
    pub connection: Option<u32>,
    /// Who sends it.
    pub from: Side,
    /// SYN, FIN, ACK.
    pub flags: u8,
    /// Number of its payload or FIN, in segments.
    pub seq: u32,
    /// Payload, bytes.
    pub payload: u16,
    /// The next number expected from the other end.
    pub ack: u32,
    /// Ranges that have arrived behind it; empty ones do not count.
    pub sack: [(u32, u32); SACK_BLOCKS],
    /// Timestamp, ns.
    pub sent_ns: u64,
    /// Timestamp that it echoes, ns; 0: none.
    pub echo_ns: u64,
    /// ECN-Echo.
    pub ece: bool,
    /// Congestion window reduced.
    pub cwr: bool,
    /// The ECN field.
    pub ecn: Ecn,
    /// Hash of the 5-tuple.
    pub flow_hash: u32,
    /// Hash of the source.
    pub source_hash: u32,
    /// Hash of the destination.
    pub destination_hash: u32,
}

impl Segment {
    /// Whether it has this flag.
    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Whether it takes a number: payload or FIN.
    pub fn is_numbered(&self) -> bool {
        self.payload > 0 || self.has(FIN)
    }
}

impl Packet for Segment {
    fn len_bytes(&self) -> u32 {
        if self.has(SYN) {
            return SYN_HEADERS;
        }
        let blocks = self.sack.iter().filter(|(from, to)| from < to).count() as u32;
        let sack = if blocks > 0 {
            SACK + SACK_BLOCK * blocks
        } else {
            0
        };
        HEADERS + sack + u32::from(self.payload)
    }

    fn flow_hash(&self) -> u32 {
        self.flow_hash
    }

    fn source_hash(&self) -> u32 {
        self.source_hash
    }

    fn destination_hash(&self) -> u32 {
        self.destination_hash
    }

    fn control(&self) -> Control {
        control_of(self.flags, u32::from(self.payload))
    }

    fn ecn(&self) -> Ecn {
        self.ecn
    }

    fn set_ce(&mut self) {
        self.ecn = Ecn::Ce;
    }
}
