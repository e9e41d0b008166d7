//! What one thread counts, beside what it counts of each backend.

use std::sync::Arc;

use super::thread_state::StateCell;
use crate::metrics::ListenerCounters;
use crate::upstream::BackendAccount;

/// The counters of one thread.
#[derive(Debug, Clone, Default)]
pub struct Counters {
    /// Counters of the clients' side.
    pub listener: Arc<ListenerCounters>,
    /// Counters of all servers of mode forward together.
    pub origins: BackendAccount,
    /// What the thread is doing.
    pub state: Arc<StateCell>,
}
