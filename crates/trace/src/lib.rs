//! Captures to connections to figures: Section III of BHD18 on anyone's capture, and its model (Section IV).
//!
//! - [`Tracker`] follows the TCP connections of packets that it is handed one by one, with their times, and gives a
//!   [`Report`]: for each direction the probability that a packet or a SYN is sent again, and how long that takes. It
//!   does no I/O, reads no clock, and its memory is bounded ([`Options::connections_max`]).
//! - [`Merge`] hands on the packets of several captures in the order of time.
//! - [`model`] has equations 1 and 2: the response time with and without a lost SYN.
//!
//! BHD18 is Braud, Heusse, Duda: The Virtue of Gentleness, IFIP Networking 2018.

mod connection;
mod direction;
mod figures;
mod hosts;
mod merge;
pub mod model;
mod sent;
mod sums;
mod time;
mod tracker;

pub use figures::{Figures, Name};
pub use merge::{Broken, Merge, Source};
pub use tracker::{Counts, FloodFilter, Options, Report, Tracker};
