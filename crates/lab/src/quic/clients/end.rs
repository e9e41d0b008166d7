//! How and when an attempt to connect ends.

use std::time::{Duration, SystemTime};

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum How {
    /// By a connection or a page: the protocol.
    Served(String),
    /// Given up by the client: its own words.
    GivenUp(String),
    /// Ended by the lab, whose patience was shorter than the client's.
    OutOfPatience,
}

/// The end of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// When, since the epoch.
    pub at: Duration,
    /// How.
    pub how: How,
    /// Of a browser: the protocol of the page that it loaded after that.
    pub next: Option<String>,
}

/// The time, since the epoch.
pub(super) fn since_epoch() -> Duration {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.expect("the clock is set")
}
