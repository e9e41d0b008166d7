//! The lab: the real kernel, real server sockets, open-loop load.
//!
//! - [`bed`]: network namespaces with a wire between a server and the load generator;
//! - [`client`]: the generator, a client-side TCP of its own for 100 000s of connections;
//! - [`closed_loop`]: clients with real sockets, greedy ones and one that replays a trace;
//! - [`server`]: the servers under test;
//! - [`experiments`]: what `weir-lab` measures;
//! - [`matrix`]: hostile clients and origins around the proxy;
//! - [`netns`]: namespaces that remove themselves, for tests of other crates too.

pub mod bed;
pub mod client;
pub mod closed_loop;
pub mod cpu;
pub mod error;
pub mod experiments;
pub mod idle;
pub mod interrupt;
pub mod matrix;
pub mod netns;
pub mod plot;
pub mod process;
pub mod program;
pub mod proxy;
pub mod report;
pub mod server;
pub mod sys;
pub mod weir;
