//! The proxy's connections to servers, with real sockets.

mod access;
mod announce;
mod balance;
#[path = "../common/mod.rs"]
mod common;
mod health;
mod limit;
mod names;
mod netns;
mod own_listeners;
mod reach;
mod sides;
mod sources;
