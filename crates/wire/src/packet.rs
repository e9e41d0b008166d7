//! A packet of a capture, and why there is none.

use std::io;

use crate::frame::Frame;

/// A packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// When it was captured, ns since 1970.
    pub at_ns: u64,
    /// What it carries.
    pub frame: Frame,
}

/// Why a capture cannot be read to its end. What was read before it stands.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The stream fails.
    #[error("cannot read it: {0}")]
    Io(#[source] io::Error),
    /// It begins as no capture does.
    #[error("it is neither pcap nor pcapng")]
    NotACapture,
    /// Frames of this kind are not read.
    #[error(
        "its link type, {0}, is none that weir reads (Ethernet, Linux cooked, PPP, loopback, raw IP)"
    )]
    LinkType(i32),
    /// No block that it has is known.
    #[error("no packet of it can be read: its blocks are of type {0:#x}, which weir does not know")]
    Blocks(u32),
    /// It ends within a packet.
    #[error("it is cut within packet {}", .packets + 1)]
    Cut {
        /// Packets before.
        packets: u64,
    },
    /// A record makes no sense, so that the next cannot be found.
    #[error("what follows packet {packets}, at byte {at}, is no packet")]
    Malformed {
        /// Packets before.
        packets: u64,
        /// Bytes before, decompressed.
        at: u64,
    },
}
