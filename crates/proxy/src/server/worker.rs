//! One thread: accepts connections, and ends when the last one is served after a drain.

use std::cell::{Cell, Ref};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use weir_core::class;
use weir_core::proxy::{Proxy, ProxyMode};

use super::client::Client;
use super::client_limit::ThreadClientLimit;
use super::date::DateCache;
use super::http::{self, ExchangePool, Forecast, Scratch, Upstreams};
use super::thread::{StateCell, ThreadState};
use super::{BackendAccount, Counters, Shared, tcp};
use crate::access_log::Journal;
use crate::cache::ThreadCache;
use crate::http::{Limits, Role};
use crate::metrics::ListenerCounters;
use crate::runtime::{
    Clock, Handle, Mailbox, Runtime, Sender, TaskId, TcpListener, TcpStream, first, mailbox,
};
use crate::shortage;
use crate::transfer::{Redirect, Resources, Rules, Tunnelled};
use crate::upstream::{
    Backend, BackendContext, Backends, HealthBoard, Names, Notice, Origins, Resolved,
    ThreadConnectionLimit,
};

/// A control message to a thread.
#[derive(Debug, Clone)]
pub enum Order {
    /// Accept those who wait already and no more; end when all is served, or after this time.
    Drain(Duration),
    /// Accept no more: those who wait are another's. End when all is served.
    Retire,
    /// Panic, for a test.
    #[cfg(test)]
    Fall,
}

/// How long accepting pauses when the process is out of descriptors or memory.
const OUT_OF_DESCRIPTORS: Duration = Duration::from_millis(50);

/// How long handshakes that have begun are waited for when accepting ends. A client that has to be
/// asked for its ACK again is asked after a second.
const HANDSHAKE_TIME: Duration = Duration::from_millis(1500);
/// How often it is looked for them.
const HANDSHAKE_LOOK: Duration = Duration::from_millis(5);

/// How often idle connections to servers are looked through.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

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
    pub exchanges: ExchangePool,
    /// How large replies will be.
    pub forecast: Forecast,
    /// How large a head may be.
    pub limits: Limits,
    /// `Host` for clients that send none.
    pub default_host: String,
    date: DateCache,
    /// This thread's access to the cache, if there is one.
    pub cache: Option<Rc<ThreadCache>>,
    /// What the thread did.
    pub counters: Arc<ListenerCounters>,
    state: Arc<StateCell>,
    /// Where requests that end are logged.
    pub journal: Option<Journal>,
    /// Connections of clients that are open.
    clients: Cell<usize>,
    /// `max_clients`, over all threads.
    client_limit: ThreadClientLimit,
    draining: Cell<bool>,
    /// Clients that ask nothing are not waited for.
    ends_idle: Cell<bool>,
    /// The task that accepts, and waits for the last client.
    main: TaskId,
}

/// The thread's whole life. `started` gets the way to give it orders.
pub fn run(
    index: usize,
    shared: Shared,
    counters: Counters,
    listener: OwnedFd,
    started: &SyncSender<Sender<Order>>,
) -> io::Result<()> {
    counters.reset_gauges();
    let runtime = Runtime::new()?;
    let handle = runtime.handle().clone();
    let (orders, mailbox) = mailbox(&handle)?;
    let (names, answered) = match shared.resolver {
        Some(resolver) => {
            let (answers, answered) = self::mailbox::<Resolved>(&handle)?;
            (Some(Names::new(resolver, answers)), Some(answered))
        }
        None => (None, None),
    };
    let (cache, woken) = match shared.cache {
        Some(cache) => {
            let (waker, woken) = self::mailbox::<TaskId>(&handle)?;
            (
                Some(ThreadCache::new(cache, waker, handle.clone())),
                Some(woken),
            )
        }
        None => (None, None),
    };
    let (connection_limit, noticed) = match shared.connection_limit {
        Some(shared_limit) => {
            let (notices, noticed) = self::mailbox::<Notice>(&handle)?;
            let connection_limit =
                ThreadConnectionLimit::new(shared_limit, index, handle.clone(), notices);
            (Some(connection_limit), Some(noticed))
        }
        None => (None, None),
    };
    let (waker, called) = self::mailbox::<()>(&handle)?;
    let client_limit = ThreadClientLimit::new(
        shared.client_limit,
        shared.settings.max_clients as usize,
        waker,
    );
    let listener = TcpListener::new(listener, &handle);
    let lane = shared
        .redirector
        .as_ref()
        .map(|redirector| redirector.lane());
    let redirect = lane.transpose()?.map(Redirect::new);
    // The one who waits for it is gone only if the whole server is.
    let _ = started.send(orders);
    runtime.run(async move {
        let (settings, log) = (shared.settings, shared.log);
        let worker = Rc::new(Worker {
            main: handle.running(),
            handle,
            resources: Resources {
                redirect,
                ..Resources::default()
            },
            upstreams: Upstreams {
                backends: Backends::new(
                    backends(
                        &settings,
                        &counters,
                        connection_limit.as_ref(),
                        shared.health.as_ref(),
                    ),
                    settings.balance,
                    connection_limit,
                ),
                origins: Origins::new(
                    counters.origins.counters.clone(),
                    counters.origins.gauges.clone(),
                    settings.clone(),
                ),
                names,
                settings: settings.clone(),
            },
            scratch: Scratch::default(),
            exchanges: ExchangePool::default(),
            forecast: Forecast::default(),
            limits: http::limits(settings.max_head),
            default_host: settings
                .backends
                .first()
                .map_or(String::new(), |b| b.to_string()),
            date: DateCache::default(),
            cache,
            settings,
            classes: shared.classes,
            counters: counters.listener,
            state: counters.state,
            journal: log.and_then(|log| log.journal()),
            clients: Cell::new(0),
            client_limit,
            draining: Cell::new(false),
            ends_idle: Cell::new(false),
        });
        worker.spawn_background_tasks(called, answered, woken, noticed);
        worker.state.set(ThreadState::Accepting);
        let mut order = worker.accept_until_told(&listener, &mailbox).await?;
        worker.draining.set(true);
        worker.state.set(ThreadState::Draining);
        if let Order::Drain(time) = order {
            worker.end_idle();
            let last = worker.accept_the_last(&listener, &mailbox, time).await;
            order = last.unwrap_or(order);
        }
        drop(listener);
        worker.finish(&mailbox, order).await;
        worker.state.set(ThreadState::Ended);
        Ok(())
    })?
}

