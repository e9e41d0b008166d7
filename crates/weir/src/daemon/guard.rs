//! The guard as a service: `weir protect` and `weir run`.

mod classes;
pub mod elsewhere;
mod follow;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod glances;
mod parts;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use weir_api::metrics::{self, Figures};
use weir_api::{Answer, Changed, ClassChange, Process, Question, Reloaded, Status, Suggestions};
use weir_config::{ApiSettings, Config, Environment};
use weir_core::controller::Settings;
use weir_core::listener::Listener;
use weir_core::quic::QuicListener;
use weir_core::refusals::Refusal;
use weir_core::timewait::Destination;
use weir_core::workload::Where;
use weir_kernel::{Guard, Limits, Namespace, TcpOptions, cgroup_root, random};

use crate::daemon::at_start::{AtStart, Owner};
use crate::daemon::backend::{Backend, Spaces};
use crate::daemon::config_file::{ConfigFile, Reloads};
use crate::daemon::controller::Control;
use crate::daemon::events::{Events, class_changed, sight};
use crate::daemon::filters::FilterWatch;
use crate::daemon::frame::Frame;
use crate::daemon::observing::Modes;
use crate::daemon::overload::{OverloadLog, Total};
use crate::daemon::profiles::{self, Beside, Profiles};
use crate::daemon::proxies;
use crate::daemon::quic::QuicGuard;
use crate::daemon::refusals::Refusals;
use crate::daemon::relook::Relook;
use crate::daemon::residence::Residences;
use crate::daemon::service::{Put, Service};
use crate::daemon::session::{Glance, Session};
use crate::daemon::shaping::Shaping;
use crate::daemon::signals::Signals;
use crate::daemon::sysctls::SysctlWatch;
use crate::daemon::timewait::TimeWaits;
use crate::daemon::unjudged::Unjudged;
use crate::failure::{Failure, Result};
use crate::host::chains::Chains;
use crate::host::config::Source;
use crate::host::descriptors::raise_limit;
use crate::host::environment;
use crate::host::filters::Filters;
use crate::host::ipvs::{self, ServiceWatch};
use crate::host::links::{self, Link, LinkWatch};
use crate::host::privileges;
use crate::host::udp;
use crate::ipc::control::{self, Claim, Client, ControlSocket, namespace};
use crate::ipc::dashboard::{Others, Token};
use crate::ipc::endpoints::Endpoints;
use crate::ipc::peer::Asker;
use crate::show::describe::{count, part};
use crate::show::log;
use crate::show::residence::inside;
use crate::show::settings::settings;
use crate::show::suggest::comment;

use elsewhere::{Elsewhere, Machine};

/// How long cookies that are out stay valid before the guard goes: more than the round trips of
/// most clients, less than a user's patience with Ctrl-C.
const DRAIN: Duration = Duration::from_millis(300);

/// All that a guard needs before its policy is put in force. Nothing is attached yet.
pub struct Start {
    /// The loaded guard.
    pub guard: Guard,
    /// It has room for listeners in other namespaces.
    pub elsewhere: bool,
    /// The interfaces of the namespace.
    pub links: Vec<Link>,
    environment: Environment,
    signals: Signals,
    watch: LinkWatch,
    claim: Claim,
    runtime_dir: PathBuf,
    /// Inode number of the namespace.
    namespace: u64,
    /// Their root, which cannot be opened once rights are given up.
    cgroups: Option<OwnedFd>,
}

