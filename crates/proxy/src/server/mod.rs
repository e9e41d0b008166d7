//! A running proxy: its threads, each with its own listening socket and event loop.

mod accept;
mod admission;
mod client;
mod client_limit;
mod command;
mod counters;
mod date;
mod error;
mod future_pool;
mod http;
mod peer;
mod read_buffer;
mod reload_state;
mod run;
mod servers;
mod settings;
mod shared;
mod sockets;
mod tcp;
mod thread;
mod thread_state;
mod totals;
mod waker;
mod worker;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};
use weir_core::class;
use weir_core::proxy::descriptors::{self, Descriptors};
use weir_core::proxy::{Engine, HealthCheck, Proxy, ProxyMode};

use weir_core::word::Word;

use crate::access_log;
use crate::cache::{Cache, CacheMemory};
use crate::metrics::{
    BackendCounters, HealthCounters, ListenerCounters, NameCounters, QueueCounters,
};
use crate::own_listeners::{OwnListener, OwnListeners};
use crate::runtime::Sender;
use crate::transfer::Redirector;
use crate::upstream::{
    BackendAccount, BackendHealth, BackendSet, Checks, ConnectionLimit, KnownHealth, Lookups,
    OnHealth, Resolver, SharedBackend,
};
use command::Command;
use counters::Counters;
use shared::Shared;
use thread::{Restarts, Thread};
use totals::{add_by_key, sum};
use waker::AtEnd;

pub use crate::upstream::{BackendState, KnownAddresses, LookUp, NameReport, resolve_all};
pub use error::Error;
pub use reload_state::ReloadState;
pub use servers::{BackendReport, Connections, Servers};
pub use sockets::Sockets;
pub use thread_state::ThreadState;
pub use totals::{Total, Totals};
pub use waker::Waker;

/// A proxy that runs until it is [drained](Server::drain) or [retired](Server::retire).
pub struct Server {
    shared: Shared,
    address: SocketAddr,
    /// Held beside the threads, so that the accept queue of a thread that panics survives. `None` once the proxy accepts
    /// no more.
    sockets: Option<Sockets>,
    threads: Vec<Thread>,
    waker: Option<Waker>,
    /// The health checks, while the proxy accepts clients; `None` if backends are not checked.
    checks: Option<Checks>,
    /// Looks the names of backends up, while the proxy accepts clients.
    lookups: Option<Lookups>,
    /// As long as it has clients, also once another process accepts there.
    _own_listener: OwnListener,
}

/// Options of [`Server::start_with`].
#[derive(Debug, Default)]
pub struct StartOptions {
    /// Inherited listening sockets; `None`: the proxy opens its own.
    pub sockets: Option<Sockets>,
    /// Addresses on which other proxies of the process listen.
    pub beside: Vec<SocketAddr>,
    /// The addresses on which the process listens, to which no client is taken. The proxy adds its own.
    pub own_listeners: OwnListeners,
    /// Descriptors that it may use; `None`: as many as the process may have.
    pub descriptors: Option<u64>,
    /// Woken when one of its threads ends.
    pub waker: Option<Waker>,
    /// The state of the proxy that this one replaces.
    pub predecessor: Option<ReloadState>,
    /// Carries tunnels of short messages for engine sockmap; the other engines do not use it.
    pub redirector: Option<Arc<dyn Redirector>>,
    /// Addresses of names that are known already; those of the predecessor are besides.
    pub addresses: KnownAddresses,
    /// How names of backends are looked up.
    pub look_up: LookUp,
    /// How long the start waits for the first answers of name servers; `None`: [`FIRST_ANSWERS`]. Zero: the caller has
    /// waited, and has logged which names have no answer.
    pub first_answers: Option<Duration>,
    /// Called when a backend is down or up again, by the thread that has found it, which waits for it.
    pub on_health: Option<OnHealth>,
}

/// How long a start waits for the first answers of name servers: a proxy that does not know its backends would refuse
/// its first clients. Longer than a name server takes that is there (resolv.conf(5) asks the next one after 5 s), and so
/// short that a service without name servers starts.
pub const FIRST_ANSWERS: Duration = Duration::from_secs(2);

/// One thread, for status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadReport {
    /// What it is doing.
    pub state: ThreadState,
    /// Connections of clients that it has now.
    pub clients: u64,
    /// How often it failed and was started again.
    pub restarts: u64,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Server({}, {} threads)",
            self.address,
            self.threads.len()
        )
    }
}

