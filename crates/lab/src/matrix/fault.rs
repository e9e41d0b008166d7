//! What a proxy must not do.

use serde::Serialize;

/// Kinds of faults, as they are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Bytes changed, lost, doubled, invented or out of order.
    Corrupt,
    /// An end where none was due, or none or a RST where an end was.
    WrongEnd,
    /// Nothing moved for too long.
    Stuck,
    /// A connection or a request that never reached the origin, or the other way round.
    Lost,
    /// Descriptors of the proxy that outlived their connections.
    Leaked,
}

/// One fault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// What kind.
    pub kind: Kind,
    /// On which transfer, and what exactly.
    pub text: String,
}

impl Fault {
    /// A fault.
    pub fn new(kind: Kind, text: impl Into<String>) -> Fault {
        Fault {
            kind,
            text: text.into(),
        }
    }
}
