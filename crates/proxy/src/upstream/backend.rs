//! One server: its open connections, its health, its counters.

use std::cell::{Cell, RefCell};
use std::cmp::Ordering;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use weir_core::proxy::Proxy;

use super::ending;
use super::limit::{Permit, ThreadConnectionLimit};
use super::shared_backend::SharedBackend;
use super::source::Sources;
use crate::metrics::{BackendCounters, BackendGauges};
use crate::runtime::{Clock, Handle, TcpStream};
use crate::shortage;

/// How long a backend that refused a connection is passed over, if others are there.
const PASSED_OVER: Clock = 1000;

/// One server, as one thread sees it.
pub struct Backend {
    /// Where it listens.
    pub address: SocketAddr,
    /// What this thread did with it.
    pub counters: Arc<BackendCounters>,
    context: BackendContext,
    settings: Arc<Proxy>,
    sources: Sources,
    /// When a connection to it last failed, if none has succeeded since.
    failed: Cell<Option<Clock>>,
    /// Its address is no longer one of the proxy's.
    is_gone: Cell<bool>,
    /// Connections that this thread uses now.
    in_use: Cell<u32>,
    idle: RefCell<Vec<Idle>>,
}

/// What a backend shares with the other backends of its proxy, and with itself on other threads.
#[derive(Default, Clone)]
pub struct BackendContext {
    /// What all threads have of it; `None` of the servers of mode forward.
    pub shared: Option<Arc<SharedBackend>>,
    /// Idle connections to it that this thread keeps at most.
    pub max_idle: usize,
    /// The limit to it, where connections are limited.
    pub limit: Option<Rc<ThreadConnectionLimit>>,
    /// What this thread has of it now; of all servers together in mode forward.
    pub gauges: Arc<BackendGauges>,
}

struct Idle {
    // Closed before its slot is free.
    stream: TcpStream,
    permit: Option<Permit>,
    since: Clock,
}

impl Backend {
    /// A backend without connections.
    pub fn new(
        address: SocketAddr,
        counters: Arc<BackendCounters>,
        settings: Arc<Proxy>,
        context: BackendContext,
    ) -> Backend {
        Backend {
            address,
            counters,
            context,
            sources: Sources::new(&settings.source, address),
            settings,
            failed: Cell::new(None),
            is_gone: Cell::new(false),
            in_use: Cell::new(0),
            idle: RefCell::default(),
        }
    }

    /// An idle connection if there is one, else a new one; for a backend without a limit.
    ///
    /// # Errors
    /// As connect(2), `TimedOut` after the connect timeout.
    pub async fn link(self: &Rc<Self>, handle: &Handle) -> io::Result<Link> {
        match self.reuse() {
            Some(link) => Ok(link),
            None => self.connect(handle).await,
        }
    }

    /// The connection that was used last: the others may be closed for want of work. One that its
    /// server has closed, or on which it said something unasked, is passed over.
    pub fn reuse(self: &Rc<Self>) -> Option<Link> {
        let idle = self.pop_quiet()?;
        Some(self.reused(idle.stream, idle.permit))
    }

    fn pop_quiet(&self) -> Option<Idle> {
        loop {
            let last = self.pop_idle()?;
            if last.stream.is_quiet() {
                return Some(last);
            }
        }
    }

    fn pop_idle(&self) -> Option<Idle> {
        let last = self.idle.borrow_mut().pop()?;
        self.context.gauges.idle.lower(1);
        Some(last)
    }

    /// The idle connection that this thread was promised, or a new one in its slot.
    ///
    /// # Errors
    /// As [`link`](Self::link).
    pub async fn reuse_promised(self: &Rc<Self>, handle: &Handle) -> io::Result<Link> {
        let Idle { stream, permit, .. } = self.pop_idle().ok_or(ErrorKind::NotFound)?;
        if stream.is_quiet() {
            return Ok(self.reused(stream, permit));
        }
        drop(stream);
        Lease::new(self.clone(), permit).connect(handle).await
    }

    /// A connection that has carried a request before.
    pub fn reused(self: &Rc<Self>, stream: TcpStream, permit: Option<Permit>) -> Link {
        self.counters.reused.add(1);
        Link {
            stream,
            lease: Lease::new(self.clone(), permit),
            reused: true,
        }
    }

    /// A new connection, for a backend without a limit.
    ///
    /// # Errors
    /// As connect(2), `TimedOut` after the connect timeout.
    pub async fn connect(self: &Rc<Self>, handle: &Handle) -> io::Result<Link> {
        Lease::new(self.clone(), None).connect(handle).await
    }

