//! The policy in force: fitted to the namespace, applied, and attached where its traffic is.
//!
//! A session owns the kernel half. Dropping it takes all protection off.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::Value;
use weir_config::{
    Environment, Fallback, Fitted, SynFilter, fit, mptcp_fallback, services_fallback,
    steered_fallback,
};
use weir_core::class::Class;
use weir_core::controller::Settings;
use weir_core::listener::{Admit, Establish, Listener, Mode, QueueOrder};
use weir_core::pace::Pace;
use weir_core::policy::Services;
use weir_core::quic::QuicListener;
use weir_core::refusals::Refusal;
use weir_core::residence::Gate;
use weir_core::verdict::Counters;
use weir_kernel::{ListenSocket, Namespace};

use crate::daemon::attachment::{Place, RefusedAt, carries, named_ports, places};
use crate::daemon::backend::{Backend, Spaces};
use crate::daemon::queue::{ClassLimits, Queues, Wanted};
use crate::daemon::report::counters_by_name;
use crate::failure::{Code, Failure, Result};
use crate::host::links::Link;
use crate::host::sockets::serving;
use crate::show::describe;
use crate::show::settings::settings;

mod class_list;
mod classes;
mod exec;
mod exec_servers;
mod follow;
mod glance;
mod in_force;
mod load;
mod notices;
mod residence;
mod sight;
mod sights;

use class_list::Classes;
use exec_servers::ExecServers;
pub use follow::listeners_of;
pub use glance::{Glance, accepts, waits_too_long};
pub use sight::SightChange;
use sights::Sights;

/// So late a look at what is behind weir may be before it sends no cookies: the daemon may stand still.
const LATE: Duration = Duration::from_secs(2);

/// What guards this network namespace.
pub struct Session<B> {
    /// Before the backend: what is parked goes to the servers first.
    queues: Queues,
    backend: B,
    policies: Vec<Policy>,
    /// Listeners of other network namespaces, which classes may name.
    elsewhere: Vec<Listener>,
    /// QUIC listeners, likewise: names and ports.
    quic: Vec<(String, u16)>,
    /// The classes in force, without those of proxies.
    classes: Classes,
    /// Servers whose accept() calls `weir exec` answers.
    exec: ExecServers,
    /// The controller beside the listeners' own rules.
    controller: Option<Settings>,
    links: Vec<Link>,
    /// What the policies are fitted to.
    environment: Environment,
    /// Nothing has been in force yet.
    is_new: bool,
    /// What takes connections to addresses of this host before its sockets do.
    services: Services,
    /// The policy as the kernel half has it, and what its interface names meant then.
    applied: Applied,
    attached: BTreeMap<u32, Attached>,
    /// Interfaces that could not be guarded: what is said of each.
    failed: BTreeMap<u32, String>,
    /// Whether SYNs reach weir.
    sights: Sights,
    /// How fast servers empty long queues, by the listener's name.
    paces: BTreeMap<String, Pace>,
    /// What may come to servers that queue inside, by the listener's name, where the controller shares it out by class.
    inside: BTreeMap<String, Gate>,
}

/// An interface with the guard on it.
struct Attached {
    /// How it was to be attached.
    wanted: Place,
    /// Why the XDP front that was wanted is not there.
    no_front: Option<String>,
}

/// A listener as it was asked for and as this namespace can have it.
struct Policy {
    asked: Listener,
    fitted: Fitted,
}

#[derive(PartialEq)]
struct Applied {
    listeners: Vec<Listener>,
    interfaces: Vec<(String, u32)>,
}

impl<B: Backend> Session<B> {
    /// Guards nothing yet.
    pub fn none(backend: B, environment: Environment, links: Vec<Link>) -> Session<B> {
        Session {
            queues: Queues::default(),
            backend,
            policies: Vec::new(),
            elsewhere: Vec::new(),
            quic: Vec::new(),
            classes: Classes::default(),
            exec: ExecServers::default(),
            controller: None,
            applied: Applied::of(&[], &links),
            links,
            environment,
            services: Services::default(),
            is_new: true,
            attached: BTreeMap::new(),
            failed: BTreeMap::new(),
            sights: Sights::new(),
            paces: BTreeMap::new(),
            inside: BTreeMap::new(),
        }
    }

