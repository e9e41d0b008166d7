//! What one thread counts.

use std::sync::Arc;

use super::thread_state::StateCell;
use crate::metrics::{BackendCounters, BackendGauges, ListenerCounters};

/// The counters of one thread.
#[derive(Debug, Clone)]
pub struct Counters {
    /// Counters of the clients' side.
    pub listener: Arc<ListenerCounters>,
    /// Counters of each backend, in the order of the settings.
    pub backends: Vec<BackendAccount>,
    /// Counters of all servers of mode forward together.
    pub origins: BackendAccount,
    /// What the thread is doing.
    pub state: Arc<StateCell>,
}

/// What one thread counts of one backend.
#[derive(Debug, Clone, Default)]
pub struct BackendAccount {
    /// What the thread did with it.
    pub counters: Arc<BackendCounters>,
    /// Connections to it now.
    pub gauges: Arc<BackendGauges>,
}

impl Counters {
    /// Sets the gauges to 0: for a thread that begins where another failed.
    pub fn reset_gauges(&self) {
        for account in self.servers() {
            account.gauges.in_use.reset();
            account.gauges.idle.reset();
        }
    }

    /// The backends, and all servers of mode forward as one.
    pub fn servers(&self) -> impl Iterator<Item = &BackendAccount> {
        self.backends.iter().chain([&self.origins])
    }
}
