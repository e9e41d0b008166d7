//! The frame of a service: signals, the control socket, HTTP, reloads and the service manager, one after the other,
//! in one thread.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use serde_json::{Map, Value};
use weir_api::{Event, Reload};

use crate::daemon::answer::{self, Figures};
use crate::daemon::config_file::{ConfigFile, Reloads};
use crate::daemon::events::{Events, cause, plain, reload_outcome};
use crate::daemon::notify;
use crate::daemon::profiles;
use crate::daemon::service::{Reloaded, Service};
use crate::daemon::signals::{Signals, ends};
use crate::failure::{Cause, Failure, Result};
use crate::host::config::Source;
use crate::ipc::control::{Answer, Client, ControlSocket, Request};
use crate::ipc::endpoints::Endpoints;

/// What all services have alike.
pub struct Frame {
    /// Where the service is asked.
    pub endpoints: Endpoints,
    /// What happens.
    pub events: Events,
    /// The subcommand that the process runs, for its events: `run`.
    command: &'static str,
    /// Why it ends, once it does.
    ends_by: Option<Signal>,
    signals: Signals,
    figures: Figures,
    /// `None`: the service has flags only.
    config: Option<ConfigFile>,
}

impl Frame {
    /// A frame that listens to signals and to the control socket. `config`: the file that the service has in force, with an
    /// absolute path.
    ///
    /// # Errors
    /// The kernel gives no eventfd.
    pub fn new(
        signals: Signals,
        control: Option<Box<dyn ControlSocket>>,
        config: Option<Source>,
        command: &'static str,
        events: Events,
    ) -> Result<Frame> {
        Ok(Frame {
            endpoints: Endpoints::new(control)?,
            events,
            command,
            ends_by: None,
            signals,
            figures: Figures::default(),
            config: config.map(ConfigFile::new),
        })
    }

    /// Runs the service until it has ended.
    ///
    /// # Errors
    /// The service cannot go on, or the loop cannot wait.
    pub fn run(&mut self, service: &mut dyn Service) -> Result<()> {
        notify::ready();
        self.note_start();
        let mut stopping = false;
        let mut ready = vec![false; service.sources().len()];
        while !service.has_ended() {
            service.work(&ready, &mut self.endpoints)?;
            if service.is_stopping() && !stopping {
                stopping = true;
                notify::stopping();
            }
            if service.has_ended() {
                break;
            }
            let woken = self.wait(service)?;
            if woken.signalled {
                self.on_signal(service);
            }
            if woken.asked {
                self.on_request(service);
            }
            if woken.called {
                for job in self.endpoints.calls().take() {
                    let reloads = self.reloads();
                    let (events, figures) = (&self.events, &mut self.figures);
                    let (call, peer) = (&job.call, job.peer);
                    let reply = answer::answer(service, figures, events, &reloads, call, peer);
                    job.reply(reply);
                }
            }
            self.end_trial(service);
            ready = woken.ready;
        }
        if !stopping {
            notify::stopping();
        }
        Ok(())
    }

    fn note_start(&self) {
        let (command, version) = (self.command, env!("CARGO_PKG_VERSION"));
        let with = match &self.config {
            Some(config) => format!(" with {}", config.path().display()),
            None => String::new(),
        };
        let text = format!("weir {command} {version} has started{with}");
        self.events.note(plain("start", "info", text));
    }

    /// Says that the process ends; nothing follows.
    pub fn note_stop(&self) {
        let asked = match self.ends_by {
            Some(signal) => format!(": asked to by {signal}"),
            None => String::new(),
        };
        let text = format!("weir {} ends{asked}", self.command);
        self.events.note(plain("stop", "info", text));
    }

    /// Waits for `time`, or for a signal.
    pub fn wait_for_signal(&self, time: Duration) {
        let end = Instant::now() + time;
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            let mut fds = [PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
            // One more than the whole milliseconds: with none left it would not wait at all.
            match poll(&mut fds, left.as_millis() as u16 + 1) {
                Ok(0) | Err(Errno::EINTR) => {}
                _ => return,
            }
        }
    }

