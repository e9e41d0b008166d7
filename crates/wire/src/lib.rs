//! Captures to packets, and packets to captures.
//!
//! - [`Capture`]: the packets of a pcap or pcapng stream, one after the other, with their times; plain, gzip or zstd
//!   ([`decompressed`]). It holds one buffer, whatever the length of the stream.
//! - [`parse`]: the TCP segment in a frame of a known [`Link`], also where the snap length has cut the frame.
//! - [`compose()`] and [`Writer`]: frames and captures for tests and measurements.
//!
//! Nothing here panics, whatever the bytes: a capture may come from anywhere.

mod capture;
mod compose;
mod compression;
mod copies;
mod frame;
mod interfaces;
mod link;
mod packet;
mod write;

pub use capture::Capture;
pub use compose::compose;
pub use compression::decompressed;
pub use frame::{Endpoint, Frame, Segment, flag, parse};
pub use link::Link;
pub use packet::{Error, Packet};
pub use write::Writer;
