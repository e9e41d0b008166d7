//! Proxies under test: a bed with the proxy in the middle, an origin, clients, and the contenders.
//!
//! - [`bed`]: three namespaces in a row, the proxy's packets and the proxy on one CPU;
//! - [`body`]: what is transferred, and how a wrong byte is found;
//! - [`origin`]: the server behind the proxy;
//! - [`clients`]: the clients in front of it, [`connection`]: one of theirs;
//! - [`handshake`]: the messages of an SSL handshake, without SSL;
//! - [`wire`]: what carries the proxy's replies to them;
//! - [`watch`]: when packets come to the proxy and go from it;
//! - [`many`]: clients and origin of more connections than a process may hold;
//! - [`sockets`]: what the kernel holds for them;
//! - [`road`]: clients, proxy and origin in a row over emulated slow links that lose packets;
//! - [`single`]: all of that for one contender with many connections;
//! - [`sent`]: what the origin has sent, and how often it was acknowledged;
//! - [`size`]: sizes of bodies;
//! - [`rig`]: bed, origin, contenders and the meter of the proxy's core, for experiments with load;
//! - [`contender`]: weir, HAProxy and nginx with the configurations in `experiments/proxy/`.

pub mod bed;
pub mod body;
pub mod clients;
pub mod connection;
pub mod contender;
pub mod handshake;
pub mod many;
pub mod origin;
mod pace;
pub mod rig;
pub mod road;
pub mod sent;
pub mod single;
pub mod size;
pub mod sockets;
pub mod watch;
pub mod wire;
