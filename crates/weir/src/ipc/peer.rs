//! Who asks.

use std::fmt;

/// The process at the other end of a Unix socket, as the kernel names it (SO_PEERCRED).
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

/// Who asks, and by which way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asker {
    /// Over the control socket, whose permissions let its owner and root in only.
    Control(Peer),
    /// Over the API's socket.
    Api(Peer),
    /// Over TCP: neither user nor process is known.
    Tcp,
}

impl fmt::Display for Asker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Asker::Control(Peer { uid, pid }) | Asker::Api(Peer { uid, pid }) => match pid {
                Some(pid) => write!(f, "uid {uid} (pid {pid})"),
                None => write!(f, "uid {uid}"),
            },
            Asker::Tcp => f.write_str("a client over TCP"),
        }
    }
}