impl Server {
    /// Listens, and starts the threads. Port 0 is any free port.
    ///
    /// # Errors
    /// The address is in use or not of this machine, settings exclude each other or this machine does not take one, or
    /// the kernel lacks memory or descriptors.
    pub fn start(settings: Proxy) -> Result<Server, Error> {
        Server::start_with(settings, StartOptions::default())
    }

    /// As [`start`](Self::start), with options. With inherited sockets there are at least as many threads as sockets.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with(settings: Proxy, options: StartOptions) -> Result<Server, Error> {
        let redirector = redirector(&settings, options.redirector)?;
        settings::check(&settings)?;
        // Before it listens: clients must not find a proxy that then cannot start.
        let log = access_log::of_settings(&settings).map_err(|cause| Error::Setting {
            key: "access_log".to_owned(),
            value: settings.access_log.clone().unwrap_or_default(),
            cause,
        })?;
        let wanted = thread_count(&settings);
        let sockets = match options.sockets {
            None => Sockets::open(&settings, wanted, &options.beside)?,
            Some(mut sockets) => {
                sockets.adopt(&settings)?;
                sockets.grow(&settings, wanted)?;
                sockets
            }
        };
        let resolver = (settings.mode == ProxyMode::Forward).then(Resolver::default);
        let predecessor = options.predecessor;
        let inherited = predecessor
            .as_ref()
            .and_then(|predecessor| predecessor.cache(&settings));
        let cache = inherited.or_else(|| Cache::of(&settings));
        let known_health = predecessor
            .as_ref()
            .map(|predecessor| predecessor.health(&settings));
        let mut addresses = options.addresses;
        if let Some(predecessor) = &predecessor {
            addresses.extend(predecessor.addresses.clone());
        }
        let client_limit = predecessor
            .as_ref()
            .map(|predecessor| predecessor.client_limit.clone());
        let connection_limit = ConnectionLimit::new(&settings, sockets.len());
        let settings = Arc::new(settings);
        let backends = Arc::new(BackendSet::new(
            settings.clone(),
            sockets.len(),
            connection_limit.clone(),
            options.on_health.clone(),
            addresses,
        ));
        let descriptors = Descriptors::of(
            options.descriptors.unwrap_or_else(all_descriptors),
            sockets.len(),
            backends.names().count(),
        );
        let shared = Shared {
            classes: Arc::new(class::Rules::compile(&settings.classes, |_| None)),
            settings,
            backends,
            log,
            resolver,
            cache,
            connection_limit,
            redirector,
            client_limit: client_limit.unwrap_or_default(),
            own_listeners: options.own_listeners,
            threads: sockets.len(),
            pipes: descriptors.pipes,
        };
        shared.client_limit.set_most(descriptors.clients);
        let mut server = Server {
            _own_listener: shared.own_listeners.add(sockets.address()),
            shared,
            address: sockets.address(),
            threads: Vec::new(),
            waker: options.waker,
            sockets: None,
            checks: None,
            lookups: None,
        };
        // Before the first client comes.
        let first_answers = options.first_answers.unwrap_or(FIRST_ANSWERS);
        server.lookups = Some(server.start_lookups(&options.look_up, first_answers)?);
        server.checks = server.start_checks(known_health.unwrap_or_default(), options.on_health)?;
        for index in 0..sockets.len() {
            let thread = server.new_thread(index, &sockets)?;
            server.threads.push(thread);
        }
        server.sockets = Some(sockets);
        Ok(server)
    }

    fn start_lookups(&self, look_up: &LookUp, patience: Duration) -> Result<Lookups, Error> {
        let (settings, backends) = (&self.shared.settings, &self.shared.backends);
        let interval = settings.resolve_interval;
        let started = Lookups::start(backends, &settings.name, interval, look_up);
        let lookups = started.map_err(|cause| Error::System {
            what: "start a thread that looks a name up",
            cause,
        })?;
        if !patience.is_zero() {
            lookups.wait_for_first(backends, patience);
        }
        Ok(lookups)
    }

    fn start_checks(
        &self,
        known: KnownHealth,
        on_health: Option<OnHealth>,
    ) -> Result<Option<Checks>, Error> {
        let (settings, backends) = (&self.shared.settings, &self.shared.backends);
        if settings.health.check == HealthCheck::Off {
            return Ok(None);
        }
        let started = Checks::start(settings.clone(), backends.clone(), known, on_health);
        let checks = started.map_err(|cause| Error::System {
            what: "start the thread that checks backends",
            cause,
        })?;
        Ok(Some(checks))
    }

    fn new_thread(&self, index: usize, sockets: &Sockets) -> Result<Thread, Error> {
        let counters = Counters::default();
        let ended = Arc::default();
        let (commands, join) = self.spawn(index, sockets, &counters, &ended)?;
        Ok(Thread {
            commands,
            join: Some(join),
            ended,
            counters,
            restarts: Restarts::default(),
        })
    }

    /// Starts a thread that counts into `counters` and says in `ended` that it has ended.
    fn spawn(
        &self,
        index: usize,
        sockets: &Sockets,
        counters: &Counters,
        ended: &Arc<AtomicBool>,
    ) -> Result<(Sender<Command>, JoinHandle<io::Result<()>>), Error> {
        let failed = |cause| Error::System {
            what: "start a thread",
            cause,
        };
        let listener = sockets.of_thread(index).map_err(failed)?;
        let (started, starting) = mpsc::sync_channel(1);
        let (shared, own) = (self.shared.clone(), counters.clone());
        ended.store(false, Ordering::Release);
        let at_end = AtEnd {
            ended: ended.clone(),
            waker: self.waker.clone(),
        };
        let join = std::thread::Builder::new()
            .name(format!("weir-proxy-{index}"))
            .spawn(move || {
                let _at_end = at_end;
                run::run(index, shared, own, listener, &started)
            })
            .map_err(failed)?;
        match starting.recv() {
            Ok(commands) => Ok((commands, join)),
            // It ended without having started: its result says why.
            Err(_) => {
                let why = thread::joined(join).err().unwrap_or_default();
                Err(failed(io::Error::other(why)))
            }
        }
    }

    /// Gives it another number of descriptors; connections that are there stay.
    pub fn set_descriptors(&self, count: u64) {
        let names = self.shared.backends.names().count();
        let clients = Descriptors::of(count, self.threads.len(), names).clients;
        self.shared.client_limit.set_most(clients);
    }

    /// Clients that it serves at once: `max_clients`, or as many as it has descriptors for.
    pub fn clients_at_once(&self) -> usize {
        let most = self.shared.settings.max_clients as usize;
        most.min(self.shared.client_limit.most())
    }

    /// Where it listens; with the port that the kernel chose, if the settings say 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it is to do.
    pub fn settings(&self) -> &Proxy {
        &self.shared.settings
    }

    /// The sockets on which it accepts, for a successor; `None` if it accepts no more.
    pub fn sockets(&self) -> Option<&Sockets> {
        self.sockets.as_ref()
    }

    /// The addresses of its backends' names.
    pub fn addresses(&self) -> KnownAddresses {
        self.shared.backends.addresses()
    }

    /// The state for a successor of the same address, whose settings may differ.
    pub fn reload_state(&self) -> ReloadState {
        let settings = self.shared.settings.clone();
        let backends = &self.shared.backends;
        let listed = backends.listed();
        let health_state = |backend: &Arc<SharedBackend>| {
            Some((backend.address, backend.health.as_ref()?.state()))
        };
        ReloadState {
            health: listed.iter().filter_map(health_state).collect(),
            addresses: backends.addresses(),
            cache: self.shared.cache.clone(),
            client_limit: self.shared.client_limit.clone(),
            settings,
        }
    }

    /// What each thread is doing.
    pub fn threads(&self) -> impl Iterator<Item = ThreadReport> {
        self.threads.iter().map(|thread| {
            let counters = &thread.counters.listener;
            let (closed, accepted) = (
                counters.clients_closed.get(),
                counters.clients_accepted.get(),
            );
            ThreadReport {
                state: match &thread.join {
                    Some(_) => thread.counters.state.get(),
                    None => ThreadState::Ended,
                },
                clients: accepted.saturating_sub(closed),
                restarts: thread.restarts.count,
            }
        })
    }

    /// What the cache holds now; `None` without one.
    pub fn cache_memory(&self) -> Option<CacheMemory> {
        self.shared.cache.as_ref().map(|cache| cache.memory())
    }

    /// Whether the other has the same cache, as generations of settings do.
    pub fn shares_cache_with(&self, other: &Server) -> bool {
        match (&self.shared.cache, &other.shared.cache) {
            (Some(own), Some(other)) => Arc::ptr_eq(own, other),
            _ => false,
        }
    }

    /// How many clients wait for a connection to a backend, where those are limited.
    pub fn waiting(&self) -> usize {
        self.shared
            .connection_limit
            .as_ref()
            .map_or(0, |connection_limit| connection_limit.waiting())
    }

    /// How many clients of each priority wait, 1 to 64; only priorities with at least one.
    pub fn waiting_by_priority(&self) -> Vec<(u8, u32)> {
        let waiting = self
            .shared
            .connection_limit
            .as_ref()
            .map(|connection_limit| connection_limit.waiting_of());
        let by_priority = (1..).zip(waiting.into_iter().flatten());
        by_priority.filter(|(_, waiting)| *waiting > 0).collect()
    }

    /// Connections to servers now, busy and idle, what health checks say of each backend, and how names stand.
    pub fn servers(&self) -> Servers {
        let backends = &self.shared.backends;
        let listed = backends.listed();
        let is_listed = |backend: &Arc<SharedBackend>| {
            let mut listed = listed.iter();
            listed.any(|other| Arc::ptr_eq(other, backend))
        };
        let of_one = |backend: &Arc<SharedBackend>| {
            let gauges = backend.accounts.iter().map(|account| &*account.gauges);
            let health = backend.health.as_ref();
            BackendReport {
                address: backend.address,
                name: backend.setting.address.host().map(str::to_owned),
                weight: match is_listed(backend) {
                    true => backend.setting.weight,
                    false => 0,
                },
                connections: gauges.sum(),
                state: health.map_or(BackendState::Unchecked, BackendHealth::state),
                last_check: health.map(BackendHealth::last).unwrap_or_default(),
            }
        };
        let all = backends.all();
        let shown = all
            .iter()
            .filter(|backend| is_listed(backend) || backend.has_connections());
        let origins = self.threads.iter().map(|thread| &thread.counters.origins);
        let lookups = self.lookups.as_ref();
        Servers {
            origins: origins.map(|account| &*account.gauges).sum(),
            backends: shown.map(of_one).collect(),
            names: lookups.map_or_else(Vec::new, |lookups| lookups.reports(backends)),
        }
    }

    /// Sums of all threads' counters.
    pub fn totals(&self) -> Totals {
        let threads = || self.threads.iter().map(|thread| &thread.counters);
        let times = |account: &BackendAccount| account.counters.times().collect();
        let all = self.shared.backends.all();
        let (mut backends, mut backend_times) = (Vec::new(), Vec::new());
        for backend in &all {
            let of_threads = backend.accounts.iter().map(times);
            let times = sum(BackendCounters::TIMES, of_threads);
            // An address may have been one of several names, one after the other.
            add_by_key(&mut backend_times, &[(backend.address, times)]);
            add_by_key(&mut backends, &[(backend.address, backend_totals(backend))]);
        }
        let listeners = threads().map(|own| own.listener.times().collect());
        let accounts = all.iter().flat_map(|backend| &backend.accounts);
        let servers = accounts.chain(threads().map(|own| &own.origins)).map(times);
        Totals {
            listener: self.listener_totals(),
            listener_times: sum(ListenerCounters::TIMES, listeners),
            backends,
            names: self.name_totals(),
            backend_times,
            server_times: sum(BackendCounters::TIMES, servers),
            queue: self.queue_totals(),
        }
    }

    fn name_totals(&self) -> Vec<(String, Vec<Total>)> {
        let counts = self.lookups.iter().flat_map(Lookups::counts);
        let totals = |(name, counts): (&str, Vec<u64>)| {
            let counts = std::iter::once(counts);
            (name.to_owned(), sum(NameCounters::NAMES, counts))
        };
        counts.map(totals).collect()
    }

    fn listener_totals(&self) -> Vec<Total> {
        let threads = self.threads.iter().map(|thread| &thread.counters.listener);
        let mut totals = sum(
            ListenerCounters::NAMES,
            threads.map(|counters| counters.values().collect()),
        );
        let lost = self.shared.log.as_ref().map_or(0, |log| log.lost());
        let by_name = |total: &&mut Total| total.name == "access_log_lost";
        if let Some(total) = totals.iter_mut().find(by_name) {
            total.value += lost;
        }
        totals
    }

    fn queue_totals(&self) -> Vec<(u8, Vec<Total>)> {
        let Some(connection_limit) = &self.shared.connection_limit else {
            return Vec::new();
        };
        let ranks = connection_limit.counters().iter().zip(1..);
        let totals = ranks.map(|(counters, priority)| {
            let values = std::iter::once(counters.values().collect());
            (priority, sum(QueueCounters::NAMES, values))
        });
        let happened = |totals: &[Total]| totals.iter().any(|total| total.value > 0);
        totals.filter(|(_, totals)| happened(totals)).collect()
    }

    /// Restarts threads that have failed, by a panic or because epoll failed, on their sockets, and logs the failure.
    /// The clients of such a thread are lost, those in its accept queue are not.
    ///
    /// # Errors
    /// A thread has failed too often for that, or cannot be started.
    pub fn restart_failed(&mut self) -> Result<(), Error> {
        let mut fault = Ok(());
        for index in 0..self.threads.len() {
            if let Some(Err(why)) = self.threads[index].end() {
                let name = &self.shared.settings.name;
                tracing::error!("proxy {name:?}: thread {index} failed: {why}");
                fault = fault.and(self.restart(index, why));
            }
        }
        fault
    }

    /// Restarts a thread that has failed, unless the proxy accepts no more.
    fn restart(&mut self, index: usize, why: String) -> Result<(), Error> {
        let Some(sockets) = &self.sockets else {
            return Ok(());
        };
        let thread = &mut self.threads[index];
        if !thread.restarts.allow(Instant::now()) {
            return Err(Error::ThreadFailed { index, why });
        }
        let (counters, ended) = (thread.counters.clone(), thread.ended.clone());
        let (commands, join) = self.spawn(index, sockets, &counters, &ended)?;
        let thread = &mut self.threads[index];
        (thread.commands, thread.join) = (commands, Some(join));
        Ok(())
    }

    /// Opens the access log again by its path: it may have been rotated.
    pub fn reopen_log(&self) {
        if let Some(log) = &self.shared.log {
            log.reopen();
        }
    }

    /// Stops listening, serves the clients that wait in the accept queues, and gives all that are busy this long to
    /// finish.
    pub fn drain(&mut self, time: Duration) {
        // Each thread closes its socket once the queue is empty: it must hold the last reference.
        self.sockets = None;
        self.end_watches();
        self.command(&Command::Drain(time));
    }

    /// Stops accepting. The successor that has the sockets accepts what waits in their queues. Clients that are connected
    /// have all the time that they need.
    pub fn retire(&mut self) {
        self.sockets = None;
        self.end_watches();
        self.command(&Command::Retire);
    }

    /// The backends stay as they are: few requests come any more.
    fn end_watches(&mut self) {
        self.checks = None;
        if let Some(lookups) = &self.lookups {
            lookups.end();
        }
    }

    fn command(&self, command: &Command) {
        for thread in &self.threads {
            thread.commands.send(command.clone());
        }
    }

    /// Whether every thread has ended.
    pub fn is_finished(&self) -> bool {
        self.threads.iter().all(Thread::has_ended)
    }

    /// Waits until every thread has ended, and returns what they did. Threads end after [`drain`](Self::drain) or
    /// [`retire`](Self::retire).
    ///
    /// # Errors
    /// A thread failed.
    pub fn join(mut self) -> Result<Totals, Error> {
        let mut end = Ok(());
        for (index, thread) in self.threads.iter_mut().enumerate() {
            if let Some(Err(why)) = thread.join.take().map(thread::joined) {
                end = end.and(Err(Error::ThreadFailed { index, why }));
            }
        }
        end.map(|()| self.totals())
    }
}