    /// Guards these.
    ///
    /// # Errors
    /// As of [`Session::swap`].
    #[cfg(any(test, feature = "fuzzing"))]
    pub fn start(
        backend: B,
        environment: Environment,
        listeners: Vec<Listener>,
        classes: Vec<Class>,
        links: Vec<Link>,
    ) -> Result<Session<B>> {
        let mut session = Session::none(backend, environment.clone(), links);
        session.swap(environment, listeners, classes)?;
        Ok(session)
    }

    /// Puts another policy in force, atomically for every packet. The first one must get the interfaces that it names, and
    /// at least one in all; later, an interface that fails is tried again.
    ///
    /// # Errors
    /// A policy that this namespace cannot carry out, or the kernel half's failure; the policy in force then stays.
    pub fn swap(
        &mut self,
        environment: Environment,
        listeners: Vec<Listener>,
        classes: Vec<Class>,
    ) -> Result<()> {
        let before = self.in_force();
        let classes = self.classes.of_file(classes);
        self.put_in_force(environment, listeners, classes.list())?;
        self.classes = classes;
        let attached = match std::mem::take(&mut self.is_new) {
            true => self.attach_at_start(),
            false => {
                self.follow_links();
                Ok(())
            }
        };
        let done = attached.and_then(|()| self.prioritize());
        if done.is_err() {
            self.put_back_or_say(before);
        }
        done
    }

    /// Fits the policies that were asked for to a namespace where this could drop a SYN now, or nothing any longer.
    ///
    /// # Errors
    /// As of [`Session::swap`].
    pub fn set_syn_filter(&mut self, syn_filter: Option<SynFilter>) -> Result<()> {
        self.renew(Environment {
            syn_filter,
            ..self.environment.clone()
        })
    }

    /// What could drop a SYN, as the policies in force were fitted to it.
    pub fn syn_filter(&self) -> Option<&SynFilter> {
        self.environment.syn_filter.as_ref()
    }

    /// What is behind weir is as it was fitted to, by a look that took so long; the next is due after so long.
    pub fn looked_behind(&mut self, took: Duration, next: Duration) {
        self.backend
            .cookies_hold((next + LATE).saturating_sub(took));
    }

    /// Those whose packets pass.
    pub fn services(&self) -> &Services {
        &self.services
    }

    /// Has the packets of other services pass from now on.
    ///
    /// # Errors
    /// As of [`Session::swap`]; then those of before pass.
    pub fn set_services(&mut self, services: Services) -> Result<()> {
        self.backend.pass_by(&services);
        if self.is_new {
            self.services = services;
            return Ok(());
        }
        if let Err(failure) = self.renew(self.environment.clone()) {
            self.backend.pass_by(&self.services);
            return Err(failure);
        }
        self.services = services;
        Ok(())
    }

    /// The same to a namespace whose sysctls have changed. A policy that has become impossible stays; what weir answers
    /// follows the other sysctls all the same.
    ///
    /// # Errors
    /// As of [`Session::swap`].
    pub fn set_sysctls(&mut self, environment: Environment) -> Result<()> {
        let before = self.environment.clone();
        let done = self.renew(environment);
        if done.is_err() {
            self.renew(before)?;
        }
        done
    }

    fn renew(&mut self, environment: Environment) -> Result<()> {
        let asked = self.policies.iter().map(|p| p.asked.clone()).collect();
        let classes = self.classes.list().to_vec();
        self.put_in_force(environment, asked, &classes)
    }

    /// Fits the listeners to the environment and the controller, and hands the policy to the kernel half.
    fn put_in_force(
        &mut self,
        environment: Environment,
        listeners: Vec<Listener>,
        classes: &[Class],
    ) -> Result<()> {
        let mut policies = fit_all(listeners, &environment)?;
        for policy in &mut policies {
            policy.fit_to(self.controller);
        }
        let applied = Applied::of(&policies, &self.links);
        self.backend.allow_cookies(environment.sends_cookies());
        if let Err(error) = self.backend.apply(&applied.listeners, classes) {
            let stays = self.environment.sends_cookies();
            self.backend.allow_cookies(stays);
            return Err(error.into());
        }
        (self.policies, self.applied) = (policies, applied);
        self.sights.begin_anew();
        self.environment = environment;
        Ok(())
    }

