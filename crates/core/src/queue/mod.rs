//! Which waiting connection a server accepts next, and which one gives way when the queue is full.
//!
//! The order is strict: the connection of the highest priority, and of those the one that has waited
//! longest (VTFM01, Section III). Strict order lets the lowest starve; *ageing* does not: after each
//! `ageing` that a connection has waited it counts as of the next higher priority that is in use, and
//! having waited longest there, it is the next of it.
//!
//! A full queue sheds from the other end: the youngest connection of the lowest priority. Ageing
//! protects nobody from that, as the youngest has not aged.
//!
//! Each step takes O([`PRIORITIES`]) and no time that depends on how many wait.

mod feed;
mod order;
mod rule;

pub use feed::{Depth, Pace};
pub use order::{PRIORITIES, ReleaseOrder, Waiting};
pub use rule::ParkingRule;
