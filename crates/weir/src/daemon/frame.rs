//! The frame of a service: signals, the control socket, HTTP, reloads and the service manager, one after the other,
//! in one thread.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use weir_api::{Answer, Event, InForce, Question, Reload, Reloaded};
use weir_core::units::whole_seconds;

use crate::daemon::config_file::{ConfigFile, Reloads};
use crate::daemon::events::{Events, plain, reload_outcome};
use crate::daemon::notify;
use crate::daemon::rights;
use crate::daemon::service::{Put, Service};
use crate::daemon::signals::{Signals, ends};
use crate::failure::{Cause, Failure, Result};
use crate::host::config::Source;
use crate::ipc::control::{ControlSocket, another_answer};
use crate::ipc::endpoints::Endpoints;
use crate::ipc::peer::Asker;

/// For so long the metrics stay as they were made: the service's thread makes them, which has other work, and any number of
/// clients may ask.
const FRESH: Duration = Duration::from_millis(100);

/// Until what could not be put in force again is tried once more.
const AGAIN: Duration = Duration::from_secs(10);

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
    /// The figures as they were made last, and when.
    metrics: Option<(Instant, Arc<str>)>,
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
        config: Option<ConfigFile>,
        command: &'static str,
        events: Events,
    ) -> Result<Frame> {
        Ok(Frame {
            endpoints: Endpoints::new(control)?,
            events,
            command,
            ends_by: None,
            signals,
            metrics: None,
            config,
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
        let mut now = Instant::now();
        while !service.has_ended() {
            service.work(now, &ready, &mut self.endpoints)?;
            if service.is_stopping() && !stopping {
                stopping = true;
                notify::stopping();
            }
            if service.has_ended() {
                break;
            }
            let woken = self.wait(service)?;
            now = Instant::now();
            if woken.signalled {
                self.on_signal(service, now);
            }
            if woken.asked {
                self.on_request(service, now);
            }
            if woken.called {
                for job in self.endpoints.calls().take() {
                    let answer = self.answer(service, &job.question, job.asker, now);
                    job.answer(answer);
                }
            }
            self.end_trial(service, now);
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
        let trial = self.config.as_ref().and_then(ConfigFile::due_at);
        let due = service.due_at().into_iter().chain(trial).min();
        let timeout = due.map_or(PollTimeout::NONE, |due| {
            let time = due.saturating_duration_since(Instant::now());
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

    fn on_signal(&mut self, service: &mut dyn Service, now: Instant) {
        match self.signals.next() {
            Some(Signal::SIGHUP) if self.config.is_some() => {
                drop(self.reload(service, None, now));
            }
            Some(signal) if ends(signal) => {
                tracing::debug!("asked to end by {signal}");
                self.ends_by = Some(signal);
                service.stop();
            }
            _ => {}
        }
    }

    /// Goes back to what was in force before a reload that no one has confirmed in time.
    fn end_trial(&mut self, service: &mut dyn Service, now: Instant) {
        let Some(own) = &mut self.config else { return };
        let Some(trial) = own.overdue(now) else {
            return;
        };
        if trial.observes {
            return self.end_observing(service, trial.before, now);
        }
        let before = trial.before;
        let file = own.path().display();
        notify::reloading();
        let back = put_in_force(service, &self.events, own, &before, now);
        let event = reload_event(own.path(), &back, service.stays());
        match back {
            Ok(_) => {
                let text = format!(
                    "the reload was not confirmed: what was in force before it is so again; {file} differs from it"
                );
                tracing::warn!("{text}");
                self.events.note(warned(event, text));
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

    /// Has every listener only observe for this time. Nothing else changes.
    fn observe(
        &mut self,
        service: &mut dyn Service,
        time: Duration,
        now: Instant,
    ) -> Result<Reloaded> {
        let Some(own) = &mut self.config else {
            return Err(service.no_file());
        };
        if let Some(left) = own.reloads(now).unconfirmed_s {
            let message = format!("a reload is on trial, and goes back in {left} s");
            return Err(Failure::failed(message, "confirm it first: `weir reload`"));
        }
        notify::reloading();
        let put = put_again(service, own.in_force(), now, true);
        notify::ready();
        let event = reload_event(own.path(), &put, service.stays());
        let text = format!(
            "weir refuses nobody for {} (`weir observe`); `weir reload` ends that",
            whole_seconds(time)
        );
        match put {
            Ok(mut reloaded) => {
                own.observe(Instant::now() + time);
                reloaded.observes_s = Some(time.as_secs());
                tracing::warn!("{text}");
                self.events.note(warned(event, text));
                Ok(reloaded)
            }
            Err(failure) => {
                tracing::error!("weir goes on refusing\nerror: {failure}");
                self.events.note(event);
                Err(failure)
            }
        }
    }

    fn end_observing(&mut self, service: &mut dyn Service, before: Source, now: Instant) {
        let Some(own) = &mut self.config else { return };
        notify::reloading();
        let put = put_again(service, &before, now, false);
        notify::ready();
        let event = reload_event(own.path(), &put, service.stays());
        match put {
            Ok(_) => {
                let file = own.path().display();
                let text =
                    format!("the time of `weir observe` is over: {file} is in force as before");
                tracing::warn!("{text}");
                self.events.note(warned(event, text));
            }
            Err(failure) => {
                // Tried again, and reported as before.
                own.observe(Instant::now() + AGAIN);
                let text = "the time of `weir observe` is over, but weir cannot refuse again";
                tracing::error!("{text}\nerror: {failure}");
                self.events.note(Event {
                    text: format!("{text}: {failure}"),
                    ..event
                });
            }
        }
    }

    fn on_request(&mut self, service: &mut dyn Service, now: Instant) {
        let control = self.endpoints.control();
        let Some((question, client)) = control.and_then(ControlSocket::next) else {
            return;
        };
        let answer = self.answer(service, &question, client.asker(), now);
        service.deliver(&question, answer, client);
    }

    /// Answers a question, whoever asks and by whatever way.
    fn answer(
        &mut self,
        service: &mut dyn Service,
        question: &Question,
        asker: Asker,
        now: Instant,
    ) -> Result<Answer> {
        tracing::debug!("{question:?} asked by {asker}");
        rights::check(asker, question)?;
        match question {
            Question::Events { after, most } => Ok(Answer::Events(self.events.read(*after, *most))),
            Question::Metrics => self.metrics(service, asker, now).map(Answer::Metrics),
            Question::Config => Ok(Answer::Config(self.in_force(service))),
            Question::Observe { for_s } => {
                tracing::info!("observe asked for by {asker}");
                let time = Duration::from_secs(*for_s);
                self.observe(service, time, now).map(Answer::Reloaded)
            }
            Question::Reload { confirm_s } => {
                tracing::info!("reload asked for by {asker}");
                let reloaded = self.reload(service, *confirm_s, now);
                reloaded.map(Answer::Reloaded)
            }
            question => service.answer(question, asker, now, &self.reloads(now)),
        }
    }

    /// The figures as they were made last, if that is not long ago.
    fn metrics(
        &mut self,
        service: &mut dyn Service,
        asker: Asker,
        now: Instant,
    ) -> Result<Arc<str>> {
        let fresh = |made: Instant| now.saturating_duration_since(made) < FRESH;
        if let Some((_, text)) = self.metrics.as_ref().filter(|(made, _)| fresh(*made)) {
            return Ok(Arc::clone(text));
        }
        let answer = service.answer(&Question::Metrics, asker, now, &self.reloads(now))?;
        let text = <Arc<str>>::try_from(answer).map_err(|_| another_answer())?;
        self.metrics = Some((now, Arc::clone(&text)));
        Ok(text)
    }

    fn reloads(&self, now: Instant) -> Reloads {
        let file = self.config.as_ref();
        file.map_or_else(Reloads::default, |file| file.reloads(now))
    }

    fn in_force(&self, service: &dyn Service) -> InForce {
        let own = self.config.as_ref();
        let source = own.map(ConfigFile::in_force);
        InForce {
            file: source.map(|source| source.file.clone()),
            text: source.map_or(String::new(), |source| source.text.clone()),
            classes: service.class_settings(),
            at_start: own.and_then(|own| own.text_at_start().map(str::to_owned)),
            metrics_by_flag: own.is_some_and(|own| own.at_start().metrics_by_flag()),
            observes: own.is_some_and(ConfigFile::observes),
        }
    }

    /// Reads the config file again. `confirm_s`: for so many seconds, unless another reload confirms it.
    fn reload(
        &mut self,
        service: &mut dyn Service,
        confirm_s: Option<u64>,
        now: Instant,
    ) -> Result<Reloaded> {
        service.reopen_logs();
        self.events.reopen();
        let Some(own) = &mut self.config else {
            return Err(service.no_file());
        };
        notify::reloading();
        let reloaded = Source::read(own.path()).and_then(|source| {
            let mut reloaded = put_in_force(service, &self.events, own, &source, now)?;
            reloaded.confirm_s = confirm_s;
            // From when it is in force: that takes a while.
            let end = confirm_s.map(|s| Instant::now() + Duration::from_secs(s));
            let observed = own.observes();
            let was_on_trial = own.due_at().is_some();
            own.replace(source, end);
            if observed {
                tracing::info!("`weir observe` has ended");
            }
            match (confirm_s, was_on_trial && !observed) {
                (Some(s), _) => tracing::warn!("the reload is {}", trial(s)),
                (None, true) => tracing::info!("the reload is confirmed"),
                (None, false) => {}
            }
            Ok(reloaded)
        });
        notify::ready();
        let mut event = reload_event(own.path(), &reloaded, service.stays());
        if let (Ok(_), Some(s)) = (&reloaded, confirm_s) {
            event.text = format!("{}, {}", event.text, trial(s));
        }
        self.events.note(event);
        own.note_reload(reloaded.as_ref().err());
        match &reloaded {
            Ok(reloaded) => {
                for Cause { message, hint } in &reloaded.not_in_force {
                    tracing::error!("{message} ({hint})");
                }
                for warning in &reloaded.warnings {
                    tracing::warn!("{warning}");
                }
            }
            Err(failure) => {
                let stays = service.stays();
                tracing::error!("reload failed, the running {stays} in force\nerror: {failure}");
            }
        }
        reloaded
    }
}

/// Puts a config file in force. What is hardly meant in it comes first among the warnings, and what needs a restart.
fn put_in_force(
    service: &mut dyn Service,
    events: &Events,
    own: &ConfigFile,
    source: &Source,
    now: Instant,
) -> Result<Reloaded> {
    let config = source.parse()?;
    let mut odd: Vec<String> = config.warnings.iter().map(ToString::to_string).collect();
    odd.extend(own.at_start().warnings(&config));
    let settings = config.events.clone();
    let mut reloaded = service.reload(config, &source.file, now, Put::File)?;
    // A file of events that cannot be written changes nothing else.
    let set = events.set_file(settings.as_ref());
    odd.extend(set.err().map(|failure| failure.to_string()));
    reloaded.warnings.splice(..0, odd);
    Ok(reloaded)
}

/// Puts what a file said in force again, with the classes as they are now. observes: every listener only observes.
fn put_again(
    service: &mut dyn Service,
    source: &Source,
    now: Instant,
    observes: bool,
) -> Result<Reloaded> {
    let config = source.parse()?;
    service.reload(config, &source.file, now, Put::Again { observes })
}

/// The event with a text of its own, as a warning.
fn warned(event: Event, text: String) -> Event {
    Event {
        severity: "warn".to_owned(),
        text,
        ..event
    }
}

/// What a reload is that nobody has confirmed yet.
fn trial(confirm_s: u64) -> String {
    format!(
        "on trial: what was in force before comes back in {}, unless another `weir reload` confirms it",
        whole_seconds(Duration::from_secs(confirm_s))
    )
}

fn reload_event(file: &Path, reloaded: &Result<Reloaded>, stays: &str) -> Event {
    let mut reload = Reload {
        config: Some(file.display().to_string()),
        ..Reload::default()
    };
    if let Ok(reloaded) = reloaded {
        reload.listeners = reloaded.listeners;
        reload.proxies = reloaded.proxies;
        reload.not_in_force.clone_from(&reloaded.not_in_force);
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
