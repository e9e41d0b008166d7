//! The loop of `weir protect` and `weir run`: signals, requests and changes of the interfaces, one
//! after the other, in one thread.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use sd_notify::NotifyState;
use weir_api::{Process, Status};
use weir_config::{ApiSettings, Environment};
use weir_core::class::Class;
use weir_core::controller::Settings;
use weir_core::listener::{Listener, Mode};
use weir_core::verdict::Counters;
use weir_kernel::Guard;

use crate::commands::check;
use crate::daemon::backend::Backend;
use crate::daemon::controller::Control;
use crate::daemon::session::Session;
use crate::failure::{Failure, Result};
use crate::host::environment;
use crate::host::links::{self, Link, LinkWatch};
use crate::ipc::api::{self, Api, Job, Peer};
use crate::ipc::control::{Answer, Claim, ClassChange, Client, ExecReport, Request, namespace};
use crate::show::log;

/// How long cookies that are out stay valid before the guard goes: more than the round trips of
/// most clients, less than a user's patience with Ctrl-C.
const DRAIN: Duration = Duration::from_millis(300);
/// How often sampled refusals are fetched for `--verbose`.
const REFUSALS_EVERY: Duration = Duration::from_millis(200);

/// Times the controller's target below which no listener refuses by itself: `admit = wait` is the bound
/// behind the controller, and does not know classes.
const BACKSTOP: u32 = 2;

/// Signals that end the process or make it reload, as a descriptor. They have to be blocked before
/// anything is attached, so that Ctrl-C never leaves by the default action.
pub struct Signals {
    descriptor: SignalFd,
}

impl Signals {
    /// Takes SIGINT, SIGTERM and SIGHUP over.
    ///
    /// # Errors
    /// No signalfd.
    pub fn take() -> Result<Signals> {
        let take = || -> nix::Result<SignalFd> {
            let mut set = SigSet::empty();
            for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
                set.add(signal);
            }
            set.thread_block()?;
            SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
        };
        let descriptor = take().map_err(|errno| Failure::io("take signals over", errno.into()))?;
        Ok(Signals { descriptor })
    }

    /// The next signal that has come.
    pub fn next(&self) -> Option<Signal> {
        let info = self.descriptor.read_signal().ok().flatten()?;
        Signal::try_from(info.ssi_signo as i32).ok()
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Whether a command that has nothing to reload ends on this signal.
pub fn ends(signal: Signal) -> bool {
    signal != Signal::SIGHUP || !hangup_is_ignored()
}

/// Whether the command was started so that the end of its terminal does not end it (`nohup`). The
/// kernel hands an ignored signal to a signalfd all the same.
fn hangup_is_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // Bit 0 is signal 1, SIGHUP (proc_pid_status(5)).
    ignored.is_some_and(|mask| u64::from_str_radix(mask.trim(), 16).is_ok_and(|mask| mask & 1 != 0))
}

/// What `weir protect` and `weir run` do differently.
pub enum Role {
    /// `weir protect`: SIGHUP (the terminal is gone) ends it, unless under `nohup`; there is no config
    /// to reload.
    Protect,
    /// `weir run` with its config file, as an absolute path.
    Run(PathBuf),
}

/// All that a daemon needs before its policy is put in force. Nothing is attached yet.
pub struct Start {
    /// The loaded guard.
    pub guard: Guard,
    /// The interfaces of the namespace.
    pub links: Vec<Link>,
    environment: Environment,
    signals: Signals,
    watch: LinkWatch,
    claim: Claim,
    /// Inode number of the namespace.
    namespace: u64,
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
        Ok(Start {
            guard: Guard::load()?,
            links,
            environment,
            signals,
            watch,
            claim,
            namespace,
        })
    }

    /// Puts the listeners under guard.
    ///
    /// # Errors
    /// As [`Session::start`].
    pub fn daemon(
        self,
        listeners: Vec<Listener>,
        classes: Vec<Class>,
        role: Role,
        verbose: bool,
    ) -> Result<Daemon<Guard>> {
        let session = Session::start(self.guard, self.environment, listeners, classes, self.links)?;
        let told = session.warnings_apart();
        Ok(Daemon {
            session,
            claim: self.claim,
            signals: self.signals,
            watch: self.watch,
            role,
            namespace: self.namespace,
            verbose,
            told,
            control: None,
            api: None,
        })
    }
}

/// A guard that is on, and all that the loop listens to.
pub struct Daemon<B> {
    /// What guards.
    pub session: Session<B>,
    claim: Claim,
    signals: Signals,
    watch: LinkWatch,
    role: Role,
    namespace: u64,
    /// Print sampled refusals to stderr.
    verbose: bool,
    /// The session's warnings that the user has seen, each interface apart.
    told: Vec<String>,
    control: Option<Control>,
    api: Option<Api>,
}

/// What the loop has been woken for.
struct Woken {
    signalled: bool,
    linked: bool,
    asked: bool,
    called: bool,
}

/// Why the loop ended.
enum End {
    Signal(Signal),
    Detach(Client),
}

