//! What is measured of each contender: a kind of transfer, a size, a number of clients.

use std::str::FromStr;

use serde::{Serialize, Serializer};

use crate::proxy::body;
use crate::proxy::clients::Style;
use crate::proxy::contender::Mode;

/// A kind of transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// GET on kept connections, from a pool of connections to the origin.
    Get,
    /// A tunnel for each client, requests and replies inside it.
    Tunnel,
    /// GET on a new connection each, from the pool.
    Connect,
    /// A new tunnel for each request.
    TunnelConnect,
}

impl Kind {
    /// Its name in tables and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Get => "get",
            Kind::Tunnel => "tunnel",
            Kind::Connect => "connect",
            Kind::TunnelConnect => "tunnel-connect",
        }
    }

    /// The contender's mode.
    pub fn mode(self) -> Mode {
        match self {
            Kind::Get | Kind::Connect => Mode::Http,
            Kind::Tunnel | Kind::TunnelConnect => Mode::Tunnel,
        }
    }

    /// How the clients use connections.
    pub fn style(self) -> Style {
        match self {
            Kind::Get | Kind::Tunnel => Style::KeepAlive,
            Kind::Connect | Kind::TunnelConnect => Style::NewConnection,
        }
    }
}

/// Bytes, written with K and M for 1024 and 1024².
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub usize);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let (digits, unit) = match text.trim().to_ascii_uppercase() {
            upper if upper.ends_with('K') => (upper.trim_end_matches('K').to_string(), 1 << 10),
            upper if upper.ends_with('M') => (upper.trim_end_matches('M').to_string(), 1 << 20),
            upper => (upper, 1),
        };
        let bytes = digits.parse::<usize>().ok().map(|number| number * unit);
        bytes
            .filter(|bytes| (1..=body::MAX_BYTES).contains(bytes))
            .map(Size)
            .ok_or_else(|| format!("`{text}` is no size from 1 to 16M (as in 33K)"))
    }
}

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = match self.0 {
            bytes if bytes.is_multiple_of(1 << 20) => format!("{}M", bytes >> 20),
            bytes if bytes.is_multiple_of(1 << 10) => format!("{}K", bytes >> 10),
            bytes => bytes.to_string(),
        };
        f.pad(&text)
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0 as u64)
    }
}

/// One case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Case {
    /// Kind of transfer.
    pub kind: Kind,
    /// Bytes of each body.
    #[serde(rename = "bytes")]
    pub size: Size,
    /// Clients at a time.
    pub clients: usize,
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Case {
            kind,
            size,
            clients,
        } = self;
        f.pad(&format!("{} {size} ×{clients}", kind.name()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_they_are_written() {
        for text in ["1K", "33K", "16M", "1000"] {
            assert_eq!(text.parse::<Size>().unwrap().to_string(), text);
        }
        for text in ["0", "17M", "K", "-1"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }
}
