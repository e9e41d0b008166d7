//! The process at the other end of a socket.

use std::fmt;

/// A client, as the kernel names it (SO_PEERCRED). A client over TCP has neither user nor process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// User; `u32::MAX` if the kernel does not tell.
    pub uid: u32,
    /// Process, as this process sees it.
    pub pid: Option<i32>,
}

impl Peer {
    /// A client of which nothing is known.
    pub const UNKNOWN: Peer = Peer {
        uid: u32::MAX,
        pid: None,
    };
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            Some(pid) => write!(f, "uid {} (pid {pid})", self.uid),
            None => write!(f, "uid {}", self.uid),
        }
    }
}