impl Start {
    /// Claims the namespace for these listeners and loads the guard.
    ///
    /// # Errors
    /// A policy that is not possible here, another weir, no rights, or a kernel that lacks something.
    pub fn prepare(runtime_dir: &Path, listeners: &[Listener]) -> Result<Start> {
        let environment = environment::read(Filters::default().first(&Chains::new()));
        // Refused before anything is loaded: it needs no root to be told.
        environment::check_fit(&environment, &here(listeners))?;
        let signals = Signals::take()?;
        let watch = LinkWatch::new()?;
        let links = links::list()?;
        let namespace = namespace()?;
        let claim = Claim::take(runtime_dir, namespace)?;
        weir_kernel::queue::note_left();
        let elsewhere = elsewhere::any(listeners);
        let limits = match elsewhere {
            true => {
                // Each namespace takes a few.
                raise_limit();
                elsewhere::LIMITS
            }
            false => Limits::default(),
        };
        Ok(Start {
            guard: Guard::load_for(limits)?,
            elsewhere,
            links,
            environment,
            signals,
            watch,
            claim,
            runtime_dir: runtime_dir.to_owned(),
            namespace,
            cgroups: cgroup_root(),
        })
    }

    /// Puts a config in force. `file` is that of `weir run`, with an absolute path; without one SIGHUP ends the guard (the
    /// terminal is gone), unless under `nohup`.
    ///
    /// # Errors
    /// A part of it cannot be in force.
    pub fn daemon(self, config: &Config, file: Option<Source>, verbose: bool) -> Result<Daemon> {
        let now = Instant::now();
        let filters = FilterWatch::new(self.environment.syn_filter.clone(), now);
        let services = ipvs::services();
        let mut session = Session::none(self.guard, self.environment, self.links);
        // From the first packet on.
        session.set_services(services.clone())?;
        let events = Events::new();
        let command = match file {
            None => "protect",
            Some(_) => "run",
        };
        let mut service = GuardService {
            filters,
            sysctls: SysctlWatch::new(TcpOptions::read(), now),
            session,
            residences: Residences::none(),
            behind: Filters::default(),
            services: ServiceWatch::new(services, now),
            watch: self.watch,
            qdiscs: LinkWatch::of_qdiscs()?,
            relook: Relook::new(),
            command,
            file: file.as_ref().map(|source| source.file.clone()),
            namespace: self.namespace,
            refusals: Refusals::new(random()?, verbose),
            profiles: Profiles::default(),
            events: events.clone(),
            overload: OverloadLog::new(),
            unjudged: Unjudged::default(),
            follow: None,
            elsewhere: Elsewhere::none(Machine::open, Namespace::current()?, self.elsewhere, now),
            told: Vec::new(),
            timewait: TimeWaits::none(self.cgroups),
            quic: QuicGuard::none(),
            shaping: Shaping::new(&self.runtime_dir)?,
            control: None,
            observes: None,
            end: None,
        };
        // A file that cannot be written does not keep the guard from its work.
        if let Err(failure) = events.set_file(config.events.as_ref()) {
            tracing::error!("{failure}");
        }
        service.put(config, now)?;
        service.settle_elsewhere();
        service.told = service.session.warnings_apart();
        // Whatever is refused from now on is seen as new.
        if let Some(glances) = service.glances(Instant::now()) {
            let (all, quic) = (glances.all(), &glances.quic);
            service.overload.tell(all, quic, &[], &[], &events);
        }
        let control = Some(Box::new(self.claim) as Box<dyn ControlSocket>);
        let own = file.map(|source| ConfigFile::new(source, AtStart::of(Owner::Guard, config)));
        Ok(Daemon {
            service,
            elsewhere: self.elsewhere,
            frame: Frame::new(self.signals, control, own, command, events)?,
            runtime_dir: self.runtime_dir,
        })
    }
}

/// A guard in its frame.
pub struct Daemon {
    /// What guards.
    pub service: GuardService<Guard>,
    frame: Frame,
    runtime_dir: PathBuf,
    /// It may enter other namespaces.
    elsewhere: bool,
}

/// What was done until the end.
pub struct Totals {
    /// Of each listener.
    pub listeners: Vec<Total>,
    /// Of each QUIC listener.
    pub quic: Vec<weir_api::Quic>,
}

