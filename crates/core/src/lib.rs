//! The decisions of weir as pure functions.
//!
//! State, time and randomness come in as arguments; nothing here does I/O, reads a clock or is `unsafe`. Each is called by
//! a program of weir. What the BPF programs in `bpf/` decide has its twins in `weir-models`.
#![forbid(unsafe_code)]

pub mod abi;
pub mod aqm;
pub mod class;
pub mod client_close;
pub mod controller;
pub mod forecast;
pub mod journal;
pub mod listener;
pub mod overload;
pub mod pace;
pub mod policy;
pub mod prefix;
pub mod profile;
pub mod proxy;
pub mod queue;
pub mod quic;
pub mod refusals;
pub mod residence;
pub mod rfc3339;
pub mod shape;
pub mod sight;
pub mod suggest;
pub mod timewait;
pub mod turns;
pub mod units;
pub mod verdict;
pub mod wait;
pub mod word;
pub mod workload;
