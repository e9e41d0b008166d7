//! Kinds of transfer.

use crate::proxy::clients::Style;
use crate::proxy::contender::ProxyMode;

/// A kind of transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// GET on kept connections, from a pool of connections to the origin.
    Get,
    /// A tunnel for each client, requests and replies inside it.
    Tunnel,
    /// GET on a new connection each, from the pool.
    Connect,
    /// A new tunnel for each request.
    TunnelConnect,
    /// The same with an emulated SSL handshake in the tunnel before the request (RR02, Table 3).
    TunnelSsl,
}

impl Kind {
    /// The contender's mode.
    pub(super) fn mode(self) -> ProxyMode {
        match self {
            Kind::Get | Kind::Connect => ProxyMode::Http,
            Kind::Tunnel | Kind::TunnelConnect | Kind::TunnelSsl => ProxyMode::Tunnel,
        }
    }

    /// How the clients use connections.
    pub(super) fn style(self) -> Style {
        match self {
            Kind::Get | Kind::Tunnel => Style::KeepAlive,
            Kind::Connect | Kind::TunnelConnect | Kind::TunnelSsl => Style::NewConnection,
        }
    }
}
