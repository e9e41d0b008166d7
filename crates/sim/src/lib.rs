//! TCP connections through a bottleneck link, as a discrete-event simulation.
//!
//! The queues are in [`aqm`], the same code that the emulated link runs. Around them are a virtual
//! clock ([`clock`]), two links with rate, delay and loss ([`link`]), TCP ends ([`tcp`], [`connection`]) and traffic
//! ([`traffic`]). [`world`] joins them, [`outcome`] is what a run leaves. Everything random comes from seeds: one seed
//! gives one course, and the arrivals of a seed are the same for every discipline.
//!
//! # What is simplified
//!
//! - Sequence numbers count whole segments. A request is one segment of 100 bytes; a reply is a whole number of full
//!   segments (1448 bytes of payload, 1500 on the link), as in BHD18.
//! - Loss is found by RACK (RFC 8985) over SACK blocks, with a tail loss probe. There is no F-RTO and no undo of a
//!   reduction that proves spurious. After a mark the window is the new threshold at once, without PRR's ramp.
//! - CUBIC has HyStart by delay, as in Linux, without its test by ACK trains; segments are not paced.
//! - Receive windows never limit, ports are never reused, and TIME-WAIT has no effect.
//! - Hosts take no time. Between the ends there is nothing but the two links.

pub mod aqm;
pub mod clock;
pub mod connection;
pub mod link;
pub mod outcome;
pub mod segment;
pub mod tcp;
pub mod traffic;
pub mod world;

pub use link::{LinkSpec, Loss};
pub use outcome::Outcome;
pub use traffic::{Kind, Plan};
pub use world::{Flood, Scenario, run};
