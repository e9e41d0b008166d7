//! What the connections of one thread share.

use std::cell::{Cell, Ref};
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use weir_core::class;
use weir_core::proxy::{Proxy, ProxyMode};

use super::client::Client;
use super::client_limit::ThreadClientLimit;
use super::date::DateCache;
use super::future_pool::FuturePool;
use super::http::{Forecast, Scratch, Served, Upstreams};
use super::thread_state::StateCell;
use crate::access_log::Journal;
use crate::cache::ThreadCache;
use crate::http::{Limits, Role};
use crate::metrics::ListenerCounters;
use crate::runtime::{Handle, TaskId, TcpStream};
use crate::sys;
use crate::transfer::{Resources, Rules, TransferContext, Tunnelled};

/// What an exchange begins with: its client, and whether that has not asked anything yet.
pub type ExchangeStart = (Rc<Worker>, Client, bool);

/// What an exchange gives back.
pub type ExchangeEnd = (Client, Served);

/// What the connections of one thread share.
pub struct Worker {
    /// The thread's loop.
    pub handle: Handle,
    /// What the proxy is to do.
    pub settings: Arc<Proxy>,
    /// The rules of its classes.
    pub classes: Arc<class::Rules>,
    /// Buffers and pipes.
    pub resources: Resources,
    /// The servers.
    pub upstreams: Upstreams,
    /// Memory for heads.
    pub scratch: Scratch,
    /// Futures that serve requests.
    pub exchanges: FuturePool<ExchangeStart, ExchangeEnd>,
    /// How large replies will be.
    pub forecast: Forecast,
    /// How large a head may be.
    pub limits: Limits,
    /// `Host` for clients that send none.
    pub default_host: String,
    /// The current date, as text.
    pub(super) date: DateCache,
    /// This thread's access to the cache, if there is one.
    pub cache: Option<Rc<ThreadCache>>,
    /// What the thread did.
    pub counters: Arc<ListenerCounters>,
    /// What the thread is doing.
    pub(super) state: Arc<StateCell>,
    /// The access log; `None`: requests are not logged.
    pub journal: Option<Journal>,
    /// Connections of clients that are open.
    pub(super) clients: Cell<usize>,
    /// Most that were open since memory was last given back.
    pub(super) most_clients: Cell<usize>,
    /// `max_clients`, over all threads.
    pub(super) client_limit: ThreadClientLimit,
    /// See [`is_draining`](Self::is_draining).
    pub(super) draining: Cell<bool>,
    /// See [`ends_idle`](Self::ends_idle).
    pub(super) ends_idle: Cell<bool>,
    /// The task that accepts, and waits for the last client.
    pub(super) main: TaskId,
}

/// Clients that have gone, whose memory is worth a call to give it back: a MB and more.
const WORTH_A_TRIM: usize = 256;

impl Worker {
    /// Gives memory back once most of many clients have gone. A client whose request is not whole yet has some KB.
    pub(super) fn trim_memory(&self) {
        let (clients, most) = (self.clients.get(), self.most_clients.get());
        if most - clients >= WORTH_A_TRIM && clients < most / 2 {
            sys::trim_memory();
            self.most_clients.set(clients);
        }
    }

    /// Closes connections that are between two requests.
    pub fn end_idle(&self) {
        self.ends_idle.set(true);
        self.handle.wake_all();
    }

    /// What the proxy is to its clients.
    pub fn role(&self) -> Role {
        match self.settings.mode {
            ProxyMode::Forward => Role::Forward,
            ProxyMode::Reverse | ProxyMode::Tcp => Role::Reverse,
        }
    }

    /// The time now as an HTTP date. Not to be held over an await.
    pub fn date(&self) -> Ref<'_, str> {
        self.date.at(self.handle.now())
    }

    /// Whether connections are to be closed after the request that comes next.
    pub fn is_draining(&self) -> bool {
        self.draining.get()
    }

    /// Whether connections are closed between two requests. They are not while a successor accepts on the same sockets:
    /// that would reset a client whose next request is on its way.
    pub fn ends_idle(&self) -> bool {
        self.ends_idle.get()
    }

    /// What transfers of bodies and tunnels work with.
    pub fn transfers(&self) -> TransferContext<'_> {
        TransferContext {
            resources: &self.resources,
            rules: Rules {
                engine: self.settings.engine,
                idle: self.settings.idle_timeout,
            },
        }
    }

    /// Writes the log line of this client's request, which has ended.
    pub fn log(&self, client: &mut Client) {
        if let (Some(journal), Some(entry)) = (&self.journal, client.take_entry())
            && !journal.write(entry)
        {
            self.counters.access_log_lost.add(1);
        }
    }

    /// Counts a tunnel to this server that has ended.
    pub fn count_tunnel(&self, client: &Client, server: &TcpStream, tunnelled: &Tunnelled) {
        client.note(|entry| {
            entry.tunnel.set(true);
            entry.moved(tunnelled.forth, tunnelled.back);
            entry.moved_by_kernel(tunnelled.spliced, tunnelled.redirected);
            if let Err(broken) = &tunnelled.end {
                let error = broken.error();
                entry.because(match error.kind() {
                    io::ErrorKind::TimedOut => "idle: nothing came for idle_timeout".to_owned(),
                    _ if client.stream.is_over() => format!("client_gone: {error}"),
                    _ if server.is_over() => format!("server_gone: {error}"),
                    _ => format!("proxy_internal_error: {error}"),
                });
            }
        });
        self.counters.bytes_up.add(tunnelled.forth);
        self.counters.bytes_down.add(tunnelled.back);
        self.counters.bytes_spliced.add(tunnelled.spliced);
        self.counters.bytes_redirected.add(tunnelled.redirected);
        match &tunnelled.end {
            Ok(()) => {}
            Err(broken) if broken.error().kind() == io::ErrorKind::TimedOut => {
                self.counters.timed_out.add(1);
            }
            Err(_) => self.counters.transfers_broken.add(1),
        }
    }
}

/// One of the `max_clients` slots.
pub struct ClientPermit(Rc<Worker>);

impl ClientPermit {
    /// Takes a slot; `None` if all are taken.
    pub fn take(worker: &Rc<Worker>) -> Option<ClientPermit> {
        worker
            .client_limit
            .try_acquire()
            .then(|| ClientPermit(worker.clone()))
    }

    /// Takes a slot, also one beyond the limit.
    pub fn take_over_limit(worker: &Rc<Worker>) -> ClientPermit {
        worker.client_limit.acquire_over_limit();
        ClientPermit(worker.clone())
    }
}

impl Drop for ClientPermit {
    fn drop(&mut self) {
        if self.0.client_limit.release() {
            self.0.handle.wake(self.0.main);
        }
    }
}

/// A client that is counted as long as its task lives.
pub struct ClientGuard(ClientPermit);

impl ClientGuard {
    /// The thread that serves it.
    pub fn worker(&self) -> &Rc<Worker> {
        &self.0.0
    }

    /// Counts a client that was accepted.
    pub fn new(permit: ClientPermit) -> ClientGuard {
        let worker = &permit.0;
        let clients = worker.clients.get() + 1;
        worker.clients.set(clients);
        worker
            .most_clients
            .set(worker.most_clients.get().max(clients));
        worker.counters.clients_accepted.add(1);
        ClientGuard(permit)
    }
}

impl Drop for ClientGuard {
    fn drop(&mut self) {
        let worker = self.worker();
        worker.counters.clients_closed.add(1);
        let clients = worker.clients.get();
        worker.clients.set(clients - 1);
        if worker.draining.get() && clients == 1 {
            worker.handle.wake(worker.main);
        }
    }
}
