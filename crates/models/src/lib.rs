//! Models of what the BPF programs in `bpf/` decide, in Rust.
//!
//! They judge: property tests of `weir-kernel` run C and model on the same input, and simulations run them around the decisions
//! of `weir-core` and on links. No program that a server runs has them. As in `weir-core`, state, packet, time and randomness
//! are arguments, and nothing here does I/O, reads a clock or is `unsafe`.
#![forbid(unsafe_code)]

pub mod admit;
pub mod aqm;
pub mod gate;
pub mod headers;
pub mod ledger;
pub mod packet;
pub mod quic;
pub mod random;
pub mod stall;
pub mod steady;
pub mod steer;
pub mod talk;
pub mod timewait;
pub mod wait;