impl Daemon {
    /// Opens the API.
    ///
    /// # Errors
    /// As of [`Endpoints::open_api`].
    pub fn open_api(&mut self, settings: &ApiSettings) -> Result<()> {
        let name = weir_client::default_socket_name(self.service.namespace);
        let default = self.runtime_dir.join(name);
        self.frame.endpoints.open_api(settings, default)?;
        if let Some(socket) = &settings.socket {
            control::note_api_socket(&self.runtime_dir, self.service.namespace, socket);
        }
        Ok(())
    }

    /// Opens the metrics over TCP.
    ///
    /// # Errors
    /// As of [`Endpoints::open_metrics`].
    pub fn open_metrics(&mut self, address: SocketAddr) -> Result<()> {
        self.frame.endpoints.open_metrics(address)
    }

    /// Opens the dashboard.
    ///
    /// # Errors
    /// As of [`Endpoints::open_dashboard`].
    pub fn open_dashboard(&mut self, address: SocketAddr, token: Option<Token>) -> Result<()> {
        let runtime_dir = self.runtime_dir.clone();
        let others = Others::new(move || proxies::reports_of_all(&runtime_dir));
        self.frame.endpoints.open_dashboard(address, token, others)
    }

    /// Guards until a signal or `weir detach` ends it; then nothing is attached any more.
    ///
    /// # Errors
    /// The loop cannot wait (the guard is off then too).
    pub fn guard(mut self) -> Result<Totals> {
        privileges::refuse_calls(match self.elsewhere {
            true => privileges::Beside::Namespaces,
            false => privileges::Beside::Bpf,
        });
        self.frame.run(&mut self.service)?;
        self.service.look_now(Instant::now());
        self.frame.note_stop();
        let mut quic = self.service.quic.report().unwrap_or_else(|failure| {
            tracing::warn!("counters of QUIC listeners cannot be read: {failure}");
            Vec::new()
        });
        for one in &mut quic {
            self.service.overload.add_to_quic(one);
        }
        let (mut session, overload) = (self.service.session, self.service.overload);
        let elsewhere = self.service.elsewhere;
        if session.cookies_may_be_out() || elsewhere.cookies_may_be_out(session.spaces()) {
            session.drain();
            // Until clients that hold a cookie have come back, or a second signal.
            self.frame.wait_for_signal(DRAIN);
        }
        let totals = session.totals().unwrap_or_else(|failure| {
            tracing::warn!("counters cannot be read: {failure}");
            Vec::new()
        });
        let totals = elsewhere.with_totals(session.spaces(), totals);
        let listeners = totals
            .into_iter()
            .map(|(listener, counters)| Total {
                listener: listener.clone(),
                counters,
                waits: overload.waits(&listener.name),
                would: overload.would(&listener.name),
            })
            .collect();
        drop(session);
        drop(elsewhere);
        drop(self.service.timewait);
        drop(self.service.quic);
        drop(self.service.shaping);
        drop(self.frame);
        if let Some(End::Detach(client, answer)) = self.service.end {
            client.answer(&answer);
        }
        Ok(Totals { listeners, quic })
    }
}

/// A guard that is on.
pub struct GuardService<B> {
    /// What guards.
    pub session: Session<B>,
    residences: Residences,
    filters: FilterWatch,
    /// What it looks at.
    behind: Filters,
    services: ServiceWatch,
    sysctls: SysctlWatch,
    watch: LinkWatch,
    qdiscs: LinkWatch,
    relook: Relook,
    /// As in [`Process::command`].
    command: &'static str,
    /// The config file of `weir run`; `None`: `weir protect`.
    file: Option<PathBuf>,
    namespace: u64,
    refusals: Refusals,
    profiles: Profiles,
    events: Events,
    /// The session's warnings that the user has seen, each interface apart.
    told: Vec<String>,
    overload: OverloadLog,
    unjudged: Unjudged,
    follow: Option<Follow>,
    elsewhere: Elsewhere,
    timewait: TimeWaits,
    quic: QuicGuard,
    shaping: Shaping,
    control: Option<Control>,
    /// While every listener only observes (`weir observe`).
    observes: Option<Modes>,
    end: Option<End>,
}

