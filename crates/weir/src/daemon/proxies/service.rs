//! The proxies of one process as a service: threads that end, successors, reloads. The service's thread never waits
//! for the threads that move data, nor they for it.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use weir_api::metrics::{Figures, text};
use weir_api::{Answer, HandedOver, Process, Question, Reloaded, Status};
use weir_config::Config;
use weir_proxy::{Server, handover};

use super::{Proxies, report};
use crate::daemon::config_file::Reloads;
use crate::daemon::service::{Put, Service};
use crate::failure::{Failure, Result};
use crate::ipc::control::Client;
use crate::ipc::endpoints::Endpoints;
use crate::ipc::peer::Asker;
use crate::show::describe::count;
use crate::show::log;

/// The proxies of one process.
pub struct ProxyService {
    /// The proxies.
    pub proxies: Proxies,
    /// The config file; `None` if flags described the one proxy.
    file: Option<PathBuf>,
    /// The process that has got the sockets and has not said yet that it accepts.
    successor: Option<Client>,
    stopping: bool,
    /// Why it stops, if a thread has failed.
    fault: Result<()>,
}

impl ProxyService {
    /// A service of these proxies.
    pub fn new(proxies: Proxies, file: Option<PathBuf>) -> ProxyService {
        ProxyService {
            proxies,
            file,
            successor: None,
            stopping: false,
            fault: Ok(()),
        }
    }

    /// The end: the proxies, and whether one of their threads failed again and again.
    pub fn end(self) -> (Proxies, Result<()>) {
        (self.proxies, self.fault)
    }

    fn tend(&mut self) {
        if let Err(failure) = self.proxies.tend() {
            // Without that thread its clients would wait for ever: let another process try.
            let again = self.stopping;
            self.proxies.drain(again.then_some(Duration::ZERO));
            self.stopping = true;
            if self.fault.is_ok() {
                self.fault = Err(failure);
            }
        }
    }

    /// The sockets that a successor gets.
    fn handed_over(&self) -> Vec<HandedOver> {
        let of_one = |server: &Server| {
            Some(HandedOver {
                listen: server.settings().listen,
                sockets: server.sockets()?.fds().count(),
                addresses: server.addresses().into_iter().collect(),
            })
        };
        self.proxies.running().iter().filter_map(of_one).collect()
    }

    fn on_successor(&mut self, endpoints: &mut Endpoints) {
        let Some(successor) = self.successor.take() else {
            return;
        };
        match successor.question() {
            Ok(Question::Retire) => {
                tracing::info!("process of {} took over", successor.asker());
                self.proxies.retire_all();
                // The successor listens there next.
                endpoints.close();
                let pid = std::process::id();
                successor.answer(&Ok(Answer::Retired { pid }));
            }
            // It looked only, or could not start: nothing has changed here.
            Ok(_) | Err(_) => tracing::debug!("a successor did not take over"),
        }
    }

    fn report(&self, reloads: &Reloads) -> Status {
        let file = self.file.as_ref().map(|file| file.display().to_string());
        let mut proxies = self.proxies.reports(file.as_deref());
        for proxy in &mut proxies {
            proxy.last_reload = reloads.last.clone();
            proxy.unconfirmed_s = reloads.unconfirmed_s;
        }
        Status {
            proxies,
            ..Status::default()
        }
    }

    fn metrics(&self, reloads: &Reloads) -> String {
        let figures = Figures {
            proxies: self.proxies.reports(None),
            process: Process {
                pid: std::process::id(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                command: "proxy".to_owned(),
                started_unix_ms: self.proxies.events.since_unix_ms(),
                log_lost: log::lost(),
                ..Process::default()
            },
            last_reload: reloads.last.clone(),
            ..Figures::default()
        };
        text(report::metrics(), &figures)
    }
}

impl Service for ProxyService {
    fn sources(&self) -> Vec<BorrowedFd<'_>> {
        let successor = self.successor.iter().map(AsFd::as_fd);
        [self.proxies.waker().as_fd()]
            .into_iter()
            .chain(successor)
            .collect()
    }

    fn work(&mut self, _now: Instant, ready: &[bool], endpoints: &mut Endpoints) -> Result<()> {
        let is_ready = |index: usize| ready.get(index).copied().unwrap_or(false);
        if is_ready(0) {
            self.tend();
        }
        if is_ready(1) {
            self.on_successor(endpoints);
        }
        if self.stopping {
            self.successor = None;
        }
        Ok(())
    }

    fn answer(
        &mut self,
        question: &Question,
        _asker: Asker,
        _now: Instant,
        reloads: &Reloads,
    ) -> Result<Answer> {
        match question {
            Question::Status => Ok(Answer::Status(Box::new(self.report(reloads)))),
            Question::Metrics => Ok(Answer::Metrics(self.metrics(reloads).into())),
            Question::Classes => Ok(Answer::Classes(Vec::new())),
            Question::HandOver => Ok(Answer::HandedOver(self.handed_over())),
            Question::Class(change) => {
                let message = format!(
                    "class {:?}: this process has no classes to change",
                    change.class()
                );
                let hint = "classes of proxies are those of the config file: change it, then `weir reload`";
                Err(Failure::conflict(message, hint))
            }
            _ => {
                let hint = "the access log of a proxy says why it refused a client";
                let message = "this process runs proxies and guards nothing";
                Err(Failure::unknown(message, hint))
            }
        }
    }

    /// The sockets themselves follow the answer; it goes on accepting until the successor does.
    fn deliver(&mut self, question: &Question, answer: Result<Answer>, client: Client) {
        client.answer(&answer);
        if !matches!((question, answer), (Question::HandOver, Ok(_))) {
            return;
        }
        let mut sockets = self.proxies.running().iter().filter_map(Server::sockets);
        match sockets.try_for_each(|sockets| handover::send(&client, sockets.fds())) {
            Ok(()) => self.successor = Some(client),
            Err(error) => tracing::warn!("the listening sockets were not handed over: {error}"),
        }
    }

    fn reopen_logs(&mut self) {
        // Also if the file turns out bad: whoever rotates logs waits for this alone.
        self.proxies.reopen_logs();
    }

    fn reload(
        &mut self,
        config: Config,
        file: &Path,
        _now: Instant,
        _put: Put,
    ) -> Result<Reloaded> {
        if config.proxies.is_empty() {
            return Err(no_proxy_in(file));
        }
        let proxies = config.proxies.len();
        self.proxies.swap(config.proxies)?;
        self.proxies.check_descriptors();
        tracing::info!("{} in force", count(proxies, "proxy"));
        Ok(Reloaded {
            proxies,
            ..Reloaded::default()
        })
    }

    fn no_file(&self) -> Failure {
        let message = format!("process {} has no config file", std::process::id());
        let hint = "start it as `weir proxy --config FILE`, which can reload";
        Failure::failed(message, hint)
    }

    fn stays(&self) -> &'static str {
        "proxies stay"
    }

    fn stop(&mut self) {
        self.proxies.drain(self.stopping.then_some(Duration::ZERO));
        self.stopping = true;
    }

    fn is_stopping(&self) -> bool {
        self.stopping
    }

    fn has_ended(&self) -> bool {
        self.proxies.have_ended()
    }
}

/// A config file that has no proxy.
pub fn no_proxy_in(file: &std::path::Path) -> Failure {
    let message = format!("there is no [[proxy]] in {}", file.display());
    Failure::usage(message, "`weir run --config FILE` guards its listeners")
}