fn obey(order: Order) -> Order {
    #[cfg(test)]
    if let Order::Fall = order {
        panic!("as ordered");
    }
    order
}

fn backends(
    settings: &Arc<Proxy>,
    counters: &Counters,
    connection_limit: Option<&Rc<ThreadConnectionLimit>>,
    health: Option<&Arc<HealthBoard>>,
) -> Vec<Rc<Backend>> {
    let rows = settings.backends.iter().zip(&counters.backends).enumerate();
    let new = |(number, (address, counters)): (usize, (&SocketAddr, &BackendAccount))| {
        let context = BackendContext {
            number,
            limit: connection_limit.cloned(),
            health: health.cloned(),
            gauges: counters.gauges.clone(),
        };
        let counters = counters.counters.clone();
        Rc::new(Backend::new(*address, counters, settings.clone(), context))
    };
    rows.map(new).collect()
}

impl Worker {
    async fn accept_until_told(
        self: &Rc<Self>,
        listener: &TcpListener,
        orders: &Mailbox<Order>,
    ) -> io::Result<Order> {
        loop {
            let order = pin!(async { orders.receive().await.map(Some) });
            match first(order, pin!(self.accept(listener))).await {
                Ok(Some(order)) => return Ok(obey(order)),
                Ok(None) => {}
                Err(error) => {
                    shortage::warn("accept connections", &error);
                    self.counters.accepts_failed.add(1);
                    listener.rest();
                    self.handle.set_deadline(OUT_OF_DESCRIPTORS);
                    match orders.receive().await {
                        Ok(order) => return Ok(obey(order)),
                        Err(_) => self.handle.clear_deadline(),
                    }
                }
            }
        }
    }

    async fn accept(self: &Rc<Self>, listener: &TcpListener) -> io::Result<Option<Order>> {
        let admit = || ClientPermit::take(self);
        let serve = |permit, client, peer| self.serve(permit, client, peer);
        let mut admitted = listener.accept(admit, serve).await?;
        while !admitted {
            listener.rest();
            self.state.set(ThreadState::Full);
            self.client_limit.wait(&self.handle).await?;
            self.state.set(ThreadState::Accepting);
            admitted = listener.accept_now(admit, serve)?;
        }
        Ok(None)
    }

    /// Takes everybody in before the socket goes for whom the connection stands already: those in the
    /// accept queue, and those whose handshake is not over. Nobody begins one any more, so that there
    /// is an end to them. (A SYN cookie that comes back after it is reset: nobody knows of it.) If
    /// another order comes meanwhile, that is it.
    async fn accept_the_last(
        self: &Rc<Self>,
        listener: &TcpListener,
        orders: &Mailbox<Order>,
        time: Duration,
    ) -> Option<Order> {
        let serve = |client, peer| self.serve(ClientPermit::take_over_limit(self), client, peer);
        listener.rest();
        let failed = |error| tracing::warn!("cannot accept the last connections: {error}");
        let until = self.handle.now() + time.min(HANDSHAKE_TIME).as_millis() as Clock;
        if let Err(error) = listener.shut() {
            tracing::warn!("cannot refuse new connections before the last are accepted: {error}");
        }
        while self.handle.now() < until && listener.is_in_handshake() {
            listener.accept_all(serve).map_err(failed).ok()?;
            self.handle.set_deadline(HANDSHAKE_LOOK);
            if let Ok(order) = orders.receive().await {
                return Some(obey(order));
            }
        }
        listener.accept_all(serve).map_err(failed).ok()?;
        None
    }

