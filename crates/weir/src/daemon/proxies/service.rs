//! The loop of `weir proxy`: signals, requests, threads that end and successors, one after the
//! other, in one thread. It never waits for the threads that move data, nor they for it.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use sd_notify::NotifyState;
use weir_api::Status;
use weir_proxy::{Server, handover};

use super::{Metrics, Post, Proxies};
use crate::commands::check;
use crate::daemon::guard::{Signals, ends, notify};
use crate::failure::{Failure, Result};
use crate::ipc::control::{Answer, Client, HandedOver, Request};
use crate::show::describe::count;

/// A process of proxies.
pub struct Service {
    /// The proxies.
    pub proxies: Proxies,
    /// The config file, as an absolute path; `None` if flags described the one proxy.
    pub config: Option<PathBuf>,
    /// Where it is asked.
    pub post: Option<Post>,
    /// Signals.
    pub signals: Signals,
    /// Where metrics are asked for.
    pub metrics: Option<Metrics>,
    /// Who has got the sockets and has not said yet that it accepts.
    pub successor: Option<Client>,
}

impl Service {
    /// Runs until all proxies have ended: by signals, or because a successor took over.
    ///
    /// # Errors
    /// A thread falls again and again, or the loop cannot wait.
    pub fn run(&mut self) -> Result<()> {
        let mut fault = Ok(());
        let mut stopping = false;
        while !self.proxies.have_ended() {
            let [signalled, fallen, asked, told, scraped] = self.wait()?;
            if signalled && self.on_signal() {
                self.proxies.drain(stopping.then_some(Duration::ZERO));
                stopping = true;
            }
            if fallen && let Err(failure) = self.proxies.tend() {
                // Without that thread its clients would wait for ever: let another process try.
                fault = fault.and(Err(failure));
                self.proxies
                    .drain((fault.is_err() && stopping).then_some(Duration::ZERO));
                stopping = true;
            }
            if asked {
                self.on_request();
            }
            if told {
                self.on_successor();
            }
            if scraped && let Some(metrics) = &self.metrics {
                metrics.serve(|| self.proxies.reports(None));
            }
            if stopping {
                notify(&[NotifyState::Stopping]);
                self.successor = None;
            }
        }
        fault
    }

    /// Waits; says what there is: signals, threads that ended, requests, word of the successor,
    /// scrapes.
    fn wait(&self) -> Result<[bool; 5]> {
        let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
        // Where there is nothing to wait for, the bell stands in: it is looked at anyway.
        let bell = self.proxies.bell().as_fd();
        let mut fds = [
            readable(self.signals.as_fd()),
            readable(bell),
            readable(self.post.as_ref().map_or(bell, AsFd::as_fd)),
            readable(self.successor.as_ref().map_or(bell, AsFd::as_fd)),
            readable(self.metrics.as_ref().map_or(bell, AsFd::as_fd)),
        ];
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => Ok(fds.map(|fd| fd.any().unwrap_or(false))),
            Err(errno) => Err(Failure::io("wait for signals and requests", errno.into())),
        }
    }

    /// Whether the signal ends the process.
    fn on_signal(&mut self) -> bool {
        let Some(signal) = self.signals.next() else {
            return false;
        };
        if signal == Signal::SIGHUP && self.config.is_some() {
            self.reload();
            return false;
        }
        ends(signal)
    }

    fn on_request(&mut self) {
        let Some((request, client)) = self.post.as_ref().and_then(Post::next) else {
            return;
        };
        match request {
            Request::Status => client.answer(&Answer::Status(Box::new(self.report()))),
            Request::Reload => {
                tracing::info!("reload asked for by {}", client.peer());
                client.answer(&self.reload());
            }
            Request::Class(_) | Request::Exec(_) => {
                let message = "this process runs proxies, whose classes are those of their file";
                client.answer(&Answer::Error(Failure::usage(message, "")));
            }
            Request::HandOver => self.hand_over(client),
            Request::Detach | Request::Retire => {
                let message = "this process runs proxies and guards nothing";
                client.answer(&Answer::Error(Failure::usage(message, "")));
            }
        }
    }

    fn report(&self) -> Status {
        let config = self.config.as_ref().map(|file| file.display().to_string());
        Status {
            proxies: self.proxies.reports(config.as_deref()),
            ..Status::default()
        }
    }

    fn reload(&mut self) -> Answer {
        // Also if the file turns out bad: whoever rotates logs waits for this alone.
        self.proxies.reopen_logs();
        match NotifyState::monotonic_usec_now() {
            Ok(now) => notify(&[NotifyState::Reloading, now]),
            Err(error) => tracing::debug!("no monotonic clock for the service manager: {error}"),
        }
        let answer = self.swap().unwrap_or_else(|failure| {
            tracing::error!("reload failed, the running proxies stay in force\nerror: {failure}");
            Answer::Error(failure)
        });
        notify(&[NotifyState::Ready]);
        answer
    }

    fn swap(&mut self) -> Result<Answer> {
        let Some(file) = &self.config else {
            let message = format!("process {} has no config file", std::process::id());
            let hint = "start it as `weir proxy --config FILE`, which can reload";
            return Err(Failure::failed(message, hint));
        };
        let config = check::read(file)?;
        if config.proxies.is_empty() {
            return Err(no_proxy_in(file));
        }
        let proxies = config.proxies.len();
        self.proxies.swap(config.proxies)?;
        self.proxies.check_descriptors();
        let warnings = config.warnings.iter().map(ToString::to_string).collect();
        tracing::info!("{} in force", count(proxies, "proxy"));
        Ok(Answer::Reloaded {
            listeners: 0,
            proxies,
            warnings,
        })
    }

    /// Sends the listening sockets, and goes on accepting until the successor does.
    fn hand_over(&mut self, client: Client) {
        let running = self.proxies.running();
        let sockets = || running.iter().filter_map(Server::sockets);
        let of_one = |server: &Server| {
            Some(HandedOver {
                listen: server.settings().listen,
                sockets: server.sockets()?.fds().count(),
            })
        };
        client.answer(&Answer::HandedOver(
            running.iter().filter_map(of_one).collect(),
        ));
        match sockets().try_for_each(|sockets| handover::send(&client, sockets.fds())) {
            Ok(()) => self.successor = Some(client),
            Err(error) => tracing::warn!("the listening sockets were not handed over: {error}"),
        }
    }

    fn on_successor(&mut self) {
        let Some(successor) = self.successor.take() else {
            return;
        };
        match successor.request() {
            Ok(Request::Retire) => {
                tracing::info!("process of {} took over", successor.peer());
                self.proxies.retire_all();
                // The successor listens there next.
                (self.post, self.metrics) = (None, None);
                let pid = std::process::id();
                successor.answer(&Answer::Retired { pid });
            }
            // It looked only, or could not start: nothing has changed here.
            Ok(_) | Err(_) => tracing::debug!("a successor did not take over"),
        }
    }
}

/// A config file that has no proxy.
pub fn no_proxy_in(file: &std::path::Path) -> Failure {
    let message = format!("there is no [[proxy]] in {}", file.display());
    Failure::usage(message, "`weir run --config FILE` guards its listeners")
}
