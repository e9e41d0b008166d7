//! The proxy's connections to servers, with real sockets.

#[path = "../common/mod.rs"]
mod common;
mod netns;
mod sides;
mod sources;