    /// Connects, and takes note of what came of it.
    pub(super) async fn dial(&self, handle: &Handle) -> io::Result<TcpStream> {
        handle.set_deadline(self.settings.connect_timeout);
        let began_us = handle.now_us();
        let options = &self.settings.server;
        let dialled = self.sources.connect(handle, self.address, options).await;
        match &dialled {
            Ok(_) => {
                self.counters.connects.add(1);
                self.counters.connect.observe(handle.now_us() - began_us);
                self.note(None);
                if let Some(shared) = &self.context.shared {
                    shared.note_connected(&self.settings.name);
                }
            }
            Err(error) => {
                self.counters.connects_failed.add(1);
                // That this machine has no port or no descriptor left says nothing of the server.
                if shortage::is_behind(error) {
                    shortage::warn("connect to a server", error);
                } else if shortage::is_of_ports(error) {
                    self.counters.no_local_port.add(1);
                    shortage::warn_of_ports(&self.settings.name, self.address, error);
                } else {
                    self.note(Some(handle.now()));
                    if let Some(shared) = &self.context.shared {
                        shared.note_unconnected(&self.settings.name, error);
                    }
                    self.look_again(error);
                }
            }
        }
        dialled
    }

    /// Its name may have another address by now, unless this machine has no way there.
    fn look_again(&self, error: &io::Error) {
        if let Some(shared) = &self.context.shared
            && error.kind() != ErrorKind::NetworkUnreachable
        {
            shared.look_again();
        }
    }

    /// It took a connection more slowly than another of the same server.
    pub(super) fn note_slow(&self, now: Clock) {
        self.note(Some(now));
    }

    fn note(&self, failed: Option<Clock>) {
        let before = self.failed.replace(failed);
        if let Some(limit) = &self.context.limit
            && (failed.is_some() || before.is_some())
        {
            limit.note(self.number(), failed.is_some());
        }
    }

    /// Keeps a connection for the next request; one that waits gets it at once.
    pub(super) fn keep(&self, stream: TcpStream, permit: Option<Permit>) {
        if self.is_unwanted() || !stream.quiesce() {
            // In this order: its slot is free once it is closed.
            self.end(stream, false);
            return drop(permit);
        }
        let since = stream.handle().now();
        let (stream, permit) = match (permit, &self.context.limit) {
            (Some(permit), Some(limit)) => match limit.offer(stream, permit) {
                Some((stream, permit)) => (stream, Some(permit)),
                None => return,
            },
            (permit, _) => (stream, permit),
        };
        self.idle.borrow_mut().push(Idle {
            stream,
            permit,
            since,
        });
        self.context.gauges.idle.raise();
        if self.idle.borrow().len() > self.context.max_idle {
            self.close_oldest();
        }
    }

    /// Closes the connection that has been idle the longest, unless another thread was promised one.
    fn close_oldest(&self) {
        if !self.may_close_idle() {
            return;
        }
        let Idle { stream, permit, .. } = self.idle.borrow_mut().remove(0);
        self.context.gauges.idle.lower(1);
        // Not under the borrow: its slot may be used at once.
        self.end(stream, false);
        drop(permit);
    }

    fn may_close_idle(&self) -> bool {
        match &self.context.limit {
            Some(limit) => limit.may_close_idle(self.number()),
            None => true,
        }
    }

    /// Gives up the idle connection that another thread was promised.
    pub fn give_up_idle(&self) {
        let mut idle = self.idle.borrow_mut();
        if idle.is_empty() {
            return;
        }
        let Idle { stream, permit, .. } = idle.remove(0);
        self.context.gauges.idle.lower(1);
        drop(idle);
        match stream.is_quiet() {
            true => self.keep(stream, permit),
            // Its slot goes to the first waiter.
            false => drop((stream, permit)),
        }
    }

    /// Closes idle connections that their server has closed, or that were not used since `then`; all
    /// of them if the server is down or no longer one of the proxy's.
    pub fn sweep(&self, then: Clock) {
        let is_wanted = !self.is_unwanted();
        let is_good = |idle: &Idle| is_wanted && idle.since > then && idle.stream.is_quiet();
        let is_swept = |idle: &mut Idle| !is_good(idle) && self.may_close_idle();
        let swept: Vec<Idle> = self.idle.borrow_mut().extract_if(.., is_swept).collect();
        self.context.gauges.idle.lower(swept.len() as u64);
        // Not under the borrow: a slot that becomes free may be used at once.
        for Idle { stream, permit, .. } in swept {
            self.end(stream, false);
            drop(permit);
        }
    }

