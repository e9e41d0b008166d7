//! Ctrl-C and SIGTERM end an experiment in order, so that namespaces and servers are removed.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Context, Error, Result};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Takes SIGINT and SIGTERM over. From then on every waiting function of the lab returns
/// [`Error::interrupted`] soon after a signal, and what it owns is dropped.
pub fn install() -> Result<()> {
    ctrlc::set_handler(|| INTERRUPTED.store(true, Ordering::Relaxed))
        .context("cannot handle SIGINT and SIGTERM")
}

/// Whether a signal has come.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// An error once a signal has come.
pub fn check() -> Result<()> {
    if interrupted() {
        Err(Error::interrupted())
    } else {
        Ok(())
    }
}