/// Follows the sockets of servers that come (`weir protect all`).
struct Follow {
    listener: Box<dyn Fn(u16) -> Listener>,
    /// The policy of QUIC listeners beside them; `None`: UDP is left alone.
    quic: Option<QuicListener>,
    /// Sockets, by their inode numbers, that were looked at and belong to none that is to be guarded.
    not_quic: BTreeSet<u64>,
    due: Instant,
    /// Ports that were left out and are known to be.
    left_out: Vec<u16>,
}

/// Those of weir's own namespace.
fn here(listeners: &[Listener]) -> Vec<Listener> {
    let here = listeners.iter().filter(|l| l.location == Where::Here);
    here.cloned().collect()
}

/// Why the guard ends.
enum End {
    Signal,
    /// Who has asked for it, with the answer for once nothing is attached any more.
    Detach(Client, Result<Answer>),
}

impl<B: Backend> GuardService<B> {
    fn process(&self, reloads: &Reloads) -> Process {
        Process {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            command: self.command.to_owned(),
            config: self.file.as_ref().map(|file| file.display().to_string()),
            started_unix_ms: self.events.since_unix_ms(),
            namespace: self.namespace,
            log_lost: log::lost(),
            unconfirmed_s: reloads.unconfirmed_s,
            observes_s: reloads.observes_s,
        }
    }

    fn log_new_warnings(&mut self) {
        let warnings = self.session.warnings_apart();
        for warning in warnings.iter().filter(|text| !self.told.contains(text)) {
            tracing::warn!("{warning}");
        }
        self.told = warnings;
    }

    /// Puts another controller in force, or none. One whose settings stay goes on as it is.
    ///
    /// # Errors
    /// The kernel half refuses what goes with it.
    fn set_controller(&mut self, settings: Option<Settings>, now: Instant) -> Result<()> {
        if self.control.as_ref().map(Control::settings) == settings.as_ref() {
            return Ok(());
        }
        // What another one has set is nobody's now.
        self.session.control(&BTreeMap::new(), now)?;
        self.control = None;
        self.session.yield_to(settings)?;
        let events = self.events.clone();
        self.control = settings.map(|settings| Control::new(settings, events, now));
        Ok(())
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = self.session.warnings();
        warnings.extend(self.timewait.warnings().map(str::to_owned));
        warnings.extend(self.quic.warnings().map(str::to_owned));
        warnings.extend(self.residences.warnings());
        warnings.extend(self.shaping.warnings());
        warnings
    }

    /// Puts other destinations in force, or none, and the TIME-WAIT of the session's listeners.
    ///
    /// # Errors
    /// As of [`TimeWaits::set`].
    fn set_timewait(&mut self, destinations: Vec<Destination>) -> Result<()> {
        let mut listeners: Vec<Listener> = self.session.asked().cloned().collect();
        if let Some(modes) = &self.observes {
            modes.give_back(&mut listeners);
        }
        self.timewait
            .set(destinations, listeners, &links::list()?)?;
        for warning in self.timewait.warnings() {
            tracing::warn!("{warning}");
        }
        Ok(())
    }

    /// Has listeners that have come negotiate too.
    fn renew_timewait(&mut self) {
        let destinations = self.timewait.list().to_vec();
        if let Err(failure) = self.set_timewait(destinations) {
            tracing::error!("TIME-WAIT of listeners that have come is left alone: {failure}");
        }
    }

