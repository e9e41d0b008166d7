//! Queues of SPA, of CoDel and of flows: the models of bpf/lib/spa.h, codel.h and control.h, and what they are made of.
//!
//! They are disciplines like those of the simulator (`weir-sim`), which runs these too: `…Vars` is the state, [`Stats`] what
//! is counted; the parameters are those of [`weir_core::aqm`]. Time, randomness and the drop function are arguments.

pub mod codel;
pub mod control;
pub mod flows;
pub mod fq_codel;
pub mod limit;
pub mod packet;
pub mod pool;
pub mod queue;
pub mod spa;
pub mod subqueue;
pub mod testing;

pub use control::Control;
pub use packet::{Ecn, Packet};
pub use queue::{Aqm, Cause, Count, Hooks, Stats};
