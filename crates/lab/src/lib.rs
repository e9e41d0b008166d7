//! The lab: the real kernel, real server sockets, open-loop load.
//!
//! - `weir-testbed` (re-exported here): namespaces with a wire between a server and the load generator;
//! - [`client`]: the generator, a client-side TCP of its own for 100 000s of connections;
//! - [`closed_loop`]: clients with real sockets, greedy ones and one that replays a trace;
//! - [`server`]: the servers under test;
//! - [`run`]: one frame for all experiments: cases, rounds, results;
//! - [`papers`]: does what the papers report hold on this kernel: all their tables and figures, and a report;
//! - [`load`]: open-loop HTTP clients with kernel sockets, for a server of the user's;
//! - [`link`]: two namespaces joined by an emulated slow link, for real TCP;
//! - [`experiments`]: what `weir-lab` measures;
//! - [`show`], [`plot`]: tables and pictures, made from results alone;
//! - [`matrix`]: hostile clients and origins around the proxy;
//! - [`poll`]: the events of their sockets;
//! - [`quic`]: QUIC servers under test, and Debian 13 around those that this machine has not;
//! - [`descriptors`]: how many sockets the lab may hold.

pub mod cli;
pub mod client;
pub mod closed_loop;
pub mod descriptors;
pub mod experiments;
pub mod idle;
pub mod link;
pub mod load;
pub mod matrix;
pub mod papers;
pub mod plot;
pub mod poll;
pub mod proxy;
pub mod quic;
pub mod run;
pub mod server;
pub mod show;
mod tap;

pub use weir_testbed::{
    bed, cpu, error, interrupt, needs, netns, process, program, sys, tomcat, weir,
};
