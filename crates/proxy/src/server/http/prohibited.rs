//! Where a forward proxy takes no client.

use std::io::{self, ErrorKind};

use crate::http::answer::{Answer, ProxyError};
use crate::metrics::ListenerCounters;

/// Why a client is not taken to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Prohibited {
    /// By its address: `allow_to`, `deny_to` and the scopes of client and server.
    #[error("the proxy does not take this client there")]
    Address,
    /// By its address: this process listens there.
    #[error("the proxy itself listens there")]
    OwnListener,
    /// By its port: `connect_ports`.
    #[error("CONNECT to this port is not allowed")]
    Port,
}

impl Prohibited {
    /// What an error of the search for a server says, if it is this.
    pub fn of(error: &io::Error) -> Option<Prohibited> {
        error.get_ref()?.downcast_ref().copied()
    }

    /// What the client is told.
    pub fn answer(self) -> Answer<'static> {
        let (error, details) = match self {
            Prohibited::Address => return ProxyError::DestinationIpProhibited.into(),
            Prohibited::OwnListener => (
                ProxyError::DestinationIpProhibited,
                "the proxy itself listens there",
            ),
            Prohibited::Port => (
                ProxyError::HttpRequestDenied,
                "CONNECT to this port is not allowed (connect_ports)",
            ),
        };
        Answer {
            status: 403,
            error,
            details,
        }
    }

    /// Counts a request that is refused for it.
    pub fn count(self, counters: &ListenerCounters) {
        let counter = match self {
            Prohibited::Address => &counters.refused_address,
            Prohibited::OwnListener => &counters.refused_own_listener,
            Prohibited::Port => &counters.refused_port,
        };
        counter.add(1);
    }
}

impl From<Prohibited> for io::Error {
    fn from(prohibited: Prohibited) -> io::Error {
        io::Error::new(ErrorKind::PermissionDenied, prohibited)
    }
}