    fn wait(&self, service: &dyn Service) -> Result<Woken> {
        let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds: Vec<PollFd<'_>> = [self.signals.as_fd()]
            .into_iter()
            .chain(service.sources())
            .map(readable)
            .collect();
        let own = fds.len();
        fds.extend(self.endpoints.sources().map(readable));
        // Rounded up: it would come back before its time, and again.
        let trial = self.config.as_ref();
        let trial = trial.and_then(|file| file.due_in(Instant::now()));
        let due = service.due_in().into_iter().chain(trial).min();
        let timeout = due.map_or(PollTimeout::NONE, |time| {
            let ms = time.as_micros().div_ceil(1000);
            PollTimeout::try_from(ms).unwrap_or(PollTimeout::MAX)
        });
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => {
                return Err(Failure::io("wait for signals and requests", errno.into()));
            }
        }
        let is_ready = |fd: &PollFd<'_>| fd.any().unwrap_or(false);
        Ok(Woken {
            signalled: is_ready(&fds[0]),
            ready: fds[1..own].iter().map(is_ready).collect(),
            called: is_ready(&fds[own]),
            asked: fds.get(own + 1).is_some_and(is_ready),
        })
    }

    fn on_signal(&mut self, service: &mut dyn Service) {
        match self.signals.next() {
            Some(Signal::SIGHUP) if self.config.is_some() => drop(self.reload(service, None)),
            Some(signal) if ends(signal) => {
                tracing::debug!("asked to end by {signal}");
                self.ends_by = Some(signal);
                service.stop();
            }
            _ => {}
        }
    }

    /// Goes back to what was in force before a reload that no one has confirmed in time.
    fn end_trial(&mut self, service: &mut dyn Service) {
        let Some(own) = &mut self.config else { return };
        let Some(before) = own.overdue(Instant::now()) else {
            return;
        };
        let file = own.path().display();
        notify::reloading();
        let back = put_in_force(service, &self.events, &before);
        let event = reload_event(own.path(), &back, service.stays());
        match back {
            Ok(_) => {
                let text = format!(
                    "the reload was not confirmed: what was in force before it is so again; {file} differs from it"
                );
                tracing::warn!("{text}");
                self.events.note(Event {
                    severity: "warn".to_owned(),
                    text,
                    ..event
                });
                own.go_back(before);
            }
            Err(failure) => {
                let stays = service.stays();
                tracing::error!(
                    "the reload was not confirmed, and the running {stays} in force\nerror: {failure}"
                );
                self.events.note(event);
            }
        }
        notify::ready();
    }

    fn on_request(&mut self, service: &mut dyn Service) {
        let control = self.endpoints.control();
        let Some((request, client)) = control.and_then(ControlSocket::next) else {
            return;
        };
        match request {
            Request::Status => {
                let report = service.report(&self.reloads());
                client.answer(&report.map_or_else(Answer::Error, |r| Answer::Status(Box::new(r))));
            }
            Request::Events { after, most } => {
                let events = self.events.read(after, most);
                client.answer(&Answer::Events(Box::new(events)));
            }
            Request::Why { address } => {
                let why = service.why(address);
                client.answer(&why.map_or_else(Answer::Error, |w| Answer::Why(Box::new(w))));
            }
            Request::Sources => {
                let top = service.top_sources();
                client.answer(&top.map_or_else(Answer::Error, |t| Answer::Sources(Box::new(t))));
            }
            Request::Suggest { least_s } => {
                let answer = service.suggestions(profiles::least(least_s));
                let answer = answer.map(|s| Answer::Suggestions(Box::new(s)));
                client.answer(&answer.unwrap_or_else(Answer::Error));
            }
            Request::Reload { confirm_s } => {
                tracing::info!("reload asked for by {}", client.peer());
                client.answer(&self.reload(service, confirm_s));
            }
            Request::Config => client.answer(&self.in_force(service.class_settings())),
            request => service.request(request, client),
        }
    }

    fn reloads(&self) -> Reloads {
        let file = self.config.as_ref();
        file.map_or_else(Reloads::default, |file| file.reloads(Instant::now()))
    }

    fn in_force(&self, classes: Option<Vec<Map<String, Value>>>) -> Answer {
        let source = self.config.as_ref().map(ConfigFile::in_force);
        Answer::Config {
            file: source.map(|source| source.file.clone()),
            text: source.map_or(String::new(), |source| source.text.clone()),
            classes,
        }
    }

    /// Reads the config file again. `confirm_s`: for so many seconds, unless another reload confirms it.
    fn reload(&mut self, service: &mut dyn Service, confirm_s: Option<u64>) -> Answer {
        service.reopen_logs();
        self.events.reopen();
        let Some(own) = &mut self.config else {
            return Answer::Error(service.no_file());
        };
        notify::reloading();
        let reloaded = Source::read(own.path()).and_then(|source| {
            let reloaded = put_in_force(service, &self.events, &source)?;
            let end = confirm_s.map(|s| Instant::now() + Duration::from_secs(s));
            own.replace(source, end);
            Ok(reloaded)
        });
        notify::ready();
        self.events
            .note(reload_event(own.path(), &reloaded, service.stays()));
        own.note_reload(reloaded.as_ref().err());
        match reloaded {
            Ok(Reloaded {
                listeners,
                destinations,
                proxies,
                not_in_force,
                warnings,
            }) => {
                for Cause { message, hint } in &not_in_force {
                    tracing::error!("{message} ({hint})");
                }
                for warning in &warnings {
                    tracing::warn!("{warning}");
                }
                Answer::Reloaded {
                    listeners,
                    destinations,
                    proxies,
                    not_in_force,
                    warnings,
                    confirm_s,
                }
            }
            Err(failure) => {
                let stays = service.stays();
                tracing::error!("reload failed, the running {stays} in force\nerror: {failure}");
                Answer::Error(failure)
            }
        }
    }
}

/// Puts a config file in force; what is hardly meant in it comes first among the warnings.
fn put_in_force(service: &mut dyn Service, events: &Events, source: &Source) -> Result<Reloaded> {
    let config = source.parse()?;
    let mut odd: Vec<String> = config.warnings.iter().map(ToString::to_string).collect();
    let settings = config.events.clone();
    let mut reloaded = service.reload(config, &source.file)?;
    // A file of events that cannot be written changes nothing else.
    let set = events.set_file(settings.as_ref());
    odd.extend(set.err().map(|failure| failure.to_string()));
    reloaded.warnings.splice(..0, odd);
    Ok(reloaded)
}

fn reload_event(file: &Path, reloaded: &Result<Reloaded>, stays: &str) -> Event {
    let mut reload = Reload {
        config: Some(file.display().to_string()),
        ..Reload::default()
    };
    if let Ok(reloaded) = reloaded {
        reload.listeners = reloaded.listeners;
        reload.proxies = reloaded.proxies;
        reload.not_in_force = reloaded.not_in_force.iter().map(cause).collect();
        reload.warnings.clone_from(&reloaded.warnings);
    }
    reload_outcome(reload, reloaded.as_ref().err(), stays)
}

/// What the loop has been woken for.
struct Woken {
    signalled: bool,
    /// One entry for each source of the service.
    ready: Vec<bool>,
    called: bool,
    asked: bool,
}

/// A client of the control socket that asks for what this process does not do.
pub fn refuse(client: &Client, message: &str) {
    client.answer(&Answer::Error(Failure::usage(message, "")));
}
