//! The proxies of one process: all that run, and those of earlier settings or that were handed over,
//! which serve their clients to the end.

mod process_socket;
mod redirect;
mod report;
mod service;

use std::collections::{BTreeSet, HashSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use weir_config::Table;
use weir_core::proxy::{Proxy, descriptors};
use weir_proxy::{
    FIRST_ANSWERS, KnownAddresses, LookUp, OnHealth, OwnListeners, ReloadState, Server, Sockets,
    StartOptions, Totals, Waker, resolve_all,
};

use crate::daemon::events::{self, Events};
use crate::failure::{Failure, Result};
use crate::host::descriptors::raise_limit;

pub use process_socket::{Peers, ProcessSocket, reports_of_all, sweep_left_over, take_over};
pub use report::metrics as metrics_of_proxies;
pub use service::{ProxyService, no_proxy_in};

/// Backends of a proxy that earlier settings had, and whose counters are kept.
const PAST_BACKENDS: usize = 256;

/// All proxies of the process.
pub struct Proxies {
    running: Vec<Server>,
    /// They accept no more.
    retiring: Vec<Server>,
    /// What those did that have ended, by name.
    past: Vec<(String, Totals)>,
    waker: Waker,
    own_listeners: OwnListeners,
    events: Events,
    since: Instant,
}

/// What another process has handed over.
pub type Inherited = Vec<InheritedProxy>;

/// What another process has handed over of one proxy.
pub struct InheritedProxy {
    /// The address in its settings.
    pub listen: SocketAddr,
    /// The sockets that listen there.
    pub sockets: Sockets,
    /// The addresses of its backends' names.
    pub addresses: KnownAddresses,
}

/// Notes each backend that goes down or comes up.
fn note_health(events: Events) -> OnHealth {
    OnHealth::new(move |change| events.note(events::backend(change)))
}

impl Proxies {
    /// Starts all of them, on inherited sockets where they listen on the same address. `own_listeners` has the other
    /// addresses of the process.
    ///
    /// # Errors
    /// One cannot start; none runs then.
    pub fn start(
        settings: Vec<Proxy>,
        mut inherited: Inherited,
        own_listeners: OwnListeners,
        events: Events,
    ) -> Result<Proxies> {
        let waker = Waker::new().map_err(|error| Failure::io("watch threads", error))?;
        let mut proxies = Proxies {
            running: Vec::new(),
            retiring: Vec::new(),
            past: Vec::new(),
            waker,
            own_listeners,
            events,
            since: Instant::now(),
        };
        let shares = proxies.shares(&settings);
        let mut known = KnownAddresses::new();
        for one in &mut inherited {
            known.extend(std::mem::take(&mut one.addresses));
        }
        let known = first_answers(&settings, known);
        for (proxy, share) in settings.into_iter().zip(shares) {
            let same = |one: &InheritedProxy| one.listen == proxy.listen;
            let sockets = inherited.iter().position(same);
            let sockets = sockets.map(|at| inherited.swap_remove(at).sockets);
            proxies
                .running
                .push(proxies.start_one(proxy, share, sockets, None, &[], &known)?);
        }
        Ok(proxies)
    }

    /// The descriptors that each proxy of these may use.
    fn shares(&self, settings: &[Proxy]) -> Vec<u64> {
        // Each item of `backends` may be a name.
        let of_one = |proxy: &Proxy| {
            let threads = weir_proxy::thread_count(proxy);
            descriptors::wanted(proxy.max_clients, threads, proxy.backends.len())
        };
        let wanted: Vec<u64> = settings.iter().map(of_one).collect();
        descriptors::divide(raise_limit(), &wanted)
    }

    fn start_one(
        &self,
        proxy: Proxy,
        descriptors: u64,
        sockets: Option<Sockets>,
        predecessor: Option<ReloadState>,
        started: &[Server],
        known: &KnownAddresses,
    ) -> Result<Server> {
        let beside = self.running.iter().chain(&self.retiring).chain(started);
        let waker = Some(self.waker.clone());
        let options = StartOptions {
            redirector: redirect::redirector(&proxy)?,
            beside: beside.map(Server::address).collect(),
            own_listeners: self.own_listeners.clone(),
            descriptors: Some(descriptors),
            sockets,
            predecessor,
            waker,
            addresses: known.clone(),
            // See `first_answers`.
            first_answers: Some(Duration::ZERO),
            on_health: Some(note_health(self.events.clone())),
            ..StartOptions::default()
        };
        Ok(Server::start_with(proxy, options)?)
    }

    /// Puts other settings in force. Proxies whose settings stay the same are not touched. Those
    /// with others go on on the same sockets, and the connections that they have keep what they
    /// began with.
    ///
    /// # Errors
    /// One cannot start; then all is as it was.
    pub fn swap(&mut self, settings: Vec<Proxy>) -> Result<()> {
        let mut started = Vec::new();
        let known = self.running.iter().flat_map(Server::addresses).collect();
        let known = first_answers(&settings, known);
        let shares = self.shares(&settings);
        let shares = || settings.iter().zip(&shares);
        for (proxy, share) in shares().filter(|(proxy, _)| !self.runs(proxy)) {
            match self.start_successor(proxy, *share, &started, &known) {
                Ok(server) => started.push(server),
                Err(failure) => {
                    // They may have clients already.
                    started.into_iter().for_each(|server| self.retire(server));
                    return Err(failure);
                }
            }
        }
        let stays = |server: &Server| settings.contains(server.settings());
        let (stay, go) = self.running.drain(..).partition(stays);
        self.running = stay;
        for server in &self.running {
            let own = |(proxy, _): &(&Proxy, &u64)| *proxy == server.settings();
            if let Some((_, share)) = shares().find(own) {
                server.set_descriptors(*share);
            }
        }
        for mut server in go {
            let next = |successor: &&Server| successor.address() == server.address();
            match started.iter().find(next) {
                Some(_) => self.retire(server),
                None => {
                    server.drain(server.settings().drain_timeout);
                    self.retiring.push(server);
                }
            }
        }
        self.running.append(&mut started);
        let order = |server: &Server| settings.iter().position(|s| s == server.settings());
        self.running.sort_by_key(order);
        Ok(())
    }

    /// Opens the access logs again by their paths.
    pub fn reopen_logs(&self) {
        let servers = self.running.iter().chain(&self.retiring);
        servers.for_each(Server::reopen_log);
    }

    fn runs(&self, proxy: &Proxy) -> bool {
        self.running.iter().any(|server| server.settings() == proxy)
    }

    fn start_successor(
        &self,
        proxy: &Proxy,
        descriptors: u64,
        started: &[Server],
        known: &KnownAddresses,
    ) -> Result<Server> {
        let same = |server: &&Server| server.settings().listen == proxy.listen;
        let old = self.running.iter().find(same);
        let sockets = old.and_then(Server::sockets).map(Sockets::try_clone);
        let sockets = sockets.transpose();
        let sockets = sockets.map_err(|error| Failure::io("hand sockets on", error))?;
        self.start_one(
            proxy.clone(),
            descriptors,
            sockets,
            old.map(Server::reload_state),
            started,
            known,
        )
    }

    fn retire(&mut self, mut server: Server) {
        server.retire();
        self.retiring.push(server);
    }

    /// Looks after threads that have ended: see [`Server::restart_failed`].
    ///
    /// # Errors
    /// A thread fails again and again.
    pub fn tend(&mut self) -> Result<()> {
        self.waker.clear();
        let mut fault = Ok(());
        for server in self.running.iter_mut().chain(&mut self.retiring) {
            fault = fault.and(server.restart_failed());
        }
        let (ended, retiring) = self.retiring.drain(..).partition(Server::is_finished);
        self.retiring = retiring;
        let live = self.running.iter().chain(&self.retiring);
        let live = live.flat_map(|server| server.servers().backends);
        let live: HashSet<SocketAddr> = live.map(|backend| backend.address).collect();
        for server in ended {
            let past = past_of(&mut self.past, &server.settings().name);
            past.add(&server.totals());
            past.forget_backends(PAST_BACKENDS, |address| live.contains(address));
        }
        Ok(fault?)
    }

    /// The proxies that accept.
    pub fn running(&self) -> &[Server] {
        &self.running
    }

    /// Says it if the process has too few descriptors for the `max_clients` of a proxy that sets it: two for each client,
    /// its own and that of its server. The default is a bound, and nobody's expectation.
    pub fn check_descriptors(&self) {
        let default = <Proxy as Table>::blank().max_clients;
        let of_one = |server: &Server| (server.settings().max_clients, server.clients_at_once());
        let is_short =
            |(most, at_once): &(u32, usize)| *most != default && *at_once < *most as usize;
        let short = self.running.iter().map(of_one).filter(is_short);
        let sum = |(most, sum), (more, at_once)| (most + u64::from(more), sum + at_once);
        let (clients, at_once) = short.fold((0, 0), sum);
        if clients > 0 {
            let all = match self.running.len() {
                1 => "",
                _ => " for all of its proxies",
            };
            tracing::warn!(
                "{clients} clients (max_clients) with a server each need {} descriptors, this process has {} at most{all}: {at_once} \
                 are served at once, and others wait in the accept queue\n\
                 hint: raise LimitNOFILE= of the service or ulimit -Hn, or lower max_clients",
                2 * clients,
                raise_limit()
            );
        }
    }

    /// Rings when [`tend`](Self::tend) has something to do.
    pub fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Another process accepts on the sockets now: all retire.
    pub fn retire_all(&mut self) {
        for server in std::mem::take(&mut self.running) {
            self.retire(server);
        }
    }

    /// Accepts the connections that wait, and no more; transfers have each proxy's
    /// `drain_timeout`, or `time`.
    pub fn drain(&mut self, time: Option<Duration>) {
        let running = std::mem::take(&mut self.running);
        self.retiring.extend(running);
        for server in &mut self.retiring {
            server.drain(time.unwrap_or(server.settings().drain_timeout));
        }
    }

    /// Whether none runs any more.
    pub fn have_ended(&self) -> bool {
        self.running.is_empty() && self.retiring.is_empty()
    }

    /// What all of them are doing.
    pub fn reports(&self, config: Option<&str>) -> Vec<weir_api::Proxy> {
        let mut reports: Vec<weir_api::Proxy> = Vec::new();
        for server in self.running.iter().chain(&self.retiring) {
            let generations = self.running.iter().chain(&self.retiring);
            let name = &server.settings().name;
            if reports.iter().any(|report| report.name == *name) {
                continue;
            }
            let same = generations.filter(|other| other.settings().name == *name);
            let mut report = report::of(server, same, self.past(name));
            report.config = config.map(str::to_owned);
            reports.push(report);
        }
        reports
    }

    fn past(&self, name: &str) -> Option<&Totals> {
        let mut past = self.past.iter();
        past.find(|(own, _)| own == name).map(|(_, totals)| totals)
    }

    /// What each did, once all have ended, and for how long there were any.
    pub fn totals(&self) -> (&[(String, Totals)], Duration) {
        (&self.past, self.since.elapsed())
    }
}

/// The addresses of all names of these settings: what is known, and what name servers say soon. All are asked at once.
fn first_answers(settings: &[Proxy], mut known: KnownAddresses) -> KnownAddresses {
    let backends = settings.iter().flat_map(|proxy| &proxy.backends);
    let names = backends.filter_map(|backend| backend.address.host());
    let unknown = names.filter(|name| !known.contains_key(*name));
    let unknown: BTreeSet<String> = unknown.map(str::to_owned).collect();
    let answers = resolve_all(unknown.clone(), &LookUp::default(), FIRST_ANSWERS);
    for name in unknown.iter().filter(|name| !answers.contains_key(*name)) {
        tracing::warn!("no answer for the name {name} yet; it has no address until there is one");
    }
    known.extend(
        answers
            .into_iter()
            .filter_map(|(name, found)| Some((name, found.ok()?))),
    );
    known
}

fn past_of<'a>(past: &'a mut Vec<(String, Totals)>, name: &str) -> &'a mut Totals {
    let at = past.iter().position(|(own, _)| own == name);
    let at = at.unwrap_or_else(|| {
        past.push((name.to_owned(), Totals::default()));
        past.len() - 1
    });
    &mut past[at].1
}
