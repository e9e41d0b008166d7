//! Why a proxy cannot start or go on.

use std::io;
use std::net::SocketAddr;

/// Why a proxy cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The proxy cannot listen on an address.
    #[error("cannot listen on {address}: {cause}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// As bind(2) and listen(2).
        cause: io::Error,
    },
    /// This machine does not take a setting.
    #[error("cannot use {key} = {value:?}: {cause}")]
    Setting {
        /// Its key.
        key: String,
        /// Its value.
        value: String,
        /// As bind(2) and setsockopt(2).
        cause: io::Error,
    },
    /// Two settings exclude each other.
    #[error("cannot use {key}: {cause}")]
    Conflict {
        /// Its key.
        key: &'static str,
        /// Why not.
        cause: &'static str,
    },
    /// A thread panicked or lost its epoll, too often to restart it.
    #[error("thread {index} failed: {why}")]
    ThreadFailed {
        /// Its number, from 0.
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
