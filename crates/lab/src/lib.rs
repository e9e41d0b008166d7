//! The lab: the real kernel, real server sockets, open-loop load.
//!
//! - `weir-testbed` (re-exported here): namespaces with a wire between a server and the load generator;
//! - [`client`]: the generator, a client-side TCP of its own for 100 000s of connections;
//! - [`closed_loop`]: clients with real sockets, greedy ones and one that replays a trace;
//! - [`server`]: the servers under test;
//! - [`experiments`]: what `weir-lab` measures;
//! - [`matrix`]: hostile clients and origins around the proxy.

pub mod client;
pub mod closed_loop;
pub mod experiments;
pub mod idle;
pub mod matrix;
pub mod plot;
pub mod proxy;
pub mod report;
pub mod server;

pub use weir_testbed::{bed, cpu, error, interrupt, netns, process, program, sys, weir};
