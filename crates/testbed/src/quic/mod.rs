//! QUIC servers and clients over real UDP sockets inside namespaces, on quinn's protocol machine.
//!
//! `quinn-proto` does no I/O and reads no clock, so the loops here decide when which datagram is read: a server that
//! queues in its UDP socket, as nginx does, and one that queues inside itself, as HAProxy and quic-go do, differ by
//! one number. It also holds thousands of clients in one thread, each with a socket of its own.
//!
//! - [`server`]: [`QuicServer`], a single worker that takes some time for each new connection, and echoes;
//! - [`client`]: [`attempt`], and the [`Connection`] that comes of it;
//! - [`mod@crowd`]: clients that come on a schedule, whatever becomes of those before them;
//! - [`mod@fallback`]: clients that come by TCP once QUIC has refused them;
//! - [`steady`]: connections that are established and go on asking;
//! - [`request`]: what a client asks on a connection, and what is an answer.

pub mod client;
mod clients;
pub mod crowd;
pub mod fallback;
pub mod request;
pub mod server;
pub mod steady;
mod table;
mod tls;

pub use client::{Connection, Outcome, attempt};
pub use crowd::{Crowd, CrowdResult, crowd};
pub use fallback::{Door, Fallback, FallbackResult, fallback};
pub use request::Request;
pub use server::{QuicServer, QuicServerKind};
pub use steady::{Steady, SteadyResult};

use std::sync::Arc;
use std::time::Duration;

use quinn_proto::TransportConfig;

/// The application protocol of [`QuicServer`] (ALPN).
pub const ALPN: &[u8] = b"weir-test";

/// A connection that nobody uses stays as long as both ends are there: quinn ends those that were silent for 30 s.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Both ends send single datagrams of 1200 bytes, which fit every link.
fn transport(keep_alive: Option<Duration>) -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    transport
        .mtu_discovery_config(None)
        .enable_segmentation_offload(false)
        .keep_alive_interval(keep_alive);
    Arc::new(transport)
}
