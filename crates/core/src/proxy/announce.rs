//! What servers learn of the client: its address, and its fields.

use serde::{Deserialize, Serialize};

/// The PROXY header that begins each connection to a server
/// (<https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt>).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SendProxy {
    /// None.
    Off,
    /// One line of text.
    V1,
    /// Binary.
    V2,
}

/// What becomes of a field of a request whose name has another character than letters, digits and `-`. Servers
/// that make variables of fields read `X_Forwarded_For` as `X-Forwarded-For`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OddFieldNames {
    /// The server does not get it.
    Drop,
    /// It passes as it came.
    Pass,
}

/// The field of each request that names the client's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Forwarded {
    /// None is written; those that come pass.
    Off,
    /// `X-Forwarded-For: 192.0.2.1`
    XForwardedFor,
    /// `Forwarded: for=192.0.2.1` (RFC 7239)
    Forwarded,
}
