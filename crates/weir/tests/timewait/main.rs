//! The real `weir run` on the machine of the clients (`[[destination]]`), with real servers in another namespace:
//! which end remembers a closed connection, and what the record here keeps out.
//!
//! Nothing sleeps: a test waits for a condition, at most [`common::PATIENCE`].

#[allow(
    dead_code,
    unused_imports,
    reason = "the tests of the guard use the rest of it"
)]
#[path = "../guard/common/mod.rs"]
mod common;

mod asks;
mod bed;
mod client_close;
mod client_rst;
mod conditions;
mod duplicates;
mod life;
mod negotiate;
mod peers;
mod records;
mod strangers;
