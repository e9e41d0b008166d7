//! The process or the system is out of descriptors, memory or local ports: that is no fault of a client or a server, lasts
//! for a while, and is said to the operator, though not each time.

use std::io;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::io::Errno;

/// How often it is said at most.
const SAID_EVERY: Duration = Duration::from_secs(10);

static SAID: Mutex<Option<Instant>> = Mutex::new(None);
static SAID_OF_PORTS: Mutex<Option<Instant>> = Mutex::new(None);

/// Whether an error says that the process or the system is out of something.
pub fn is_behind(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    errno.is_some_and(|errno| {
        matches!(
            errno,
            Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM
        )
    })
}

/// Says what cannot be done for want of something, once in ten seconds for the whole process.
pub fn warn(what: &str, error: &io::Error) {
    if is_due(&SAID, Instant::now()) {
        tracing::warn!(
            "cannot {what}: {error}\nhint: raise the limit (LimitNOFILE= of the service, ulimit -n) or lower max_clients; \
             clients wait meanwhile"
        );
    }
}

/// Whether an error of connect(2) says that this machine has no local port left for the server, or no address that reaches it.
pub fn is_of_ports(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable
}

/// Says that there is no local port for a connection to a server, once in ten seconds for the whole process.
pub fn warn_of_ports(proxy: &str, server: SocketAddr, error: &io::Error) {
    if is_due(&SAID_OF_PORTS, Instant::now()) {
        tracing::warn!(
            "proxy {proxy:?}: no local port or address is left for a connection to {server}: {error}\nhint: give the proxy more \
             addresses in `source`, widen net.ipv4.ip_local_port_range, or set net.ipv4.tcp_tw_reuse = 1; `weir doctor` says what \
             takes the ports, the counter no_local_port how often there was none"
        );
    }
}

fn is_due(said: &Mutex<Option<Instant>>, now: Instant) -> bool {
    // The thread that holds the lock is about to warn.
    let Ok(mut said) = said.try_lock() else {
        return false;
    };
    let due = said.is_none_or(|at| now.duration_since(at) >= SAID_EVERY);
    if due {
        *said = Some(now);
    }
    due
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_at_once_and_then_every_ten_seconds() {
        let (said, start) = (Mutex::new(None), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let due = [0, 1, 9, 10, 11, 20].map(|seconds| is_due(&said, at(seconds)));
        assert_eq!(due, [true, false, false, true, false, true]);
    }

    #[test]
    fn what_a_server_or_the_network_fails_at_is_no_shortage() {
        assert!(is_behind(&Errno::MFILE.into()));
        assert!(!is_behind(&Errno::CONNREFUSED.into()));
        assert!(
            !is_behind(&io::ErrorKind::OutOfMemory.into()),
            "weir says no such thing"
        );
    }
}
