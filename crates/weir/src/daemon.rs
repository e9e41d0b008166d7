//! The loop of `weir protect` and `weir run`: signals, requests and changes of the interfaces, one
//! after the other, in one thread.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use sd_notify::NotifyState;
use weir_core::listener::Listener;
use weir_core::verdict::Counters;

use crate::backend::Backend;
use crate::commands::check;
use crate::control::{Answer, Claim, Client, Request};
use crate::environment;
use crate::failure::{Failure, Result};
use crate::links::{self, LinkWatch};
use crate::report::{Process, Report};
use crate::session::Session;

/// How long cookies that are out stay valid before the guard goes: more than the round trips of
/// most clients, less than a user's patience with Ctrl-C.
const DRAIN: Duration = Duration::from_millis(300);
/// How often sampled refusals are fetched for `--verbose`.
const REFUSALS_EVERY: Duration = Duration::from_millis(200);

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

    fn next(&self) -> Option<Signal> {
        let info = self.descriptor.read_signal().ok().flatten()?;
        Signal::try_from(info.ssi_signo as i32).ok()
    }
}

/// What `weir protect` and `weir run` do differently.
pub enum Role {
    /// `weir protect`: SIGHUP (the terminal is gone) ends it; there is no config to reload.
    Protect,
    /// `weir run` with its config file, as an absolute path.
    Run(PathBuf),
}

/// A guard that is on, and all that the loop listens to.
pub struct Daemon<B> {
    /// What guards.
    pub session: Session<B>,
    /// The claim on the namespace.
    pub claim: Claim,
    /// Signals.
    pub signals: Signals,
    /// Changes of the interfaces.
    pub watch: LinkWatch,
    /// `protect` or `run`.
    pub role: Role,
    /// Inode number of the namespace.
    pub namespace: u64,
    /// Print sampled refusals to stderr.
    pub verbose: bool,
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
            let [signalled, linked, asked] = self.wait()?;
            if signalled && let Some(end) = self.on_signal() {
                return Ok(end);
            }
            if linked {
                self.watch.clear();
                match links::list() {
                    Ok(links) => self.session.links_changed(links),
                    Err(failure) => tracing::warn!("{failure}"),
                }
            }
            if asked && let Some(end) = self.on_request() {
                return Ok(end);
            }
        }
    }

    /// Waits for signals, links and requests; says which there are.
    fn wait(&self) -> Result<[bool; 3]> {
        let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds = [
            readable(self.signals.descriptor.as_fd()),
            readable(self.watch.as_fd()),
            readable(self.claim.as_fd()),
        ];
        let timeout = match self.verbose {
            true => PollTimeout::try_from(REFUSALS_EVERY).unwrap_or(PollTimeout::NONE),
            false => PollTimeout::NONE,
        };
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => Ok(fds.map(|fd| fd.any().unwrap_or(false))),
            Err(errno) => Err(Failure::io("wait for signals and requests", errno.into())),
        }
    }

    fn on_signal(&mut self) -> Option<End> {
        let signal = self.signals.next()?;
        match (&self.role, signal) {
            (Role::Run(_), Signal::SIGHUP) => {
                if let Answer::Error(failure) = self.reload() {
                    tracing::error!("reload failed, the running policy stays in force\n{failure}");
                }
                None
            }
            (_, signal) => Some(End::Signal(signal)),
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
                tracing::info!("reload asked for by uid {}", client.uid());
                client.answer(&self.reload());
            }
            Request::Detach => {
                tracing::info!("detach asked for by uid {}", client.uid());
                return Some(End::Detach(client));
            }
        }
        None
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
        let answer = self.swap(&file).unwrap_or_else(Answer::Error);
        notify(&[NotifyState::Ready]);
        answer
    }

    fn swap(&mut self, file: &std::path::Path) -> Result<Answer> {
        let config = check::read(file)?;
        let listeners = config.listeners.len();
        self.session.swap(environment::read(), config.listeners)?;
        let mut warnings: Vec<String> = config
            .warnings
            .iter()
            .map(|warning| warning.to_string())
            .collect();
        warnings.extend(self.session.fallbacks()?);
        for warning in &warnings {
            tracing::warn!("{warning}");
        }
        tracing::info!("{} in force", crate::describe::count(listeners, "listener"));
        Ok(Answer::Reloaded {
            listeners,
            warnings,
        })
    }

    fn report(&self) -> Result<Report> {
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
        };
        Ok(Report {
            running: true,
            process: Some(process),
            interfaces: self.session.interfaces(),
            listeners: self.session.listeners()?,
        })
    }

    fn print_refusals(&mut self) {
        for line in self.session.refusals() {
            eprintln!("{line}");
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
fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!("the service manager cannot be notified: {error}");
    }
}
