//! Names of servers that clients of a forward proxy ask for, looked up on a thread of their own:
//! getaddrinfo(3) blocks.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::mpsc;

use crate::runtime::{Clock, Handle, Mailbox, Sender, TaskId};

/// How long an answer is used: getaddrinfo(3) does not tell the records' own time to live.
const ANSWER_KEPT: Clock = 30_000;
/// How long a failure is.
const FAILURE_KEPT: Clock = 2_000;
/// Names remembered by one thread.
const NAMES_KEPT: usize = 4096;

/// A question to the resolver's thread.
pub struct Question {
    name: String,
    asker: Sender<Resolved>,
}

/// The resolver's answer.
pub struct Resolved {
    name: String,
    addresses: io::Result<Vec<IpAddr>>,
}

/// Starts the thread that looks names up; it ends when nobody can ask any more.
///
/// # Errors
/// The kernel gives no thread.
pub fn start_resolver() -> io::Result<mpsc::Sender<Question>> {
    let (questions, asked) = mpsc::channel::<Question>();
    let resolve = move || {
        for Question { name, asker } in asked {
            let found = (name.as_str(), 0).to_socket_addrs();
            let addresses = found.map(|found| found.map(|address| address.ip()).collect());
            asker.send(Resolved { name, addresses });
        }
    };
    std::thread::Builder::new()
        .name("weir-resolver".to_owned())
        .spawn(resolve)?;
    Ok(questions)
}

/// The names that one thread knows.
pub struct Names {
    known: RefCell<HashMap<String, Name>>,
    resolver: mpsc::Sender<Question>,
    answers: Sender<Resolved>,
}

enum Name {
    Asked(Vec<TaskId>),
    Found(Vec<IpAddr>, Clock),
    Failed(String, Clock),
}

impl Names {
    /// No names yet. Answers come to the mailbox behind `answers`: see [`learn`](Self::learn).
    pub fn new(resolver: mpsc::Sender<Question>, answers: Sender<Resolved>) -> Names {
        Names {
            known: RefCell::default(),
            resolver,
            answers,
        }
    }

    /// The addresses of a host with this port.
    ///
    /// # Errors
    /// The name has none, or cannot be looked up; `TimedOut` after the task's deadline.
    pub async fn resolve(
        &self,
        handle: &Handle,
        host: &str,
        port: u16,
    ) -> io::Result<Vec<SocketAddr>> {
        if let Ok(ip) = host.parse() {
            return Ok(vec![SocketAddr::new(ip, port)]);
        }
        let ips = handle.wait_for(|| self.ask(handle, host)).await??;
        Ok(ips
            .into_iter()
            .map(|ip| SocketAddr::new(ip, port))
            .collect())
    }

    /// What is known of a name; if nothing, the running task is woken when it is.
    fn ask(&self, handle: &Handle, host: &str) -> Option<io::Result<Vec<IpAddr>>> {
        let mut known = self.known.borrow_mut();
        match known.get_mut(host) {
            Some(Name::Found(ips, until)) if *until > handle.now() => Some(Ok(ips.clone())),
            Some(Name::Failed(why, until)) if *until > handle.now() => {
                Some(Err(io::Error::other(why.clone())))
            }
            Some(Name::Asked(waiting)) => {
                waiting.push(handle.running());
                None
            }
            _ => {
                if known.len() >= NAMES_KEPT {
                    known.retain(|_, name| matches!(name, Name::Asked(_)));
                }
                known.insert(host.to_owned(), Name::Asked(vec![handle.running()]));
                let question = Question {
                    name: host.to_owned(),
                    asker: self.answers.clone(),
                };
                match self.resolver.send(question) {
                    Ok(()) => None,
                    Err(_) => Some(Err(io::Error::other("the resolver has ended"))),
                }
            }
        }
    }

    /// Takes answers in, for ever.
    ///
    /// # Errors
    /// epoll fails.
    pub async fn learn(&self, handle: &Handle, answers: &Mailbox<Resolved>) -> io::Result<()> {
        loop {
            let Resolved { name, addresses } = answers.receive().await?;
            let now = handle.now();
            let answer = match addresses {
                Ok(ips) => Name::Found(ips, now + ANSWER_KEPT),
                Err(error) => Name::Failed(error.to_string(), now + FAILURE_KEPT),
            };
            let asked = self.known.borrow_mut().insert(name, answer);
            if let Some(Name::Asked(waiting)) = asked {
                waiting.into_iter().for_each(|task| handle.wake(task));
            }
        }
    }
}
