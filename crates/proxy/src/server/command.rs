//! Control messages to threads.

use std::time::Duration;

/// A control message to a thread.
#[derive(Debug, Clone)]
pub enum Command {
    /// Accept the connections that wait in the accept queue, and no more. End when all clients are served, or after this
    /// time.
    Drain(Duration),
    /// Accept no more: another process or generation accepts what waits. End when all clients are served.
    Retire,
    /// Panic, for a test.
    #[cfg(test)]
    Panic,
}