    /// Every listener now, with the TIME-WAIT of its connections and the requests of its server.
    ///
    /// # Errors
    /// The kernel half cannot be read.
    pub fn listeners(&self) -> Result<Vec<weir_api::Listener>> {
        let mut listeners = self.session.listeners()?;
        for (listener, asked) in listeners.iter_mut().zip(self.session.asked()) {
            self.timewait.add_to(listener)?;
            self.add_to(listener);
            self.residences.add_to(listener, asked);
        }
        for asked in self.elsewhere.asked() {
            let own = listeners.iter().position(|one| one.name == asked.name);
            let own = own.map(|at| listeners.remove(at));
            listeners.push(self.elsewhere_report(asked, own)?);
        }
        Ok(listeners)
    }

    /// Adds what is known beside the session: what enforcement would have done, and the target in force.
    fn add_to(&self, listener: &mut weir_api::Listener) {
        let would = self.overload.would(&listener.name);
        (listener.offered, listener.would_refuse) =
            would.map(|would| (would.offered, would.refused)).unzip();
        let controlled = self.control.as_ref().and_then(|c| c.target(&listener.name));
        if controlled.is_some() {
            // What the listener would keep by itself is not in force: the controller says what it keeps.
            (listener.kept_queue_length, listener.kept_wait_us) = (None, None);
        }
        let target = controlled.or_else(|| weir_api::metrics::target_wait(listener));
        listener.target_in_force_us = target.map(|target| target.as_micros() as u64);
    }

    /// Looks, if it is time, which programs see packets before weir.
    fn look_before(&mut self, now: Instant) {
        if self.session.look_before(now) {
            self.log_new_warnings();
        }
    }

    fn follow_sight(&mut self, glances: &[Glance], now: Instant) {
        for change in self.session.follow_sight(glances, now) {
            match change.in_force {
                true => tracing::info!("{}", change.text),
                false => tracing::error!("{}", change.text),
            }
            self.events.note(sight(&change));
            self.told = self.session.warnings_apart();
        }
    }

    /// Looks at once.
    fn look_now(&mut self, now: Instant) {
        self.overload.hurry();
        self.look(now);
    }

    /// Looks, if it is time, whether some listener is overloaded and who was refused.
    fn look(&mut self, now: Instant) {
        self.look_before(now);
        let held = match &self.control {
            Some(control) => control.held(),
            None => Vec::new(),
        };
        // The counters first: `Share::take` says why.
        let Some(glances) = self.glances(now) else {
            return;
        };
        let refusals = self.sampled();
        let samples = refusals.as_deref().unwrap_or_default();
        let (all, own) = (glances.all(), glances.own());
        for warning in self.unjudged.take(all, now) {
            tracing::warn!("{warning}");
        }
        self.overload
            .tell(all, &glances.quic, samples, &held, &self.events);
        match &refusals {
            Ok(refusals) => self
                .refusals
                .take(&glances.counted(), refusals, &self.events),
            Err(failure) => tracing::debug!("refusals cannot be read: {failure}"),
        }
        // They are of the settings of the file.
        if self.observes.is_none() {
            self.profiles
                .take(self.session.asked(), own, &self.refusals);
            self.profiles.take_quic(&glances.quic);
        }
        self.follow_sight(own, now);
    }

    /// The refusals that were sampled since the last call, of all listeners.
    fn sampled(&mut self) -> Result<Vec<Refusal>> {
        let refusals = self.session.refusals()?;
        let named = |(at, refusal)| self.elsewhere.named(at, refusal);
        let mut all: Vec<Refusal> = refusals.into_iter().map(named).collect();
        let classes = || self.session.class_names();
        all.extend(self.quic.refusals(classes)?);
        Ok(all)
    }

    fn control(&mut self, now: Instant) {
        if let Some(control) = &mut self.control {
            control.run(&mut self.session, &|| self.quic.load(), now);
        }
    }

    /// What this namespace allows now. A firewall that is being reloaded may have no rule at this moment: the watch
    /// knows.
    fn environment(&self) -> Environment {
        environment::read(self.filters.found().cloned())
    }

