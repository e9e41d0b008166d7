//! The mode of a proxy.

use serde::{Deserialize, Serialize};

/// What a proxy does with the connections that it accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProxyMode {
    /// Goes where the client says: GET with an absolute URI, CONNECT (RFC 9110, Section 3.7).
    Forward,
    /// Hands HTTP requests to one of its backends.
    Reverse,
    /// Hands each connection, whatever it carries, to one of its backends.
    Tcp,
}
