//! The servers behind the proxy: which one is next, and connections to it.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::metrics::BackendCounters;
use crate::runtime::{Clock, Handle, SideOptions, TcpStream};

/// How long a backend that refused a connection is passed over, if others are there.
const PASSED_OVER: Clock = 1000;

/// The backends of a proxy, as one thread sees them.
pub struct Backends {
    list: Vec<Backend>,
    next: Cell<usize>,
    connect_timeout: Duration,
    options: SideOptions,
}

/// One backend, as one thread sees it.
pub struct Backend {
    /// Where it listens.
    pub address: SocketAddr,
    /// What this thread did with it.
    pub counters: Arc<BackendCounters>,
    /// Until when it is passed over.
    down_until: Cell<Clock>,
}

impl Backends {
    /// Backends with the counters of this thread, one each.
    pub fn new(
        addresses: &[SocketAddr],
        counters: &[Arc<BackendCounters>],
        connect_timeout: Duration,
    ) -> Backends {
        let backend = |(address, counters): (&SocketAddr, &Arc<BackendCounters>)| Backend {
            address: *address,
            counters: counters.clone(),
            down_until: Cell::new(0),
        };
        Backends {
            list: addresses.iter().zip(counters).map(backend).collect(),
            next: Cell::new(0),
            connect_timeout,
            options: SideOptions::default(),
        }
    }

    /// Connects to the next backend in turn, or to one after it if that fails; each is tried once.
    ///
    /// # Errors
    /// That of the last one tried.
    pub async fn connect(&self, handle: &Handle) -> io::Result<(&Backend, TcpStream)> {
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for backend in self.in_turn(handle.now()) {
            match self.connect_to(handle, backend).await {
                Ok(stream) => return Ok((backend, stream)),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Connects to one backend.
    ///
    /// # Errors
    /// As connect(2), `TimedOut` after the connect timeout.
    pub async fn connect_to(&self, handle: &Handle, backend: &Backend) -> io::Result<TcpStream> {
        handle.set_deadline(self.connect_timeout);
        let connected = TcpStream::connect(handle, backend.address, None, &self.options).await;
        match &connected {
            Ok(_) => backend.counters.connects.add(1),
            Err(_) => {
                backend.counters.connects_failed.add(1);
                backend.down_until.set(handle.now() + PASSED_OVER);
            }
        }
        connected
    }

    /// All backends, once each, from the next in turn on; those that just failed come last.
    fn in_turn(&self, now: Clock) -> Vec<&Backend> {
        let first = self.next.get();
        self.next.set((first + 1) % self.list.len().max(1));
        let (before, after) = self.list.split_at(first);
        let mut turn: Vec<&Backend> = after.iter().chain(before).collect();
        turn.sort_by_key(|backend| backend.down_until.get() > now);
        turn
    }
}