    /// Whether a connection to it that carries nothing ends with CLIENT_CLOSE. `asks`: the server asks for it.
    fn ends_with_client_close(&self, asks: bool) -> bool {
        self.settings.send_client_close.applies(asks)
    }

    /// Closes a connection that carries nothing.
    fn end(&self, stream: TcpStream, asks: bool) {
        if self.ends_with_client_close(asks)
            && stream.quiesce()
            && ending::end(stream, self.address)
        {
            self.counters.client_closes_sent.add(1);
        }
    }

    /// Its number among the proxy's backends.
    pub fn number(&self) -> usize {
        self.context.shared.as_ref().map_or(0, |it| it.number)
    }

    /// Whether it is this backend, and not one that had its number before.
    pub fn is_of(&self, shared: &Arc<SharedBackend>) -> bool {
        let own = self.context.shared.as_ref();
        own.is_some_and(|own| Arc::ptr_eq(own, shared))
    }

    /// Its address is one of the proxy's, or no longer.
    pub fn set_gone(&self, is_gone: bool) {
        self.is_gone.set(is_gone);
        if is_gone {
            self.sweep(0);
        }
    }

    /// Whether its address is no longer one of the proxy's.
    pub fn is_gone(&self) -> bool {
        self.is_gone.get()
    }

    /// Its part of the connections.
    pub fn weight(&self) -> u16 {
        self.context
            .shared
            .as_ref()
            .map_or(1, |it| it.setting.weight)
    }

    /// Compares the connections that this thread uses of each now, for its weight.
    pub fn cmp_load(&self, other: &Backend) -> Ordering {
        let in_use = |backend: &Backend| u64::from(backend.in_use.get());
        let (own, others) = (u64::from(self.weight()), u64::from(other.weight()));
        (in_use(self) * others).cmp(&(in_use(other) * own))
    }

    /// Counts one use more.
    pub(super) fn begin_use(&self) {
        self.in_use.set(self.in_use.get() + 1);
        self.context.gauges.in_use.raise();
    }

    /// Counts one use less.
    pub(super) fn end_use(&self) {
        self.in_use.set(self.in_use.get() - 1);
        self.context.gauges.in_use.lower(1);
    }

    /// Whether health checks say that it is down, and another is not.
    pub fn is_avoided(&self) -> bool {
        let shared = self.context.shared.as_ref();
        shared.is_some_and(|shared| shared.is_avoided())
    }

    /// Whether no connection to it is to be kept.
    fn is_unwanted(&self) -> bool {
        self.is_gone() || self.is_avoided()
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

impl Drop for Backend {
    fn drop(&mut self) {
        let idle = self.idle.get_mut().len();
        self.context.gauges.idle.lower(idle as u64);
    }
}

/// A connection to a server.
pub struct Link {
    // Closed before the lease ends: its slot is free only then.
    /// The connection.
    pub stream: TcpStream,
    /// The right to it.
    pub lease: Lease,
    /// It has carried a request before: its server may be about to close it.
    pub reused: bool,
}

/// The use of one connection to a server, counted while it lasts.
pub struct Lease {
    backend: Rc<Backend>,
    /// Where connections are limited.
    permit: Option<Permit>,
}

impl Lease {
    /// Counts one more use of the server.
    pub fn new(backend: Rc<Backend>, permit: Option<Permit>) -> Lease {
        backend.begin_use();
        Lease { backend, permit }
    }

    /// The server.
    pub fn backend(&self) -> &Rc<Backend> {
        &self.backend
    }

    /// Makes a new connection of it; an earlier one must have been closed.
    ///
    /// # Errors
    /// As connect(2), `TimedOut` after the connect timeout.
    pub async fn connect(self, handle: &Handle) -> io::Result<Link> {
        let stream = self.backend.dial(handle).await?;
        Ok(Link {
            stream,
            lease: self,
            reused: false,
        })
    }

    /// Ends the use and keeps the connection for the next request. `asks`: the server asks the proxy to close it.
    pub fn keep(mut self, stream: TcpStream, asks: bool) {
        if self.ends(asks) {
            return self.end(stream, asks);
        }
        let permit = self.permit.take();
        self.backend.keep(stream, permit);
    }

    /// Whether the connection is to be closed because its server asks for it.
    pub fn ends(&self, asks: bool) -> bool {
        asks && self.backend.ends_with_client_close(asks)
    }

    /// Ends the use and the connection, which carries nothing any more.
    pub fn end(self, stream: TcpStream, asks: bool) {
        if asks {
            self.backend.counters.asked_to_close.add(1);
        }
        // Before the lease ends: the connection's slot is free only then.
        self.backend.end(stream, asks);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.backend.end_use();
    }
}
