//! Where reports come from: the control sockets of this network namespace, as `weir status` asks them, or sockets of
//! the API, which may be another host's.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use nix::sys::eventfd::{EfdFlags, EventFd};
use weir_api::{Status, TopSources};
use weir_client::Client;

use super::data::Report;
use crate::commands::{status, why};
use crate::failure::{Failure, Result};
use crate::host::clock::unix_ms;

/// Where to ask.
#[derive(Debug, Clone)]
pub enum Source {
    /// The guard and the proxies of this network namespace; their runtime directory.
    Namespace(PathBuf),
    /// Sockets of the API: of a guard, of proxies, or of both.
    Api(Vec<Client>),
}

impl Source {
    /// The API sockets, or else the runtime directory.
    pub fn new(runtime_dir: &Path, sockets: &[PathBuf]) -> Source {
        match sockets {
            [] => Source::Namespace(runtime_dir.to_owned()),
            sockets => Source::Api(sockets.iter().map(Client::new).collect()),
        }
    }

    /// Whom it asks, for the title.
    pub fn name(&self) -> String {
        match self {
            Source::Namespace(_) => {
                let name = std::fs::read_to_string("/proc/sys/kernel/hostname");
                name.unwrap_or_default().trim().to_owned()
            }
            Source::Api(clients) => {
                let names = clients
                    .iter()
                    .map(|client| client.socket().display().to_string());
                names.collect::<Vec<_>>().join(", ")
            }
        }
    }

    fn status(&self) -> Result<Status> {
        match self {
            Source::Namespace(runtime_dir) => {
                let (mut status, silent) = status::collect(runtime_dir)?;
                if !status::runs(&status) {
                    return Err(status::not_running(runtime_dir, "top"));
                }
                // A process that does not answer does not hide the others.
                status
                    .warnings
                    .extend(silent.iter().map(ToString::to_string));
                Ok(status)
            }
            Source::Api(clients) => {
                let answers = clients.iter().map(ask_api);
                Ok(together(answers.collect::<Result<_>>()?))
            }
        }
    }

    /// The sources that the guard refuses most; `None` where none runs.
    fn top_sources(&self) -> Result<Option<TopSources>> {
        match self {
            Source::Namespace(runtime_dir) => why::top_sources(runtime_dir),
            Source::Api(clients) => {
                let of_guard = |client: &Client| match client.top_sources() {
                    // Proxies, which guard nothing.
                    Err(error) if error.is_unknown() => None,
                    answer => Some(answer.map_err(not_answered)),
                };
                clients.iter().find_map(of_guard).transpose()
            }
        }
    }

    /// Asks, and notes when. The time is halfway between question and answer.
    ///
    /// # Errors
    /// No weir runs there, or it does not answer.
    pub fn report(&self, start: Instant) -> Result<Report> {
        let asked = start.elapsed();
        let mut status = self.status()?;
        let at = asked + (start.elapsed() - asked) / 2;
        // A weir that does not know this question has answered the other one.
        let sources = self.top_sources().unwrap_or_else(|failure| {
            status.warnings.push(failure.to_string());
            None
        });
        Ok(Report {
            status,
            sources,
            at,
            unix_ms: unix_ms(),
        })
    }
}

fn ask_api(client: &Client) -> Result<Status> {
    client.status().map_err(not_answered)
}

fn not_answered(error: weir_client::Error) -> Failure {
    let hint = match error.is_denied() {
        true => "the keys `permissions` and `group` of [api] say who may ask",
        false => "is [api] in the config file, and the socket forwarded? docs/top.md",
    };
    Failure::failed(error.to_string(), hint)
}

/// The report of a guard with the proxies of all.
fn together(answers: Vec<Status>) -> Status {
    let merge = |mut all: Status, next: Status| {
        let (mut one, mut other) = match next.running && !all.running {
            true => (next, std::mem::take(&mut all)),
            false => (all, next),
        };
        one.proxies.append(&mut other.proxies);
        one.warnings.append(&mut other.warnings);
        one
    };
    answers.into_iter().reduce(merge).unwrap_or_default()
}

/// A thread that asks again and again.
pub struct Reporter {
    answers: Receiver<Result<Report>>,
    waker: Arc<EventFd>,
}

impl Reporter {
    /// Asks every so often, first after this time, until the reporter is dropped.
    ///
    /// # Errors
    /// The kernel gives no eventfd or thread.
    pub fn start(source: Source, start: Instant, every: Duration) -> Result<Reporter> {
        let waker = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)
            .map_err(|errno| Failure::io("make an eventfd", errno.into()))?;
        let waker = Arc::new(waker);
        let (sender, answers) = channel();
        let wakes = Arc::clone(&waker);
        let ask = move || {
            let mut due = Instant::now() + every;
            loop {
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                if sender.send(source.report(start)).is_err() {
                    return;
                }
                let _ = wakes.write(1);
                // After a slow answer, no questions are made up for.
                due = (due + every).max(Instant::now());
            }
        };
        let thread = std::thread::Builder::new().name("reports".to_owned());
        thread
            .spawn(ask)
            .map_err(|error| Failure::io("start a thread", error))?;
        Ok(Reporter { answers, waker })
    }

    /// The next answer that has come; `None` if none has.
    ///
    /// # Errors
    /// The thread has failed.
    pub fn next(&self) -> Result<Option<Result<Report>>> {
        let _ = self.waker.read();
        match self.answers.try_recv() {
            Ok(answer) => Ok(Some(answer)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => {
                Err(Failure::failed("the thread that asks weir has failed", ""))
            }
        }
    }
}

impl AsFd for Reporter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use weir_api::Proxy;

    use super::*;

    #[test]
    fn a_guard_and_proxies_of_several_sockets_are_one_report_in_any_order() {
        let guard = Status {
            running: true,
            warnings: vec!["late".into()],
            ..Status::default()
        };
        let proxies = Status {
            proxies: vec![Proxy::default()],
            ..Status::default()
        };
        for answers in [[&guard, &proxies], [&proxies, &guard]] {
            let status = together(answers.map(Clone::clone).into());
            assert!(status.running);
            assert_eq!((status.proxies.len(), status.warnings.len()), (1, 1));
        }
    }
}
