//! Queueing disciplines for the bottleneck link.
//!
//! A discipline decides which packets wait, in which order they leave, and which are dropped or marked. Each has one
//! file, and keeps three things apart, as the kernel's `include/net/codel_impl.h` does: `…Params`, which only the
//! operator changes; `…Vars`, its state; and [`Stats`], what it has counted. Time, randomness and the drop function
//! are arguments: the simulator, the emulated link and the benchmarks run the same code. Memory is allocated only
//! while a queue grows past its longest so far.
//!
//! Those that weir's own BPF programs have are models of them, and in [`weir_models::aqm`]; those of the kernel, and those
//! that only papers have, are here.
//!
//! | name | discipline | source |
//! |---|---|---|
//! | `fifo`, `bfifo` | one queue, limited in packets or in bytes | |
//! | `red`, `ared`, `red-favor` | random early detection; with an adaptive probability; SYNs spared | Floyd 1993, 2001; Anelli 2012 |
//! | `codel` | controlled delay | RFC 8289 |
//! | `fq-codel` | CoDel in each of many flow queues | RFC 8290 |
//! | `pie` | proportional integral controller | RFC 8033 |
//! | `sfq` | stochastic fair queueing | McKenney 1990 |
//! | `cake` | round robin that shares by hosts and then by flows, COBALT in each flow | Høiland-Jørgensen 2018 |
//! | `syn-prio`, `syn-fin-prio` | two FIFOs, control segments first | BHD18 Table III |
//! | `spa-paper` | two CoDel queues, SYN and FIN first | BHD18 Section V |
//! | `spa` | the same with weir's [limit](weir_models::aqm::limit) of the high queue, SYN only, ECN in the low queue | |
//! | `spa-fq` | `spa` whose low queue is one queue for each flow | |

mod any;
pub mod cake;
pub mod fifo;
pub mod pie;
pub mod prio;
pub mod red;
pub mod sfq;

pub use any::AnyQueue;
pub use weir_core::aqm::{Discipline, FlowParams, PieParams, Setup};
pub use weir_models::aqm::fq_codel::FqCodel;
pub use weir_models::aqm::{Aqm, Cause, Control, Count, Ecn, Hooks, Packet, Stats, control};

#[cfg(test)]
mod properties;
