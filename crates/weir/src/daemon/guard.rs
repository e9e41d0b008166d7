//! The guard as a service: `weir protect` and `weir run`.

mod classes;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use weir_api::metrics::{self, Figures};
use weir_api::{Process, Status, Suggestions, TopSources, Why};
use weir_config::{ApiSettings, Config, Environment, EventsSettings};
use weir_core::class::Class;
use weir_core::controller::Settings;
use weir_core::listener::{Listener, MAX_LISTENERS};
use weir_core::shape::Shape;
use weir_core::timewait::Destination;
use weir_kernel::{Guard, cgroup_root, random};

use crate::daemon::backend::Backend;
use crate::daemon::config_file::Reloads;
use crate::daemon::conntrack::ConntrackWatch;
use crate::daemon::controller::Control;
use crate::daemon::events::{Events, class_changed};
use crate::daemon::frame::{Frame, refuse};
use crate::daemon::overload::{OverloadLog, Total};
use crate::daemon::profiles::Profiles;
use crate::daemon::proxies;
use crate::daemon::refusals::Refusals;
use crate::daemon::service::{Changed, Refusal, Reloaded, Service};
use crate::daemon::session::Session;
use crate::daemon::shaping::Shaping;
use crate::daemon::signals::Signals;
use crate::daemon::timewait::TimeWaits;
use crate::failure::{Failure, Result};
use crate::host::config::Source;
use crate::host::environment;
use crate::host::links::{self, Link, LinkWatch};
use crate::host::privileges::{self, Beside};
use crate::ipc::call::Change;
use crate::ipc::control::{self, Answer, Claim, Client, ControlSocket, Request, namespace};
use crate::ipc::dashboard::{Others, Token};
use crate::ipc::endpoints::Endpoints;
use crate::ipc::peer::Peer;
use crate::show::describe::{count, part};
use crate::show::log;
use crate::show::settings::settings;

/// How long cookies that are out stay valid before the guard goes: more than the round trips of
/// most clients, less than a user's patience with Ctrl-C.
const DRAIN: Duration = Duration::from_millis(300);
/// How often new servers are looked for (`weir protect all`).
const FOLLOW_EVERY: Duration = Duration::from_secs(1);

