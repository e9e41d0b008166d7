//! What load to offer, and what came of it.

use std::net::SocketAddr;
use std::time::Duration;

use super::schedule::Pattern;
use super::tally::Tally;
use super::tcp::Kind;

/// What load to offer.
#[derive(Debug, Clone)]
pub struct Load {
    /// The server.
    pub target: SocketAddr,
    /// Connections/s, mean.
    pub rate_per_s: f64,
    /// How their beginnings are spread.
    pub pattern: Pattern,
    /// Offered before the window; not counted.
    pub warm_up: Duration,
    /// The measuring window.
    pub window: Duration,
    /// The clients' patience, from the first SYN on.
    pub timeout: Duration,
    /// Kind of client.
    pub kind: Kind,
    /// The server closes its side first.
    pub server_closes_first: bool,
    /// Whether to wait, after the window, for the fate of every connection. Without, those still
    /// open are counted in [`Run::unfinished`].
    pub drain: bool,
}

/// The edges of the measuring window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The warm-up is over, the window begins.
    WindowBegins,
    /// The window is over.
    WindowEnds,
}

/// What came of it.
#[derive(Debug, Clone)]
pub struct Run {
    /// Counts and histograms.
    pub tally: Tally,
    /// Connections/s that were really begun inside the window.
    pub offered_per_s: f64,
    /// The latest SYN came this long after it was due.
    pub worst_lateness: Duration,
    /// Share of the SYNs that came more than 10 ms late.
    pub late_share: f64,
    /// Connections that could not begin for lack of a free slot.
    pub skipped: u64,
    /// Connections of the window whose fate was not waited for.
    pub unfinished: u64,
    /// Largest number of connections in flight.
    pub max_in_flight: u64,
    /// Packets sent and received per second in the window.
    pub packets_per_s: (f64, f64),
    /// Why the run does not count; `None` for a sound run.
    pub flaw: Option<String>,
}
