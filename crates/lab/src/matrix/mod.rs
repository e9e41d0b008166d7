//! Hostile clients and origins around a running proxy: random sizes, pieces, pauses, half-closes,
//! early ends and resets on both sides, and a check of every byte and every end.
//!
//! Both ends of each transfer live in one process, on one thread with one epoll. What happens on a
//! connection follows from the run's seed and the connection's number alone ([`plan`]), so both ends
//! know it without telling each other: bytes are stretches of a [`pattern`], an end reads into an
//! [`ear`] that knows what must come, and what both saw is held against each other ([`tunnel::judge`],
//! [`http::Asking::judge`]).

mod ear;
mod end;
mod engine;
pub mod fault;
pub mod http;
pub mod pattern;
pub mod plan;
mod speech;
pub mod tunnel;

pub use engine::{Settings, Tally, Traffic, run};
