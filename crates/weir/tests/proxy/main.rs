//! `weir proxy` as a service: reload, status, upgrade, stop. Everything is on loopback, and each test
//! has a runtime directory of its own.

#[allow(dead_code, reason = "the other tests use the rest of it")]
#[path = "../common/mod.rs"]
mod common;

mod bed;
mod descriptors;
mod names;
mod observe;
mod processes;
mod reload;