/// What was done until the end: each listener with its counters.
pub type Totals = Vec<(Listener, Counters)>;

impl<B: Backend> Daemon<B> {
    /// Guards until a signal or `weir detach` ends it; then nothing is attached any more.
    ///
    /// # Errors
    /// The loop cannot wait (the guard is off then too).
    pub fn guard(mut self) -> Result<Totals> {
        notify(&[NotifyState::Ready]);
        let end = self.run()?;
        notify(&[NotifyState::Stopping]);
        if let End::Signal(signal) = &end {
            tracing::debug!("ended by {signal}");
        }
        if self.session.cookies_may_be_out() {
            self.session.drain();
            self.wait_for_cookies();
        }
        let totals = self.session.totals().unwrap_or_else(|failure| {
            tracing::warn!("counters cannot be read: {failure}");
            Vec::new()
        });
        let totals = totals
            .into_iter()
            .map(|(l, counters)| (l.clone(), counters))
            .collect();
        let Daemon { session, claim, .. } = self;
        drop(session);
        drop(claim);
        if let End::Detach(client) = end {
            client.answer(&Answer::Detached {
                pid: std::process::id(),
            });
        }
        Ok(totals)
    }

    fn run(&mut self) -> Result<End> {
        let mut refusals_due = Instant::now();
        loop {
            if self.verbose && Instant::now() >= refusals_due {
                self.print_refusals();
                refusals_due = Instant::now() + REFUSALS_EVERY;
            }
            if let Some(control) = &mut self.control {
                control.run(&mut self.session);
            }
            let Woken {
                signalled,
                linked,
                asked,
                called,
            } = self.wait()?;
            if signalled && let Some(end) = self.on_signal() {
                return Ok(end);
            }
            if linked {
                self.watch.clear();
                match links::list() {
                    Ok(links) => {
                        self.session.links_changed(links);
                        self.log_new_warnings();
                    }
                    Err(failure) => tracing::warn!("{failure}"),
                }
            }
            if asked && let Some(end) = self.on_request() {
                return Ok(end);
            }
            if called {
                self.answer_api();
            }
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
    pub fn set_controller(&mut self, settings: Option<Settings>) -> Result<()> {
        if self.control.as_ref().map(Control::settings) == settings.as_ref() {
            return Ok(());
        }
        // What another one has set is nobody's now.
        self.session.control(&BTreeMap::new())?;
        self.control = None;
        let enforced = settings.filter(|settings| settings.mode == Mode::Enforce);
        let target = enforced.and_then(|settings| settings.target_wait);
        self.session
            .yield_below(target.map(|target| target * BACKSTOP))?;
        self.control = settings.map(Control::new);
        Ok(())
    }

    /// Opens the API.
    ///
    /// # Errors
    /// As [`Api::start`].
    pub fn open_api(&mut self, settings: &ApiSettings) -> Result<()> {
        let name = weir_client::default_socket_name(self.namespace);
        let api = Api::start(settings, self.claim.dir().join(name))?;
        tracing::info!("API on {}", api.socket().display());
        self.api = Some(api);
        Ok(())
    }

    /// What the controller is for, sees and has done; `None`: there is none.
    pub fn controller_report(&self) -> Option<weir_api::Controller> {
        self.control.as_ref().map(Control::report)
    }

    fn answer_api(&mut self) {
        let jobs: Vec<Job> = self.api.iter().flat_map(Api::jobs).collect();
        for job in jobs {
            let reply = api::answer(self, &job.call, job.peer);
            job.reply(reply);
        }
    }

    /// Waits for signals, links, requests and the controller's time; says what there is.
    fn wait(&self) -> Result<Woken> {
        let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds = vec![
            readable(self.signals.descriptor.as_fd()),
            readable(self.watch.as_fd()),
            readable(self.claim.as_fd()),
        ];
        fds.extend(self.api.iter().map(|api| readable(api.as_fd())));
        let refusals = self.verbose.then_some(REFUSALS_EVERY);
        let looks = self.control.as_ref().map(Control::due_in);
        let timeout = refusals.into_iter().chain(looks).min();
        // Rounded up: it would come back before its time, and again.
        let timeout = timeout.map_or(PollTimeout::NONE, |timeout| {
            let ms = timeout.as_micros().div_ceil(1000);
            PollTimeout::try_from(ms).unwrap_or(PollTimeout::MAX)
        });
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => {
                return Err(Failure::io("wait for signals and requests", errno.into()));
            }
        }
        let woken = |index: usize| fds.get(index).is_some_and(|fd| fd.any().unwrap_or(false));
        Ok(Woken {
            signalled: woken(0),
            linked: woken(1),
            asked: woken(2),
            called: woken(3),
        })
    }

    fn on_signal(&mut self) -> Option<End> {
        let signal = self.signals.next()?;
        match (&self.role, signal) {
            (Role::Run(_), Signal::SIGHUP) => {
                self.reload();
                None
            }
            (_, signal) => ends(signal).then_some(End::Signal(signal)),
        }
    }

    fn on_request(&mut self) -> Option<End> {
        let (request, client) = self.claim.next()?;
        match request {
            Request::Status => {
                let answer = self
                    .report()
                    .map_or_else(Answer::Error, |report| Answer::Status(Box::new(report)));
                client.answer(&answer);
            }
            Request::Reload => {
                tracing::info!("reload asked for by {}", client.peer());
                client.answer(&self.reload());
            }
            Request::Class(change) => client.answer(&self.class(change, client.peer())),
            Request::Exec(report) => client.answer(&self.exec(report)),
            Request::HandOver | Request::Retire => {
                let message = "this process guards listeners and has no proxy";
                client.answer(&Answer::Error(Failure::usage(message, "")));
            }
            Request::Detach => {
                tracing::info!("detach asked for by {}", client.peer());
                return Some(End::Detach(client));
            }
        }
        None
    }

    fn class(&mut self, change: ClassChange, peer: Peer) -> Answer {
        let session = &mut self.session;
        let changed = match &change {
            ClassChange::List => Ok(()),
            ClassChange::Add { name, keys } => session.add_class(name, keys),
            ClassChange::Set { name, keys } => session.set_class(name, keys),
            ClassChange::Remove { name } => session.remove_class(name),
        };
        match &changed {
            _ if change == ClassChange::List => {}
            Ok(()) => tracing::info!("{change}: done by {peer}"),
            Err(failure) => tracing::warn!("{change}: refused to {peer}: {failure}"),
        }
        let config = match &self.role {
            Role::Run(file) => Some(file.display().to_string()),
            Role::Protect => None,
        };
        let classes = changed.and_then(|()| self.session.class_reports());
        classes.map_or_else(Answer::Error, |classes| Answer::Classes { config, classes })
    }

    fn exec(&mut self, report: ExecReport) -> Answer {
        let classes = self.session.classes().iter().map(check::settings).collect();
        match self.session.exec_told(report) {
            Ok(()) => Answer::Exec { classes },
            Err(failure) => Answer::Error(failure),
        }
    }

    fn reload(&mut self) -> Answer {
        let Role::Run(file) = &self.role else {
            let message = format!(
                "process {} is `weir protect`, which has no config file",
                std::process::id()
            );
            let hint = "`weir detach`, then `weir protect` with other flags; \
                        or `weir run --config FILE`, which can reload";
            return Answer::Error(Failure::failed(message, hint));
        };
        let file = file.clone();
        match NotifyState::monotonic_usec_now() {
            Ok(now) => notify(&[NotifyState::Reloading, now]),
            Err(error) => tracing::debug!("no monotonic clock for the service manager: {error}"),
        }
        let answer = self.swap(&file).unwrap_or_else(|failure| {
            tracing::error!("reload failed, the running policy stays in force\nerror: {failure}");
            Answer::Error(failure)
        });
        notify(&[NotifyState::Ready]);
        answer
    }

    fn swap(&mut self, file: &Path) -> Result<Answer> {
        let config = check::read(file)?;
        let listeners = config.listeners.len();
        self.session
            .swap(environment::read(), config.listeners, config.classes)?;
        self.set_controller(config.controller)?;
        let mut warnings: Vec<String> = config
            .warnings
            .iter()
            .map(|warning| warning.to_string())
            .collect();
        self.told = self.session.warnings_apart();
        warnings.extend(self.session.notices()?);
        for warning in &warnings {
            tracing::warn!("{warning}");
        }
        tracing::info!(
            "{} in force",
            crate::show::describe::count(listeners, "listener")
        );
        Ok(Answer::Reloaded {
            listeners,
            proxies: 0,
            warnings,
        })
    }

    /// The report of `weir status`.
    ///
    /// # Errors
    /// The kernel half cannot be read.
    pub fn report(&self) -> Result<Status> {
        let (command, config) = match &self.role {
            Role::Protect => ("protect", None),
            Role::Run(file) => ("run", Some(file.display().to_string())),
        };
        let process = Process {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            command: command.to_owned(),
            config,
            namespace: self.namespace,
            log_lost: log::lost(),
        };
        Ok(Status {
            running: true,
            process: Some(process),
            interfaces: self.session.interfaces(),
            warnings: self.session.warnings(),
            listeners: self.session.listeners()?,
            controller: self.controller_report(),
            proxies: Vec::new(),
        })
    }

    fn print_refusals(&mut self) {
        for line in self.session.refusals() {
            log::stamped_line(line);
        }
    }

    /// Until clients that hold a cookie have come back, or a second signal.
    fn wait_for_cookies(&self) {
        let end = Instant::now() + DRAIN;
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            let mut fds = [PollFd::new(
                self.signals.descriptor.as_fd(),
                PollFlags::POLLIN,
            )];
            // One more than the whole milliseconds: with none left it would not wait at all.
            match poll(&mut fds, left.as_millis() as u16 + 1) {
                Ok(0) | Err(Errno::EINTR) => {}
                _ => return,
            }
        }
    }
}

/// Tells the service manager, if there is one (NOTIFY_SOCKET).
pub fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!("the service manager cannot be notified: {error}");
    }
}