    /// The report of `weir status`.
    fn report(&self, reloads: &Reloads) -> Result<Status> {
        let (classes, classes_left_out) = self.session.classes_of_all()?;
        let listeners = self.listeners()?;
        let controller = self.control.as_ref();
        Ok(Status {
            running: true,
            process: Some(self.process(reloads)),
            last_reload: reloads.last.clone(),
            interfaces: self.session.interfaces(),
            warnings: self.warnings(),
            controller: controller.map(|control| control.report(&listeners)),
            listeners,
            quic: self.quic_listeners()?,
            classes,
            classes_left_out,
            destinations: self.timewait.report()?,
            timewait_asked: self.timewait.asked()?,
            shapes: self.shaping.report()?,
            proxies: Vec::new(),
        })
    }

    fn quic_listeners(&self) -> Result<Vec<weir_api::Quic>> {
        let mut all = self.quic.report()?;
        for one in &mut all {
            (one.classes, one.classes_left_out) = self.session.classes_that_name(&one.name)?;
            self.overload.add_to_quic(one);
        }
        Ok(all)
    }

    /// All figures as OpenMetrics text.
    fn metrics(&self, reloads: &Reloads) -> Result<String> {
        let figures = Figures {
            listeners: self.listeners()?,
            quic: self.quic_listeners()?,
            classes: self.session.class_reports()?,
            destinations: self.timewait.report()?,
            timewait_asked: self.timewait.asked()?,
            shapes: self.shaping.report()?,
            process: self.process(reloads),
            last_reload: reloads.last.clone(),
            ..Figures::default()
        };
        Ok(metrics::text(metrics::guard(), &figures))
    }

    /// Settings that fit what the listeners have gone through, in so many seconds at least.
    fn suggestions(&mut self, least_s: Option<u64>, now: Instant) -> Result<Suggestions> {
        self.look_now(now);
        let least = profiles::least(least_s);
        let servers = match self.profiles.has_quic() {
            // They are named where they are known.
            true => udp::servers(udp::sockets().unwrap_or_default()).0,
            false => Vec::new(),
        };
        let beside = Beside {
            listeners: self.session.asked().collect(),
            rmem_max: environment::sysctl("net/core/rmem_max"),
            servers,
        };
        let mut suggestions = self.profiles.suggestions(least, &self.refusals, &beside);
        for listener in self.listeners()? {
            let mut all = suggestions.listeners.iter_mut();
            let its = all.find(|one| one.listener == listener.name);
            if let (Some(its), Some(note)) = (its, inside(&listener)) {
                if its.missing.is_none() {
                    its.toml += &format!("\n{}", comment(&note));
                }
                its.notes.push(note);
            }
        }
        Ok(suggestions)
    }

    /// Changes a class. The log and the events say who has, or what was refused to whom.
    fn change_class(&mut self, change: &ClassChange, asker: Asker) -> Result<Changed> {
        let done = classes::change(&mut self.session, change, asker).inspect_err(|failure| {
            tracing::warn!("{change}: refused to {asker}: {failure}");
        })?;
        let text = format!("{change}: done by {asker}");
        tracing::info!("{text}");
        self.events.note(class_changed(change.class(), text));
        let mut reports = self.session.class_reports()?.into_iter();
        Ok(Changed {
            done,
            class: reports.find(|class| class.name == change.class()),
            config: self.file.as_ref().map(|file| file.display().to_string()),
        })
    }
}