    /// Follows interfaces that have appeared, disappeared, or been renamed or enslaved.
    pub fn links_changed(&mut self, links: Vec<Link>) {
        self.links = links;
        let applied = Applied::of(&self.policies, &self.links);
        if applied != self.applied {
            match self.backend.apply(&applied.listeners, self.classes.list()) {
                Ok(()) => self.applied = applied,
                Err(error) => tracing::error!("interfaces changed, but {error}"),
            }
        }
        self.follow_links();
    }

    /// Has the queues of those listeners prioritized that ask for it.
    fn prioritize(&mut self) -> Result<()> {
        let all: Vec<Listener> = self.policies.iter().map(|p| p.asked.clone()).collect();
        let priority = |l: &&Listener| l.queue == QueueOrder::Priority && l.mode == Mode::Enforce;
        let slots = self.backend.class_slots();
        let limits = |class: &Class| ClassLimits {
            name: class.name.clone(),
            priority: class.priority,
            queue_limit: class.queue_limit,
        };
        let wanted = all.iter().filter(priority).map(|listener| Wanted {
            listener: listener.clone(),
            all: all.clone(),
            counters: self.backend.counters_index(&listener.name),
            exec: self.exec.sockets(),
            classes: slots
                .iter()
                .filter(|(_, class)| class.is_of_listener(&listener.name))
                .map(|(slot, class)| (*slot, limits(class)))
                .collect(),
        });
        let wanted = wanted.collect();
        self.queues.apply(wanted, || self.backend.queue_maps())
    }

    fn places(&self) -> BTreeMap<u32, Place> {
        let runs_xdp = |peer: &_| self.backend.runs_xdp(peer);
        places(&self.applied.listeners, &self.links, runs_xdp)
    }

    /// Attaches everywhere; an interface that was named must work, and at least one in all.
    fn attach_at_start(&mut self) -> Result<()> {
        if let Some(cause) = named_ports(&self.applied.listeners, &self.links).pop() {
            return Err(Failure::failed(cause.message, cause.hint));
        }
        let places = self.places();
        let mut first_failure = None;
        for (index, place) in &places {
            if let Err(error) = self.attach(*index, place) {
                if place.named {
                    return Err(attach_failure(place, error));
                }
                self.failed.insert(*index, not_guarded(place, &error));
                first_failure.get_or_insert_with(|| attach_failure(place, error));
            }
        }
        match first_failure {
            Some(failure) if self.attached.is_empty() => Err(failure),
            _ => Ok(()),
        }
    }

    /// Attaches where it is needed by now, then detaches where it no longer is.
    fn follow_links(&mut self) {
        let places = self.places();
        for (index, place) in &places {
            match self.attached.get_mut(index) {
                Some(attached) if attached.wanted.refused_at == place.refused_at => {
                    attached.wanted = place.clone();
                }
                _ => self.attach_or_note(*index, place),
            }
        }
        let gone: Vec<u32> = self
            .attached
            .keys()
            .filter(|index| !places.contains_key(index))
            .copied()
            .collect();
        for index in gone {
            self.backend.detach(index);
            self.attached.remove(&index);
            self.sights.begin_anew();
        }
        self.failed.retain(|index, _| places.contains_key(index));
    }

    /// Puts weir before all others again where one has gone before it. Only when somebody asks: weir does not take that
    /// place back by itself, or two that both do would push each other for ever.
    pub fn go_first(&mut self, now: Instant) {
        let indexes: Vec<u32> = self.attached.keys().copied().collect();
        for index in indexes {
            if let Err(error) = self.backend.go_first(index)
                && let Some(attached) = self.attached.remove(&index)
            {
                self.failed
                    .insert(index, not_guarded(&attached.wanted, &error));
            }
        }
        self.sights.forget();
        self.look_before(now);
    }

    /// An interface that fails is tried again whenever the links change.
    fn attach_or_note(&mut self, index: u32, place: &Place) {
        match self.attach(index, place) {
            Ok(()) => {
                self.failed.remove(&index);
                tracing::info!("guarding interface {}", place.name);
            }
            Err(error) => {
                self.failed.insert(index, not_guarded(place, &error));
            }
        }
    }

