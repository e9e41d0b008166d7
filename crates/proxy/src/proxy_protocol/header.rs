//! What a header says, and why there is none.

use std::net::SocketAddr;

/// A client's address and the address that it connected to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoints {
    /// The client.
    pub source: SocketAddr,
    /// What the client connected to.
    pub destination: SocketAddr,
}

/// A header at the start of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProxyHeader {
    /// Its bytes; the connection's own begin there.
    pub len: usize,
    /// For whom the connection is; `None` when the proxy speaks for itself (a health check) or of
    /// something other than TCP: then the connection's own addresses hold.
    pub endpoints: Option<Endpoints>,
}

/// The connection does not begin with a PROXY header; it must be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyHeaderError {
    /// It begins with something else.
    Missing,
    /// It begins with a header that is malformed.
    Malformed,
    /// It begins with a header of version 2 whose checksum is wrong.
    Checksum,
    /// It begins with a header that is longer than any in use.
    TooLong,
}

impl std::fmt::Display for ProxyHeaderError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Missing => "the connection does not begin with a PROXY header",
            Self::Malformed => "the PROXY header is malformed",
            Self::Checksum => "the PROXY header has a wrong checksum",
            Self::TooLong => "the PROXY header is too long",
        })
    }
}

impl std::error::Error for ProxyHeaderError {}
