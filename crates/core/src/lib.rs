//! The decisions of weir as pure functions.
//!
//! State, packet, time and randomness come in as arguments; nothing here does I/O, reads a clock or
//! is `unsafe`. The BPF programs in `bpf/` decide the same things in C, and property tests in
//! `weir-kernel` hold the two equal.
#![forbid(unsafe_code)]

pub mod abi;
pub mod admit;
pub mod aqm;
pub mod class;
pub mod client_close;
pub mod controller;
pub mod headers;
pub mod journal;
pub mod ledger;
pub mod listener;
pub mod overload;
pub mod packet;
pub mod policy;
pub mod prefix;
pub mod profile;
pub mod proxy;
pub mod queue;
pub mod refusals;
pub mod rfc3339;
pub mod shape;
pub mod stall;
pub mod steady;
pub mod suggest;
pub mod timewait;
pub mod units;
pub mod verdict;
pub mod wait;
pub mod word;
