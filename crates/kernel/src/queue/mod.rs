//! The prioritized listen queue (bpf/queue.bpf.c): parking listeners beside a running server's own,
//! and the release of what waits in them.
//!
//! One thread uses [`Parking`]. Its caller decides which connection is released when. When it is
//! dropped, or the process dies, the parked connections go to the server.

mod failure;
mod group;
mod label;
mod migration;
mod model;
mod options;
pub(crate) mod owner;
mod parking;
pub(crate) mod programs;
mod reuseport;
mod servers;
pub(crate) mod skel;
mod table;
mod types;

pub use crate::guard::QueueMaps;
pub(crate) use migration::can_migrate;
#[cfg(feature = "testing")]
pub(crate) use migration::wakes_at_migration;
pub use parking::{Parking, hasten_this_thread};
pub(crate) use programs::load_skel;
pub use reuseport::{note_left, undo};
pub use types::{Ends, Event, ServerQueue, Slot, Taken};