    /// Attaches to one interface; without XDP in its driver, at tc only.
    fn attach(&mut self, index: u32, place: &Place) -> weir_kernel::Result<()> {
        let no_front = match place.refused_at {
            RefusedAt::Tc => None,
            RefusedAt::TcBecause(why) => Some(why.to_owned()),
            RefusedAt::Xdp => self
                .backend
                .attach(index, true)
                .err()
                .map(|error| error.to_string()),
        };
        if place.refused_at != RefusedAt::Xdp || no_front.is_some() {
            self.backend.attach(index, false)?;
        }
        let wanted = place.clone();
        self.attached.insert(index, Attached { wanted, no_front });
        self.sights.begin_anew();
        Ok(())
    }

    /// The listeners, as they were asked for.
    pub fn asked(&self) -> impl Iterator<Item = &Listener> {
        self.policies.iter().map(|policy| &policy.asked)
    }

    /// Every listener's queues and counters now.
    ///
    /// # Errors
    /// The kernel half cannot be read.
    pub fn listeners(&self) -> Result<Vec<weir_api::Listener>> {
        let sockets = self.backend.listen_sockets()?;
        self.policies
            .iter()
            .map(|policy| self.listener(policy, &sockets))
            .collect()
    }

    fn listener(&self, policy: &Policy, sockets: &[ListenSocket]) -> Result<weir_api::Listener> {
        let asked = &policy.asked;
        let all = self.serving(asked, sockets);
        // Parking listeners hold connections of the one queue, and are none of the server's sockets.
        let serving: Vec<&ListenSocket> = all.iter().filter(|s| !s.parked).copied().collect();
        let queue = self.queues.state(&asked.name).unwrap_or_default();
        let exec = self.exec.of(&serving);
        let (way, because) = match &exec {
            Some(exec) => ("exec", Some(exec.because())),
            None if queue.parking => ("parking", queue.because),
            None => ("fifo", queue.because),
        };
        let held = exec.map_or(0, |exec| exec.held);
        let counters = self.counters(&asked.name)?;
        let fallback = self.hidden(asked).or_else(|| policy.fallback(&serving));
        let settings = settings(asked);
        let residence_mode = settings.get("residence").and_then(Value::as_str);
        let residence_mode = residence_mode.unwrap_or_default().to_owned();
        let (classes, classes_left_out) = self.classes_of(&asked.name)?;
        let (fallback, fallback_because) = fallback.map(|f| (f.policy, f.because)).unzip();
        let kept = kept_of(asked, &serving);
        let slower = self.slower(asked, accepts(serving.iter().copied()));
        let longer = |time: Duration| micros(time.mul_f64(slower));
        Ok(weir_api::Listener {
            name: asked.name.clone(),
            address: asked.address.to_string(),
            mode: weir_core::word::Word::word(asked.mode).to_owned(),
            policy: describe::policy(&policy.shown()),
            in_force: self.is_in_force(asked),
            not_in_force_because: self.not_in_force_because(asked),
            listening: !serving.is_empty(),
            queue_length: held + all.iter().map(|s| s.queue_length).sum::<u32>(),
            queue_limit: serving.iter().map(|s| s.queue_limit).sum(),
            half_open: all.iter().map(|s| s.half_open).sum(),
            queue_way: way.to_owned(),
            queue_way_because: because,
            parked: queue.waiting.values().sum(),
            released: queue.released,
            overtook: queue.overtook,
            wait_us: serving.iter().filter_map(|s| s.wait).max().map(longer),
            service_us: serving.iter().filter_map(|s| s.service).max().map(longer),
            kept_queue_length: kept.map(|(length, _)| length),
            kept_wait_us: kept.map(|(_, wait)| longer(wait)),
            // The frame adds them: it follows the listeners.
            target_in_force_us: None,
            offered: None,
            would_refuse: None,
            fallback,
            fallback_because,
            timewait_mode: weir_core::word::Word::word(asked.timewait).to_owned(),
            // The frame adds them: they are of another program.
            timewait: weir_api::TimeWait::default(),
            residence_mode,
            // The frame adds it, likewise.
            residence: None,
            counters: counters_by_name(&counters),
            classes,
            classes_left_out,
            sockets: serving
                .iter()
                .map(|socket| socket_report(socket, slower))
                .collect(),
            workloads: Vec::new(),
            settings: settings_beside(asked),
        })
    }