    /// Closes connections that are between two requests.
    fn end_idle(&self) {
        self.ends_idle.set(true);
        self.handle.wake_all();
    }

    fn serve(self: &Rc<Self>, permit: ClientPermit, stream: TcpStream, peer: SocketAddr) {
        let guard = ClientGuard::new(permit);
        // Tasks of their own: a tunnel's is smaller than that of a client who speaks HTTP.
        match self.settings.mode {
            ProxyMode::Tcp => self.handle.spawn(tcp::serve(guard, stream, peer)),
            ProxyMode::Forward | ProxyMode::Reverse => {
                self.handle
                    .spawn(http::ClientTask::new(guard, stream, peer));
            }
        }
    }

    /// Waits for the last client, at most as long as the order says; a later one gives another time.
    async fn finish(&self, orders: &Mailbox<Order>, mut order: Order) {
        loop {
            match order {
                Order::Drain(time) => {
                    self.end_idle();
                    self.handle.set_deadline(time);
                }
                _ => self.handle.clear_deadline(),
            }
            let served = pin!(async {
                let served = || (self.clients.get() == 0).then_some(());
                self.handle.wait_for(served).await.map(|()| None)
            });
            let next = pin!(async { orders.receive().await.map(Some) });
            match first(served, next).await {
                Ok(Some(next)) => order = obey(next),
                Ok(None) => return,
                Err(_) => return tracing::warn!("{} connections were cut", self.clients.get()),
            }
        }
    }

    /// Spawns the tasks beside those of clients. They handle wake-ups for free client slots, looked-up names, and
    /// connections from other threads, and close connections that nobody uses.
    fn spawn_background_tasks(
        self: &Rc<Self>,
        called: Mailbox<()>,
        answered: Option<Mailbox<Resolved>>,
        woken: Option<Mailbox<TaskId>>,
        noticed: Option<Mailbox<Notice>>,
    ) {
        let worker = self.clone();
        self.handle.spawn(async move {
            // It ends only with epoll, and so does the thread.
            while let Ok(()) = called.receive().await {
                worker.handle.wake(worker.main);
            }
        });
        if let Some(noticed) = noticed {
            let worker = self.clone();
            self.handle.spawn(async move {
                while let Ok(notice) = noticed.receive().await {
                    worker.upstreams.backends.handle_notice(notice);
                }
            });
        }
        if let Some(woken) = woken {
            let handle = self.handle.clone();
            self.handle.spawn(async move {
                // It ends only with epoll, and so does the thread.
                while let Ok(task) = woken.receive().await {
                    handle.wake(task);
                }
            });
        }
        if let Some(answered) = answered {
            let worker = self.clone();
            self.handle.spawn(async move {
                if let Some(names) = &worker.upstreams.names {
                    // It ends only with epoll, and so does the thread.
                    let _ = names.learn(&worker.handle, &answered).await;
                }
            });
        }
        let worker = self.clone();
        self.handle.spawn(async move {
            if let Some(redirect) = &worker.resources.redirect {
                // As above.
                let _ = redirect.wake_passed(&worker.handle).await;
            }
        });
        let worker = self.clone();
        self.handle.spawn(async move {
            let kept = worker.settings.keep_alive.as_millis() as Clock;
            loop {
                worker.handle.sleep(SWEEP_EVERY).await;
                let now = worker.handle.now();
                worker.upstreams.sweep(now.saturating_sub(kept));
                worker.resources.pipes.trim();
            }
        });
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

    /// Whether connections are to be closed between two requests. While others accept on the same
    /// sockets there is time: a client whose next request is on its way would be reset.
    pub fn ends_idle(&self) -> bool {
        self.ends_idle.get()
    }

    /// How bodies and tunnels are moved.
    pub fn rules(&self) -> Rules {
        Rules {
            engine: self.settings.engine,
            idle: self.settings.idle_timeout,
        }
    }

    /// Writes the line of what this client asked for, which has ended.
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
struct ClientPermit(Rc<Worker>);

impl ClientPermit {
    fn take(worker: &Rc<Worker>) -> Option<ClientPermit> {
        worker
            .client_limit
            .try_acquire()
            .then(|| ClientPermit(worker.clone()))
    }

    fn take_over_limit(worker: &Rc<Worker>) -> ClientPermit {
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
    /// Who serves it.
    pub fn worker(&self) -> &Rc<Worker> {
        &self.0.0
    }

    fn new(permit: ClientPermit) -> ClientGuard {
        let worker = &permit.0;
        worker.clients.set(worker.clients.get() + 1);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of<F>(_: impl FnOnce(ClientGuard, TcpStream, SocketAddr) -> F) -> usize {
        size_of::<F>()
    }

    /// Each idle connection holds one such future; the figures are in docs/design/proxy.md.
    #[test]
    fn tasks_of_idle_clients_are_small() {
        let http = bytes_of(http::ClientTask::new);
        let tunnel = bytes_of(tcp::serve);
        assert!(http <= 120, "{http}");
        assert!(tunnel <= 1392, "{tunnel}");
    }
}