impl<B: Backend> Service for GuardService<B> {
    fn sources(&self) -> Vec<BorrowedFd<'_>> {
        let elsewhere = self.elsewhere.fd();
        let attached = self.session.spaces().attached_fd();
        let own = [self.watch.as_fd(), self.qdiscs.as_fd()];
        own.into_iter().chain(elsewhere).chain(attached).collect()
    }

    fn due_at(&self) -> Option<Instant> {
        self.next_due()
    }

    fn work(&mut self, now: Instant, ready: &[bool], _endpoints: &mut Endpoints) -> Result<()> {
        // Who has begun to listen elsewhere is a part's work.
        let is_ready = |source: usize| ready.get(source) == Some(&true);
        if is_ready(0) {
            self.follow_links(now);
        }
        if is_ready(1) {
            self.qdiscs.clear();
            self.filters.hurry();
        }
        self.work_all(now);
        Ok(())
    }

    fn answer(
        &mut self,
        question: &Question,
        asker: Asker,
        now: Instant,
        reloads: &Reloads,
    ) -> Result<Answer> {
        Ok(match question {
            Question::Status => Answer::Status(Box::new(self.report(reloads)?)),
            Question::Metrics => Answer::Metrics(self.metrics(reloads)?.into()),
            Question::Classes => Answer::Classes(self.session.class_reports()?),
            Question::Sources => Answer::Sources(self.refusals.top()),
            Question::Why { address } => {
                // What was refused since the last look is still in the kernel.
                self.look_now(now);
                Answer::Why(Box::new(self.refusals.why(*address)))
            }
            Question::Suggest { least_s } => Answer::Suggestions(self.suggestions(*least_s, now)?),
            Question::Class(change) => Answer::Changed(self.change_class(change, asker)?),
            Question::Exec(report) => {
                let classes = self.class_settings().unwrap_or_default();
                self.session.exec_told(report.clone(), now)?;
                Answer::Exec { classes }
            }
            Question::Detach => {
                tracing::info!("detach asked for by {asker}");
                let pid = std::process::id();
                Answer::Detached { pid }
            }
            _ => {
                let message = "this process guards listeners and has no proxy";
                return Err(Failure::unknown(message, ""));
            }
        })
    }

    fn deliver(&mut self, question: &Question, answer: Result<Answer>, client: Client) {
        match (question, &answer) {
            (Question::Detach, Ok(_)) => self.end = Some(End::Detach(client, answer)),
            _ => client.answer(&answer),
        }
    }

    fn class_settings(&self) -> Option<Vec<Map<String, Value>>> {
        Some(self.session.classes().iter().map(settings).collect())
    }

    fn reload(&mut self, config: Config, _file: &Path, now: Instant, put: Put) -> Result<Reloaded> {
        let (listeners, destinations) = (config.listeners.len(), config.destinations.len());
        let undone = self.put_as(config, now, put)?;
        self.session.go_first(now);
        self.elsewhere.go_first(self.session.spaces_mut());
        self.told = self.session.warnings_apart();
        self.settle_elsewhere();
        // What is in force stays so, even if it cannot be read.
        let notices = self.session.notices_apart();
        let (mut not_in_force, mut warnings) =
            notices.unwrap_or_else(|failure| (Vec::new(), vec![failure.to_string()]));
        not_in_force.extend(self.elsewhere_not_in_force());
        warnings.extend(self.elsewhere_waits());
        warnings.extend(undone);
        let in_force = listeners - not_in_force.len();
        tracing::info!("{} in force", part(in_force, listeners, "listener"));
        let quic_off = self.quic.not_in_force();
        let quic_not_in_force = quic_off.len();
        not_in_force.extend(quic_off);
        if destinations > 0 {
            tracing::info!("{} in force", count(destinations, "destination"));
        }
        Ok(Reloaded {
            listeners,
            quic: self.quic.list().len(),
            quic_not_in_force,
            destinations,
            not_in_force,
            warnings,
            ..Reloaded::default()
        })
    }

    fn no_file(&self) -> Failure {
        let message = format!(
            "process {} is `weir protect`, which has no config file",
            std::process::id()
        );
        let hint = "`weir detach`, then `weir protect` with other flags; \
                    or `weir run --config FILE`, which can reload";
        Failure::failed(message, hint)
    }

    fn stays(&self) -> &'static str {
        "policy stays"
    }

    fn stop(&mut self) {
        self.end = Some(End::Signal);
    }

    fn is_stopping(&self) -> bool {
        self.end.is_some()
    }

    fn has_ended(&self) -> bool {
        self.end.is_some()
    }
}
