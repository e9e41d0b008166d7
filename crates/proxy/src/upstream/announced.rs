//! What is said of a backend that is down, or up again.

use std::fmt;
use std::sync::Arc;

/// A backend is down, or up again: as checks find it or, without checks, as connections to it show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthChange {
    /// The proxy's name.
    pub proxy: String,
    /// The backend, by the name and the address that it has.
    pub backend: String,
    /// Whether it is up.
    pub is_up: bool,
    /// The same in a sentence, with the reason.
    pub text: String,
}

/// What is called with each change, by the thread that has found it: it should not wait.
#[derive(Clone)]
pub struct OnHealth(Arc<dyn Fn(&HealthChange) + Send + Sync>);

impl OnHealth {
    /// Calls this.
    pub fn new(call: impl Fn(&HealthChange) + Send + Sync + 'static) -> OnHealth {
        OnHealth(Arc::new(call))
    }

    /// Says this change.
    pub(super) fn call(&self, change: &HealthChange) {
        (self.0)(change);
    }
}

impl fmt::Debug for OnHealth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnHealth")
    }
}
