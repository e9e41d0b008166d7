//! What `weir shape` puts on a device: the queueing disciplines by name, and their parameters for a link.
//!
//! The queues themselves run in the kernel. Those that are weir's own have their models in `weir-models`; the simulator
//! (`weir-sim`) has all of them.

pub mod discipline;
mod limit;
mod params;

pub use discipline::{Discipline, Setup};
pub use limit::{ByteRate, COST_SHIFT, LimitParams};
pub use params::{CodelParams, FlowParams, PieParams, SfqParams, SpaParams};
