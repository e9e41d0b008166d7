//! Hostile clients and origins around a running proxy: random sizes, pieces, pauses, half-closes,
//! early ends and resets on both sides, and a check of every byte and every end.
//!
//! Both ends of each transfer live in one process, on one thread with one epoll. What happens on a
//! connection follows from the run's seed and the connection's number alone ([`plan`]), so both ends
//! know it without telling each other: bytes are stretches of a [`pattern`], a [`handler`] knows
//! what an end must receive, and what both ends saw is compared ([`tunnel::judge`], [`http::Asking::judge`]).

mod end;
mod engine;
pub mod fault;
mod handler;
pub mod http;
mod outcome;
mod outgoing;
pub mod pattern;
pub mod plan;
pub mod tunnel;

pub use engine::{Settings, Tally, Traffic, run};