/// What all threads counted of a backend, and its checks.
fn backend_totals(backend: &SharedBackend) -> Vec<Total> {
    let accounts = backend.accounts.iter();
    let values = accounts.map(|account| account.counters.values().collect());
    let mut totals = sum(BackendCounters::NAMES, values);
    if let Some(health) = &backend.health {
        let checks = health.counters().values().collect();
        totals.extend(sum(HealthCounters::NAMES, std::iter::once(checks)));
    }
    totals
}

/// Descriptors of a proxy that is alone in its process.
fn all_descriptors() -> u64 {
    let limit = getrlimit(Resource::Nofile).current;
    descriptors::divide(limit.unwrap_or(u64::MAX), &[1])[0]
}

/// Threads that a proxy with these settings has: 0 stands for one for each CPU that the process may use.
pub fn thread_count(settings: &Proxy) -> usize {
    match settings.threads {
        0 => std::thread::available_parallelism().map_or(1, NonZero::get),
        threads => threads as usize,
    }
}

/// The redirector, if the engine is sockmap: that cannot do without.
fn redirector(
    settings: &Proxy,
    given: Option<Arc<dyn Redirector>>,
) -> Result<Option<Arc<dyn Redirector>>, Error> {
    match (settings.engine, given) {
        (Engine::Sockmap, None) => Err(Error::Setting {
            key: "engine".into(),
            value: settings.engine.word().into(),
            cause: io::Error::new(io::ErrorKind::Unsupported, "nothing here redirects"),
        }),
        (Engine::Sockmap, given) => Ok(given),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests;
