//! One server: its open connections, its health, its counters.

use std::cell::{Cell, RefCell};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use weir_core::proxy::Proxy;

use super::source::Sources;
use crate::metrics::BackendCounters;
use crate::runtime::{Clock, Handle, TcpStream};

/// How long a backend that refused a connection is passed over, if others are there.
const PASSED_OVER: Clock = 1000;
/// Idle connections kept to one backend by one thread.
const IDLE_KEPT: usize = 1024;

/// One server, as one thread sees it.
pub struct Backend {
    /// Where it listens.
    pub address: SocketAddr,
    /// What this thread did with it.
    pub counters: Arc<BackendCounters>,
    settings: Arc<Proxy>,
    sources: Sources,
    /// When a connection to it last failed, if none has succeeded since.
    failed: Cell<Option<Clock>>,
    idle: RefCell<Vec<Idle>>,
}

struct Idle {
    stream: TcpStream,
    since: Clock,
}

/// A connection to a backend.
pub struct Link {
    /// The connection.
    pub stream: TcpStream,
    /// Whose it is.
    pub backend: Rc<Backend>,
    /// It has carried a request before: its server may be about to close it.
    pub reused: bool,
}

impl Backend {
    /// A backend without connections.
    pub fn new(
        address: SocketAddr,
        counters: Arc<BackendCounters>,
        settings: Arc<Proxy>,
    ) -> Backend {
        Backend {
            address,
            counters,
            sources: Sources::new(&settings.source, address),
            settings,
            failed: Cell::new(None),
            idle: RefCell::default(),
        }
    }

    /// An idle connection if there is one, else a new one.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub async fn link(self: &Rc<Self>, handle: &Handle) -> io::Result<Link> {
        match self.reuse() {
            Some(link) => Ok(link),
            None => self.connect(handle).await,
        }
    }

    /// The connection that was used last: the others may be closed for want of work. One that its
    /// server has closed, or on which it said something unasked, is passed over.
    fn reuse(self: &Rc<Self>) -> Option<Link> {
        let mut idle = self.idle.borrow_mut();
        while let Some(Idle { stream, .. }) = idle.pop() {
            if stream.is_quiet() {
                self.counters.reused.add(1);
                return Some(Link {
                    stream,
                    backend: self.clone(),
                    reused: true,
                });
            }
        }
        None
    }

    /// A new connection.
    ///
    /// # Errors
    /// As connect(2), `TimedOut` after the connect timeout.
    pub async fn connect(self: &Rc<Self>, handle: &Handle) -> io::Result<Link> {
        handle.set_deadline(self.settings.connect_timeout);
        let options = &self.settings.server;
        match self.sources.connect(handle, self.address, options).await {
            Ok(stream) => {
                self.counters.connects.add(1);
                self.failed.set(None);
                Ok(Link {
                    stream,
                    backend: self.clone(),
                    reused: false,
                })
            }
            Err(error) => {
                self.counters.connects_failed.add(1);
                // That this machine has no port left says nothing of the server.
                if error.kind() != ErrorKind::AddrNotAvailable {
                    self.failed.set(Some(handle.now()));
                }
                Err(error)
            }
        }
    }

    /// Keeps a connection for the next request.
    pub fn keep(&self, stream: TcpStream) {
        let mut idle = self.idle.borrow_mut();
        if idle.len() < IDLE_KEPT && stream.quiesce() {
            let since = stream.handle().now();
            idle.push(Idle { stream, since });
        }
    }

    /// Closes idle connections that their server has closed, or that were not used since `then`.
    pub fn sweep(&self, then: Clock) {
        let mut idle = self.idle.borrow_mut();
        idle.retain(|idle| idle.since > then && idle.stream.is_quiet());
    }

    /// Whether it failed shortly before `now`, and has not been found well since. What fails later
    /// than `now` does not count.
    pub fn was_down(&self, now: Clock) -> bool {
        let failed = self.failed.get();
        failed.is_some_and(|failed| failed < now && now - failed < PASSED_OVER)
    }

    /// Whether no connection to it is kept.
    pub fn is_unused(self: &Rc<Self>) -> bool {
        Rc::strong_count(self) == 1 && self.idle.borrow().is_empty()
    }
}
