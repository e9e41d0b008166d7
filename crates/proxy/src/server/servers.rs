//! The servers of a proxy, as status shows them.

use std::iter::Sum;
use std::net::SocketAddr;

use crate::metrics::BackendGauges;
use crate::upstream::{BackendState, NameReport};

/// The servers of a proxy, over all its threads.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Servers {
    /// Connections to servers that clients name (mode forward).
    pub origins: Connections,
    /// The backends, in the order of the settings. Then those whose addresses have gone and that have a connection.
    pub backends: Vec<BackendReport>,
    /// The names of backends.
    pub names: Vec<NameReport>,
}

/// One backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendReport {
    /// Where it listens.
    pub address: SocketAddr,
    /// The name of which this is an address; `None` if the settings have the address itself.
    pub name: Option<String>,
    /// Its part of the connections; 0 if its address has gone.
    pub weight: u16,
    /// Connections to it.
    pub connections: Connections,
    /// What health checks have found.
    pub state: BackendState,
    /// The result of the last check; empty before the first.
    pub last_check: String,
}

/// Connections now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Connections {
    /// Connections that carry something, or are being made.
    pub in_use: u64,
    /// Connections that are kept for the next request.
    pub idle: u64,
}

impl Connections {
    /// Adds the connections of another generation.
    pub fn add(&mut self, other: Connections) {
        self.in_use += other.in_use;
        self.idle += other.idle;
    }
}

impl<'a> Sum<&'a BackendGauges> for Connections {
    fn sum<I: Iterator<Item = &'a BackendGauges>>(gauges: I) -> Connections {
        let mut sum = Connections::default();
        for gauges in gauges {
            sum.add(Connections {
                in_use: gauges.in_use.get(),
                idle: gauges.idle.get(),
            });
        }
        sum
    }
}