/// All that a guard needs before its policy is put in force. Nothing is attached yet.
pub struct Start {
    /// The loaded guard.
    pub guard: Guard,
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
        let environment = environment::read();
        // Refused before anything is loaded: it needs no root to be told.
        environment::check_fit(environment, listeners)?;
        let signals = Signals::take()?;
        let watch = LinkWatch::new()?;
        let links = links::list()?;
        let namespace = namespace()?;
        let claim = Claim::take(runtime_dir, namespace)?;
        weir_kernel::queue::note_left();
        Ok(Start {
            guard: Guard::load()?,
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

    /// Puts the listeners under guard. `file` is the config file of `weir run`, with an absolute path; without one
    /// SIGHUP ends the guard (the terminal is gone), unless under `nohup`.
    ///
    /// # Errors
    /// As [`Session::start`].
    pub fn daemon(
        self,
        listeners: Vec<Listener>,
        classes: Vec<Class>,
        file: Option<Source>,
        verbose: bool,
    ) -> Result<Daemon> {
        let session = Session::start(self.guard, self.environment, listeners, classes, self.links)?;
        let told = session.warnings_apart();
        // Whatever is refused from now on is seen as new.
        let mut overload = OverloadLog::new();
        let events = Events::new();
        let command = match file {
            None => "protect",
            Some(_) => "run",
        };
        if let Some(glances) = overload.look(&session) {
            overload.tell(&glances, &[], &[], &events);
        }
        let service = GuardService {
            session,
            conntrack: ConntrackWatch::new(self.environment.conntrack, Instant::now()),
            watch: self.watch,
            command,
            file: file.as_ref().map(|source| source.file.clone()),
            namespace: self.namespace,
            refusals: Refusals::new(random()?, verbose),
            profiles: Profiles::default(),
            events: events.clone(),
            overload,
            follow: None,
            told,
            timewait: TimeWaits::none(self.cgroups),
            shaping: Shaping::new(&self.runtime_dir)?,
            control: None,
            end: None,
        };
        let control = Some(Box::new(self.claim) as Box<dyn ControlSocket>);
        Ok(Daemon {
            service,
            frame: Frame::new(self.signals, control, file, command, events)?,
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
}

/// What was done until the end, of each listener.
pub type Totals = Vec<Total>;

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
        privileges::refuse_calls(Beside::Bpf);
        self.frame.run(&mut self.service)?;
        self.service.overload.hurry();
        self.service.look();
        self.frame.note_stop();
        let (mut session, overload) = (self.service.session, self.service.overload);
        if session.cookies_may_be_out() {
            session.drain();
            // Until clients that hold a cookie have come back, or a second signal.
            self.frame.wait_for_signal(DRAIN);
        }
        let totals = session.totals().unwrap_or_else(|failure| {
            tracing::warn!("counters cannot be read: {failure}");
            Vec::new()
        });
        let totals = totals
            .into_iter()
            .map(|(listener, counters)| Total {
                listener: listener.clone(),
                counters,
                waits: overload.waits(&listener.name),
            })
            .collect();
        drop(session);
        drop(self.service.timewait);
        drop(self.service.shaping);
        drop(self.frame);
        if let Some(End::Detach(client)) = self.service.end {
            client.answer(&Answer::Detached {
                pid: std::process::id(),
            });
        }
        Ok(totals)
    }
}

/// What this namespace allows now.
fn environment(conntrack: &ConntrackWatch) -> Environment {
    let mut environment = environment::read();
    // A firewall that is being reloaded may have no rule at this moment.
    environment.conntrack |= conntrack.follows();
    environment
}

/// A guard that is on.
pub struct GuardService<B> {
    /// What guards.
    pub session: Session<B>,
    conntrack: ConntrackWatch,
    watch: LinkWatch,
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
    follow: Option<Follow>,
    timewait: TimeWaits,
    shaping: Shaping,
    control: Option<Control>,
    end: Option<End>,
}

/// Puts a part back that another one had taken the place of.
type Undo<B> = Box<dyn FnOnce(&mut GuardService<B>) -> Result<()>>;

/// Follows the sockets of servers that come (`weir protect all`).
struct Follow {
    listener: Box<dyn Fn(u16) -> Listener>,
    due: Instant,
    /// Ports that were left out and are known to be.
    left_out: Vec<u16>,
}

/// Why the guard ends.
enum End {
    Signal,
    Detach(Client),
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
        }
    }

    fn log_new_warnings(&mut self) {
        let warnings = self.session.warnings_apart();
        for warning in warnings.iter().filter(|text| !self.told.contains(text)) {
            tracing::warn!("{warning}");
        }
        self.told = warnings;
    }

    /// Has events become what these settings say. A file that cannot be written does not keep the guard from its work.
    pub fn set_events(&mut self, settings: Option<&EventsSettings>) {
        self.refusals.set(settings);
        if let Err(failure) = self.events.set_file(settings) {
            tracing::error!("{failure}");
        }
    }

    /// Puts another controller in force, or none. One whose settings stay goes on as it is.
    ///
    /// # Errors
    /// The kernel half refuses what goes with it.
    pub fn set_controller(&mut self, settings: Option<Settings>) -> Result<()> {
        if self.control.as_ref().map(Control::settings) == settings.as_ref() {
            return Ok(());
        }
        // What another one has set is nobody's now.
        self.session.control(&BTreeMap::new())?;
        self.control = None;
        self.session.yield_to(settings)?;
        let events = self.events.clone();
        self.control = settings.map(|settings| Control::new(settings, events));
        Ok(())
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = self.session.warnings();
        warnings.extend(self.timewait.warnings().map(str::to_owned));
        warnings.extend(self.shaping.warnings());
        warnings
    }

    /// Puts other destinations in force, or none, and the TIME-WAIT of the session's listeners.
    ///
    /// # Errors
    /// As of [`TimeWaits::set`].
    pub fn set_timewait(&mut self, destinations: Vec<Destination>) -> Result<()> {
        let listeners = self.session.asked().cloned().collect();
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

    /// Every listener now, with the TIME-WAIT of its connections.
    fn listeners(&self) -> Result<Vec<weir_api::Listener>> {
        let mut listeners = self.session.listeners()?;
        for listener in &mut listeners {
            self.timewait.add_to(listener)?;
        }
        Ok(listeners)
    }

    /// Shapes these interfaces, and no others.
    ///
    /// # Errors
    /// As of [`Shaping::set`].
    pub fn set_shapes(&mut self, shapes: Vec<Shape>) -> Result<()> {
        self.shaping.set(shapes, &links::list()?)?;
        for warning in self.shaping.warnings() {
            tracing::warn!("{warning}");
        }
        let (in_force, all) = self.shaping.count();
        if all > 0 {
            tracing::info!("{} in force", part(in_force, all, "shape"));
        }
        Ok(())
    }

    /// Puts the policy of a file in force.
    ///
    /// # Errors
    /// A part of it cannot be: then what was in force is, as a whole.
    fn put_in_force(&mut self, config: Config) -> Result<()> {
        let mut undo = Vec::new();
        let done = self.put_parts_in_force(config, &mut undo);
        if done.is_err() {
            for step in undo.into_iter().rev() {
                if let Err(failure) = step(self) {
                    tracing::error!("what was in force is not put back whole: {failure}");
                }
            }
        }
        done
    }

    /// One part after the other. On an error the steps in `undo`, the last one first, put the others back.
    fn put_parts_in_force(&mut self, config: Config, undo: &mut Vec<Undo<B>>) -> Result<()> {
        let environment = environment(&self.conntrack);
        // What can be told beforehand is.
        environment::check_fit(environment, &config.listeners)?;
        // What fails most often goes first: then nothing else has changed. Each `set` leaves its part as it was.
        let shapes = self.shaping.list().to_vec();
        self.set_shapes(config.shapes)?;
        undo.push(Box::new(|me| me.shaping.set(shapes, &links::list()?)));
        let before = self.session.in_force();
        self.session
            .swap(environment, config.listeners, config.classes)?;
        undo.push(Box::new(|me| me.session.put_back(before)));
        let controller = self.control.as_ref().map(Control::settings).copied();
        undo.push(Box::new(move |me| me.set_controller(controller)));
        self.set_controller(config.controller)?;
        self.set_timewait(config.destinations)
    }

    fn follow_links(&mut self) {
        self.watch.clear();
        match links::list() {
            Ok(links) => {
                self.timewait.follow_links(&links);
                self.shaping.follow_links(&links);
                self.session.links_changed(links);
                self.log_new_warnings();
            }
            Err(failure) => tracing::warn!("{failure}"),
        }
    }

    /// Guards servers that come later too, each with the listener that is made for its port.
    pub fn follow_sockets(&mut self, listener: impl Fn(u16) -> Listener + 'static) {
        self.follow = Some(Follow {
            listener: Box::new(listener),
            due: Instant::now(),
            left_out: Vec::new(),
        });
    }

    fn look_for_servers(&mut self) {
        let now = Instant::now();
        let Some(follow) = self.follow.as_mut().filter(|follow| follow.due <= now) else {
            return;
        };
        follow.due = now + FOLLOW_EVERY;
        match self
            .session
            .follow_sockets(environment(&self.conntrack), &follow.listener)
        {
            Ok(followed) => {
                for listener in &followed.new {
                    let Listener { name, address, .. } = listener;
                    tracing::info!(
                        "{name}: a server listens on {address} now, which weir guards too"
                    );
                }
                if followed.left_out.len() > follow.left_out.len() {
                    tracing::warn!(
                        "no more than {MAX_LISTENERS} listeners can be guarded: not port {:?}",
                        followed.left_out
                    );
                }
                follow.left_out = followed.left_out;
                if !followed.new.is_empty() {
                    self.renew_timewait();
                }
            }
            Err(failure) => tracing::error!("servers that have come are not guarded: {failure}"),
        }
    }

    /// Looks, if it is time, whether some listener is overloaded and who was refused.
    fn look(&mut self) {
        let held = match &self.control {
            Some(control) => control.held(),
            None => Vec::new(),
        };
        // The counters first: `Share::take` says why.
        let Some(glances) = self.overload.look(&self.session) else {
            return;
        };
        let refusals = self.session.refusals();
        let samples = refusals.as_deref().unwrap_or_default();
        self.overload.tell(&glances, samples, &held, &self.events);
        match &refusals {
            Ok(refusals) => self.refusals.take(&glances, refusals, &self.events),
            Err(failure) => tracing::debug!("refusals cannot be read: {failure}"),
        }
        self.profiles
            .take(self.session.asked(), &glances, &self.refusals);
    }

    fn follow_conntrack(&mut self) {
        let look = weir_kernel::conntrack_follows;
        let Some(follows) = self.conntrack.look(Instant::now(), look) else {
            return;
        };
        match self.session.set_conntrack(follows) {
            Ok(()) if follows => tracing::info!(
                "rules follow connections here now (conntrack): weir sends no SYN cookies of its own"
            ),
            Ok(()) => tracing::info!(
                "no rules follow connections here any more (conntrack): weir sends SYN cookies of its own again"
            ),
            Err(failure) => tracing::error!("conntrack has come or gone, but {failure}"),
        }
    }
}

impl<B: Backend> Service for GuardService<B> {
    fn sources(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.watch.as_fd()]
    }

    fn due_in(&self) -> Option<Duration> {
        let looks = self.control.as_ref().map(Control::due_in);
        let follow = self.follow.as_ref().map(|_| FOLLOW_EVERY);
        let conntrack = Some(self.conntrack.due_in(Instant::now()));
        let sweep = self.timewait.due_in();
        let due = [looks, follow, conntrack, sweep, self.shaping.due_in()];
        let due = due.into_iter().flatten();
        Some(due.fold(self.overload.due_in(), |least, due| least.min(due)))
    }

    fn work(&mut self, ready: &[bool], _endpoints: &mut Endpoints) -> Result<()> {
        if ready == [true] {
            self.follow_links();
        }
        self.timewait.work();
        self.shaping.work();
        self.follow_conntrack();
        self.look_for_servers();
        self.look();
        if let Some(control) = &mut self.control {
            control.run(&mut self.session);
        }
        Ok(())
    }

    fn report(&self, reloads: &Reloads) -> Result<Status> {
        let (classes, classes_left_out) = self.session.classes_of_all()?;
        Ok(Status {
            running: true,
            process: Some(self.process(reloads)),
            last_reload: reloads.last.clone(),
            interfaces: self.session.interfaces(),
            warnings: self.warnings(),
            listeners: self.listeners()?,
            classes,
            classes_left_out,
            controller: self.control.as_ref().map(Control::report),
            destinations: self.timewait.report()?,
            timewait_asked: self.timewait.asked()?,
            shapes: self.shaping.report()?,
            proxies: Vec::new(),
        })
    }

    fn metrics(&self, reloads: &Reloads) -> Result<String> {
        let figures = Figures {
            listeners: self.listeners()?,
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

    fn class_settings(&self) -> Option<Vec<Map<String, Value>>> {
        Some(self.session.classes().iter().map(settings).collect())
    }

    fn classes(&self) -> Result<Vec<weir_api::Class>> {
        self.session.class_reports()
    }

    fn top_sources(&self) -> Result<TopSources> {
        Ok(self.refusals.top())
    }

    fn why(&mut self, address: IpAddr) -> Result<Why> {
        // What was refused since the last look is still in the kernel.
        self.overload.hurry();
        self.look();
        Ok(self.refusals.why(address))
    }

    fn suggestions(&mut self, least: Duration) -> Result<Suggestions> {
        self.overload.hurry();
        self.look();
        Ok(self.profiles.suggestions(least, &self.refusals))
    }

    fn change_class(
        &mut self,
        change: &Change,
        peer: Peer,
    ) -> std::result::Result<Changed, Refusal> {
        let changed = classes::change(&mut self.session, change, peer)?;
        let (class, done) = match &changed {
            Changed::Added(class) => (class, "added"),
            Changed::Modified(class) => (class, "changed"),
            Changed::Removed(class) => (class, "removed"),
        };
        let text = format!("class {class} {done} over the API by {peer}");
        self.events.note(class_changed(class, text));
        Ok(changed)
    }

    fn request(&mut self, request: Request, client: Client) {
        match request {
            Request::Class(change) => {
                let file = self.file.as_ref().map(|file| file.display().to_string());
                let peer = client.peer();
                let answer = classes::command(&mut self.session, &change, file, peer);
                if let (Some(class), Answer::Classes { .. }) = (change.class(), &answer) {
                    let text = format!("{change}: done by {peer}");
                    self.events.note(class_changed(class, text));
                }
                client.answer(&answer);
            }
            Request::Exec(report) => client.answer(&classes::exec(&mut self.session, report)),
            Request::Detach => {
                tracing::info!("detach asked for by {}", client.peer());
                self.end = Some(End::Detach(client));
            }
            _ => refuse(&client, "this process guards listeners and has no proxy"),
        }
    }

    fn reload(&mut self, mut config: Config, _file: &Path) -> Result<Reloaded> {
        let (listeners, destinations) = (config.listeners.len(), config.destinations.len());
        let undone = self.session.undone_by(&config.classes);
        let events = config.events.take();
        self.put_in_force(config)?;
        self.refusals.set(events.as_ref());
        self.told = self.session.warnings_apart();
        let (not_in_force, mut warnings) = self.session.notices_apart()?;
        warnings.extend(undone);
        let in_force = listeners - not_in_force.len();
        tracing::info!("{} in force", part(in_force, listeners, "listener"));
        if destinations > 0 {
            tracing::info!("{} in force", count(destinations, "destination"));
        }
        Ok(Reloaded {
            listeners,
            destinations,
            proxies: 0,
            not_in_force,
            warnings,
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