    fn serving<'a>(
        &self,
        listener: &Listener,
        sockets: &'a [ListenSocket],
    ) -> Vec<&'a ListenSocket> {
        let all: Vec<Listener> = self.policies.iter().map(|p| p.asked.clone()).collect();
        serving(listener, &all, sockets)
    }

    /// Whether weir could not attach to an interface that it is to guard.
    pub fn lacks_interfaces(&self) -> bool {
        !self.failed.is_empty()
    }

    /// As if nothing was attached.
    #[cfg(test)]
    pub fn forget_interfaces(&mut self) {
        self.attached.clear();
    }

    /// Counters of a listener: the guard's, and those of its prioritized queue.
    fn counters(&self, listener: &str) -> Result<Counters> {
        let mut counters = self.backend.counters(listener)?;
        if let Some(queue) = self.queues.state(listener) {
            counters.add(&queue.refused());
        }
        Ok(counters)
    }

    /// Name, mode and counters of every listener.
    ///
    /// # Errors
    /// The counters cannot be read.
    pub fn totals(&self) -> Result<Vec<(&Listener, Counters)>> {
        let total = |p: &'_ Policy| self.counters(&p.asked.name);
        self.policies
            .iter()
            .map(|policy| Ok((&policy.asked, total(policy)?)))
            .collect()
    }

    /// Whether some client may hold a cookie that it has not come back with.
    pub fn cookies_may_be_out(&self) -> bool {
        // Counters that cannot be read may be anything.
        self.totals().map_or(true, |totals| {
            totals
                .iter()
                .any(|(l, counters)| l.mode == Mode::Enforce && counters.cookies_sent() > 0)
        })
    }

    /// Admits all from now on, while cookies that are out stay valid.
    pub fn drain(&mut self) {
        self.backend.drain();
    }

    /// Sampled refusals since the last call, each with the network namespace in which it was; `None`: weir's own.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn refusals(&mut self) -> Result<Vec<(Option<Namespace>, Refusal)>> {
        let events = self.backend.events()?.into_iter();
        let mut refusals: Vec<_> = events.map(|(at, one)| (Some(at), one)).collect();
        let examples = self.queues.examples().into_iter();
        refusals.extend(examples.map(|one| (None, one)));
        Ok(refusals)
    }

    /// Lets classes name listeners of other network namespaces.
    pub fn know(&mut self, elsewhere: Vec<Listener>) {
        self.elsewhere = elsewhere;
    }

    /// Lets classes name these QUIC listeners.
    pub fn know_quic(&mut self, list: &[QuicListener]) {
        let named = list.iter().map(|one| (one.name.clone(), one.address.port));
        self.quic = named.collect();
    }

    /// The kernel half.
    pub fn backend_mut(&mut self) -> &mut B {
        &mut self.backend
    }

    /// The kernel half in other network namespaces.
    pub fn spaces(&self) -> &impl Spaces {
        &self.backend
    }

    /// The same, to put something in force there.
    pub fn spaces_mut(&mut self) -> &mut impl Spaces {
        &mut self.backend
    }

    /// Names of the interfaces with the guard on them.
    pub fn interfaces(&self) -> Vec<weir_api::Interface> {
        let report = |(index, attached): (&u32, &Attached)| weir_api::Interface {
            name: attached.wanted.name.clone(),
            index: *index,
            xdp: attached.wanted.refused_at == RefusedAt::Xdp && attached.no_front.is_none(),
        };
        self.attached.iter().map(report).collect()
    }

    /// What is carried out of a listener's policy whose connections are, or may be, those of another service.
    fn hidden(&self, listener: &Listener) -> Option<Fallback> {
        if self.services == Services::default() {
            return None;
        }
        let all: Vec<Listener> = self.policies.iter().map(|p| p.asked.clone()).collect();
        let hidden = self.services.hide(listener, &all);
        hidden.then(|| services_fallback(listener))
    }

    /// Names of the interfaces on which one listener is guarded.
    pub fn interfaces_of(&self, listener: &str) -> Vec<&str> {
        let Some(policy) = self.policies.iter().find(|p| p.asked.name == listener) else {
            return Vec::new();
        };
        let its = self
            .links
            .iter()
            .filter(|link| carries(link, &policy.asked) && self.attached.contains_key(&link.index));
        its.map(|link| link.name.as_str()).collect()
    }
}

