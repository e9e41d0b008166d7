//! The frame of a service: signals, the control socket, HTTP, reloads and the service manager, one after the other,
//! in one thread.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;

use crate::daemon::answer::{self, Figures};
use crate::daemon::notify;
use crate::daemon::service::{Reloaded, Service};
use crate::daemon::signals::{Signals, ends};
use crate::failure::{Cause, Failure, Result};
use crate::host::config;
use crate::ipc::control::{Answer, Client, ControlSocket, Request};
use crate::ipc::endpoints::Endpoints;

/// What all services have alike.
pub struct Frame {
    /// Where the service is asked.
    pub endpoints: Endpoints,
    signals: Signals,
    figures: Figures,
    /// The config file, as an absolute path; `None`: the service has flags only.
    config: Option<PathBuf>,
}

impl Frame {
    /// A frame that listens to signals and to the control socket.
    ///
    /// # Errors
    /// The kernel gives no eventfd.
    pub fn new(
        signals: Signals,
        control: Option<Box<dyn ControlSocket>>,
        config: Option<PathBuf>,
    ) -> Result<Frame> {
        Ok(Frame {
            endpoints: Endpoints::new(control)?,
            signals,
            figures: Figures::default(),
            config,
        })
    }

    /// Runs the service until it has ended.
    ///
    /// # Errors
    /// The service cannot go on, or the loop cannot wait.
    pub fn run(&mut self, service: &mut dyn Service) -> Result<()> {
        notify::ready();
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
                    let reply = answer::answer(service, &mut self.figures, &job.call, job.peer);
                    job.reply(reply);
                }
            }
            ready = woken.ready;
        }
        if !stopping {
            notify::stopping();
        }
        Ok(())
    }

    /// Waits for `time`, or for a signal.
    pub fn wait_for_signal(&self, time: Duration) {
        let end = std::time::Instant::now() + time;
        while let Some(left) = end.checked_duration_since(std::time::Instant::now()) {
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
        let timeout = service.due_in().map_or(PollTimeout::NONE, |time| {
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
            Some(Signal::SIGHUP) if self.config.is_some() => drop(self.reload(service)),
            Some(signal) if ends(signal) => {
                tracing::debug!("asked to end by {signal}");
                service.stop();
            }
            _ => {}
        }
    }

    fn on_request(&mut self, service: &mut dyn Service) {
        let control = self.endpoints.control();
        let Some((request, client)) = control.and_then(ControlSocket::next) else {
            return;
        };
        match request {
            Request::Status => {
                let report = service.report();
                client.answer(&report.map_or_else(Answer::Error, |r| Answer::Status(Box::new(r))));
            }
            Request::Reload => {
                tracing::info!("reload asked for by {}", client.peer());
                client.answer(&self.reload(service));
            }
            request => service.request(request, client),
        }
    }

    fn reload(&self, service: &mut dyn Service) -> Answer {
        service.reopen_logs();
        let Some(file) = &self.config else {
            return Answer::Error(service.no_file());
        };
        notify::reloading();
        let reloaded = config::read(file).and_then(|config| {
            let odd: Vec<String> = config.warnings.iter().map(ToString::to_string).collect();
            let mut reloaded = service.reload(config, file)?;
            reloaded.warnings.splice(..0, odd);
            Ok(reloaded)
        });
        notify::ready();
        match reloaded {
            Ok(Reloaded {
                listeners,
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
                    proxies,
                    not_in_force,
                    warnings,
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
