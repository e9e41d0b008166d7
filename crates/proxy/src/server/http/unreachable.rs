//! Why there is no connection to a server, as the client and the access log are told.

use std::io::{self, ErrorKind};

use super::prohibited::Prohibited;
use crate::http::answer::{Answer, ProxyError};
use crate::shortage;
use crate::upstream::{is_name_timeout, is_without_address};

/// What the access log says of a client that did not wait for its turn.
pub const GONE: &str = "client_gone: it went away while it waited for a connection";

/// As long as the process is out of them: no server is to blame.
const NO_DESCRIPTOR: Answer<'static> = Answer {
    status: 503,
    error: ProxyError::ConnectionLimitReached,
    details: "the proxy has no descriptor or memory left for a connection",
};

/// As long as this machine has none for that server: see `source`.
const NO_LOCAL_PORT: Answer<'static> = Answer {
    status: 503,
    error: ProxyError::ConnectionLimitReached,
    details: "the proxy has no local port or address left for a connection to the server",
};

/// As long as no name of a backend has been resolved.
const NO_ADDRESS: Answer<'static> = Answer {
    status: 503,
    error: ProxyError::DestinationUnavailable,
    details: "no backend has an address: its name has not been resolved",
};

/// Why there is no connection to a server.
pub fn unreachable(error: &io::Error) -> Answer<'static> {
    if shortage::is_behind(error) {
        return NO_DESCRIPTOR;
    }
    if shortage::is_of_ports(error) {
        return NO_LOCAL_PORT;
    }
    if let Some(prohibited) = Prohibited::of(error) {
        return prohibited.answer();
    }
    if is_without_address(error) {
        return NO_ADDRESS;
    }
    let error = match error.kind() {
        ErrorKind::ConnectionRefused => ProxyError::ConnectionRefused,
        ErrorKind::TimedOut if is_name_timeout(error) => ProxyError::DnsTimeout,
        ErrorKind::TimedOut => ProxyError::ConnectionTimeout,
        // No connection slot is free (see `max_connections`).
        ErrorKind::QuotaExceeded => ProxyError::ConnectionLimitReached,
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => {
            ProxyError::DestinationIpUnroutable
        }
        ErrorKind::Other => ProxyError::DnsError,
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
            ProxyError::ConnectionTerminated
        }
        _ => ProxyError::DestinationUnavailable,
    };
    error.into()
}