impl Policy {
    /// Has the listener's own rule on the wait leave to this controller what it decides.
    fn fit_to(&mut self, controller: Option<Settings>) {
        let beside = controller.map(|settings| settings.beside(&self.asked));
        let rule = beside.as_ref().unwrap_or(&self.asked);
        self.fitted.listener.target_wait = rule.target_wait;
        self.fitted.listener.least_length = rule.least_length;
    }

    /// The listener as people are shown it: what this namespace carries out, with the wait that was configured.
    fn shown(&self) -> Listener {
        Listener {
            target_wait: self.asked.target_wait,
            ..self.fitted.listener.clone()
        }
    }

    /// What is carried out instead of what was asked for, given the sockets that serve it.
    fn fallback(&self, serving: &[&ListenSocket]) -> Option<Fallback> {
        let by_socket = |is: fn(&ListenSocket) -> bool, fallback: fn(&Listener) -> _| {
            let any = serving.iter().any(|socket| is(socket));
            any.then(|| fallback(&self.asked)).flatten()
        };
        by_socket(|socket| socket.steered, steered_fallback)
            .or_else(|| self.fitted.fallback.clone())
            .or_else(|| by_socket(|socket| socket.mptcp, mptcp_fallback))
    }
}

impl Applied {
    fn of(policies: &[Policy], links: &[Link]) -> Applied {
        let listeners: Vec<Listener> = policies.iter().map(|p| p.fitted.listener.clone()).collect();
        let named = |link: &&Link| listeners.iter().any(|l| l.interfaces.contains(&link.name));
        let interfaces = links
            .iter()
            .filter(named)
            .map(|link| (link.name.clone(), link.index))
            .collect();
        Applied {
            listeners,
            interfaces,
        }
    }
}

fn fit_all(listeners: Vec<Listener>, environment: &Environment) -> Result<Vec<Policy>> {
    let fitted = |asked: Listener| {
        let fitted = fit(&asked, environment).map_err(|fault| {
            Failure::fault(
                Code::Unsupported,
                format_args!("listener {:?}", asked.name),
                fault,
            )
        })?;
        Ok(Policy { asked, fitted })
    };
    listeners.into_iter().map(fitted).collect()
}

/// The keys in effect that no field of a report has.
pub fn settings_beside(listener: &Listener) -> BTreeMap<String, Value> {
    let fields = ["name", "address", "mode", "timewait", "residence"];
    let settings = settings(listener).into_iter();
    settings
        .filter(|(key, _)| !fields.contains(&key.as_str()))
        .collect()
}

fn not_guarded(place: &Place, error: &weir_kernel::Error) -> String {
    format!("interface {} is not guarded: {error}", place.name)
}

fn attach_failure(place: &Place, error: weir_kernel::Error) -> Failure {
    let mut failure = Failure::from(error);
    for cause in &mut failure.causes {
        cause.message = format!("interface {}: {}", place.name, cause.message);
    }
    failure
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// How many connections a listener leaves waiting where one service takes longer than its target, and their wait: the
/// longest of its sockets. `None` where the target can be kept, or does not decide.
fn kept_of(listener: &Listener, serving: &[&ListenSocket]) -> Option<(u32, Duration)> {
    if listener.admit != Admit::Wait || listener.establish == Establish::Default {
        return None;
    }
    let kept = |socket: &&ListenSocket| {
        let length = socket.kept_length.max(listener.least_length.into());
        Some((length, socket.service?.saturating_mul(length)))
    };
    let all = serving.iter().filter_map(kept);
    let length = all.clone().map(|(length, _)| length).sum();
    let wait = all.map(|(_, wait)| wait).max()?;
    (wait > listener.target_wait).then_some((length, wait))
}

/// `slower`: by so much its wait is longer than the guard's estimate.
fn socket_report(socket: &ListenSocket, slower: f64) -> weir_api::Socket {
    weir_api::Socket {
        address: SocketAddr::new(socket.ip, socket.port).to_string(),
        queue_length: socket.queue_length,
        queue_limit: socket.queue_limit,
        half_open: socket.half_open,
        wait_us: socket.wait.map(|wait| micros(wait.mul_f64(slower))),
        mptcp: socket.mptcp,
    }
}

#[cfg(test)]
mod tests;
