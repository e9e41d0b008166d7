//! Why a proxy cannot start or go on.

use std::io;
use std::net::SocketAddr;

/// Why a proxy cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {cause}")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// As bind(2) and listen(2).
        cause: io::Error,
    },
    /// A setting that this machine does not take.
    #[error("cannot use {key} = {value:?}: {cause}")]
    Setting {
        /// Its key.
        key: String,
        /// Its value.
        value: String,
        /// As bind(2) and setsockopt(2).
        cause: io::Error,
    },
    /// A setting that does not go with another.
    #[error("cannot use {key}: {cause}")]
    Conflict {
        /// Its key.
        key: &'static str,
        /// Why not.
        cause: &'static str,
    },
    /// A thread ended that should not have.
    #[error("thread {index} failed: {why}")]
    ThreadFailed {
        /// Which, from 0.
        index: usize,
        /// Its panic or its error.
        why: String,
    },
    /// The kernel refuses a thread, an epoll or an event descriptor.
    #[error("cannot {what}: {cause}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why not.
        cause: io::Error,
    },
}
