//! The policy in force: fitted to the namespace, applied, and attached where its traffic is.
//!
//! A session owns the kernel half. Dropping it takes all protection off.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use weir_config::{Environment, Fallback, Fitted, fit, mptcp_fallback};
use weir_core::class::Class;
use weir_core::controller::Settings;
use weir_core::listener::{Listener, Mode, QueueOrder};
use weir_core::refusals::Refusal;
use weir_core::verdict::Counters;
use weir_kernel::ListenSocket;

use crate::daemon::attachment::{Place, Refusals, carries, places};
use crate::daemon::backend::Backend;
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
mod in_force;
mod load;
mod notices;

use class_list::Classes;
pub use classes::{check_guarded, other_has_no_settings};
use exec_servers::ExecServers;
pub use follow::listeners_of;
pub use load::Glance;

/// What guards this network namespace.
pub struct Session<B> {
    /// Before the backend: what is parked goes to the servers first.
    queues: Queues,
    backend: B,
    policies: Vec<Policy>,
    /// The classes in force, without those of proxies.
    classes: Classes,
    /// Servers whose accept() calls `weir exec` answers.
    exec: ExecServers,
    /// The controller beside the listeners' own rules.
    controller: Option<Settings>,
    links: Vec<Link>,
    /// What the policies are fitted to.
    environment: Environment,
    /// The policy as the kernel half has it, and what its interface names meant then.
    applied: Applied,
    attached: BTreeMap<u32, Attached>,
    /// Interfaces that could not be guarded: what is said of each.
    failed: BTreeMap<u32, String>,
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
    /// Puts the listeners under guard.
    ///
    /// # Errors
    /// A policy that this namespace cannot carry out, or the kernel half's failure; then nothing is
    /// in force.
    pub fn start(
        mut backend: B,
        environment: Environment,
        listeners: Vec<Listener>,
        classes: Vec<Class>,
        links: Vec<Link>,
    ) -> Result<Session<B>> {
        let policies = fit_all(listeners, environment)?;
        let classes = Classes::new(classes);
        let applied = Applied::of(&policies, &links);
        backend.allow_cookies(environment.sends_cookies());
        backend.apply(&applied.listeners, classes.list())?;
        let mut session = Session {
            queues: Queues::default(),
            backend,
            policies,
            classes,
            exec: ExecServers::default(),
            controller: None,
            links,
            environment,
            applied,
            attached: BTreeMap::new(),
            failed: BTreeMap::new(),
        };
        session.attach_at_start()?;
        session.prioritize()?;
        Ok(session)
    }

    /// Puts another policy in force, atomically for every packet.
    ///
    /// # Errors
    /// As in [`Session::start`]; the policy in force then stays.
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
        self.follow_links();
        let done = self.prioritize();
        if done.is_err() {
            self.put_back_or_say(before);
        }
        done
    }

    /// Fits the policies that were asked for to a namespace where conntrack follows connections now, or no longer.
    ///
    /// # Errors
    /// As in [`Session::start`]; the policies in force then stay.
    pub fn set_conntrack(&mut self, follows: bool) -> Result<()> {
        let environment = Environment {
            conntrack: follows,
            ..self.environment
        };
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
        let mut policies = fit_all(listeners, environment)?;
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
                Some(attached) if attached.wanted.refusals == place.refusals => {
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
        }
        self.failed.retain(|index, _| places.contains_key(index));
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
        let no_front = match place.refusals {
            Refusals::Tc => None,
            Refusals::TcBecause(why) => Some(why.to_owned()),
            Refusals::Xdp => self
                .backend
                .attach(index, true)
                .err()
                .map(|error| error.to_string()),
        };
        if place.refusals != Refusals::Xdp || no_front.is_some() {
            self.backend.attach(index, false)?;
        }
        let wanted = place.clone();
        self.attached.insert(index, Attached { wanted, no_front });
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
        let fallback = policy.fallback(&serving);
        let mut settings = settings(asked);
        settings.retain(|key, _| !["name", "address", "mode", "timewait"].contains(&key.as_str()));
        let (classes, classes_left_out) = self.classes_of(&asked.name)?;
        let (fallback, fallback_because) = fallback.map(|f| (f.policy, f.because)).unzip();
        Ok(weir_api::Listener {
            name: asked.name.clone(),
            address: asked.address.to_string(),
            mode: weir_core::word::Word::word(asked.mode).to_owned(),
            policy: describe::policy(&policy.shown()),
            in_force: self.is_in_force(asked),
            listening: !serving.is_empty(),
            queue_length: held + all.iter().map(|s| s.queue_length).sum::<u32>(),
            queue_limit: serving.iter().map(|s| s.queue_limit).sum(),
            half_open: all.iter().map(|s| s.half_open).sum(),
            queue_way: way.to_owned(),
            queue_way_because: because,
            parked: queue.waiting.values().sum(),
            released: queue.released,
            overtook: queue.overtook,
            wait_us: serving.iter().filter_map(|s| wait_us(s)).max(),
            fallback,
            fallback_because,
            timewait_mode: weir_core::word::Word::word(asked.timewait).to_owned(),
            // The frame adds them: they are of another program.
            timewait: weir_api::TimeWait::default(),
            counters: counters_by_name(&counters),
            classes,
            classes_left_out,
            sockets: serving.iter().map(|socket| socket_report(socket)).collect(),
            settings: settings.into_iter().collect(),
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

    /// Sampled refusals since the last call.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn refusals(&mut self) -> Result<Vec<Refusal>> {
        let mut refusals = self.backend.events()?;
        refusals.extend(self.queues.examples());
        Ok(refusals)
    }

    /// Names of the interfaces with the guard on them.
    pub fn interfaces(&self) -> Vec<weir_api::Interface> {
        let report = |(index, attached): (&u32, &Attached)| weir_api::Interface {
            name: attached.wanted.name.clone(),
            index: *index,
            xdp: attached.wanted.refusals == Refusals::Xdp && attached.no_front.is_none(),
        };
        self.attached.iter().map(report).collect()
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
        let mptcp = serving.iter().any(|socket| socket.mptcp);
        let by_socket = || mptcp.then(|| mptcp_fallback(&self.asked)).flatten();
        self.fitted.fallback.clone().or_else(by_socket)
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

fn fit_all(listeners: Vec<Listener>, environment: Environment) -> Result<Vec<Policy>> {
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

fn wait_us(socket: &ListenSocket) -> Option<u64> {
    socket
        .wait
        .map(|wait| u64::try_from(wait.as_micros()).unwrap_or(u64::MAX))
}

fn socket_report(socket: &ListenSocket) -> weir_api::Socket {
    weir_api::Socket {
        address: SocketAddr::new(socket.ip, socket.port).to_string(),
        queue_length: socket.queue_length,
        queue_limit: socket.queue_limit,
        half_open: socket.half_open,
        wait_us: wait_us(socket),
        mptcp: socket.mptcp,
    }
}

#[cfg(test)]
mod tests;
