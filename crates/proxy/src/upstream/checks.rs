//! Health checks: a thread of its own connects to each backend again and again, and puts what it
//! finds into its [`BackendHealth`]. The threads that move data only read that.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use weir_core::proxy::{BackendAddress, Health, HealthCheck, HealthState, Proxy, SendProxy};

use super::announced::{HealthChange, OnHealth};
use super::backend_set::BackendSet;
use super::health::{Availability, BackendHealth, described, show};
use super::shared_backend::SharedBackend;
use super::source::Sources;
use crate::http::{FieldSlots, Limits, Refusal, RequestFacts, read_reply, read_request};
use crate::proxy_protocol::{self, ProxyProtocol};
use crate::runtime::{Clock, Handle, Runtime, TcpStream, mailbox};
use crate::shortage;

/// Bytes of a reply's head that are received at once.
const RECEIVE_BYTES: usize = 4096;

/// The thread that checks; it ends when this is dropped, and then nothing is known any more.
pub struct Checks {
    backends: Arc<BackendSet>,
    thread: Option<JoinHandle<()>>,
}

/// What is known of backends before their first check, by address.
pub type KnownHealth = HashMap<SocketAddr, HealthState>;

impl Checks {
    /// Starts it, with what is known already of backends.
    ///
    /// # Errors
    /// The kernel gives no thread.
    pub fn start(
        settings: Arc<Proxy>,
        backends: Arc<BackendSet>,
        known: KnownHealth,
        on_health: Option<OnHealth>,
    ) -> io::Result<Checks> {
        let (started, starting) = sync_channel(1);
        let own = backends.clone();
        let thread = std::thread::Builder::new()
            .name("weir-health".to_owned())
            .spawn(move || {
                let _cleared = Cleared(&own);
                if let Err(error) = run(settings, &own, known, on_health, &started) {
                    tracing::error!("backends are not checked any more: {error}");
                }
            })?;
        starting.recv().map_err(io::Error::other)?;
        Ok(Checks {
            backends,
            thread: Some(thread),
        })
    }
}

impl Drop for Checks {
    fn drop(&mut self) {
        self.backends.end_checks();
        // Its panic has been reported.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// However the thread ends: what it said of backends must not stay for ever.
struct Cleared<'a>(&'a BackendSet);

impl Drop for Cleared<'_> {
    fn drop(&mut self) {
        let all = self.0.all();
        let health = all.iter().filter_map(|backend| backend.health.as_ref());
        health.for_each(BackendHealth::clear);
    }
}

/// What the tasks of the thread share.
struct Checker {
    settings: Arc<Proxy>,
    watched: RefCell<Vec<Watched>>,
    limits: Limits,
    on_health: Option<OnHealth>,
    next_task: Cell<u64>,
}

/// A backend that a task checks, as long as it is listed.
struct Watched {
    backend: Arc<SharedBackend>,
    state: HealthState,
    /// The task ends once it finds another one here.
    task: u64,
}

fn run(
    settings: Arc<Proxy>,
    backends: &BackendSet,
    known: KnownHealth,
    on_health: Option<OnHealth>,
    started: &SyncSender<()>,
) -> io::Result<()> {
    let runtime = Runtime::new()?;
    let handle = runtime.handle().clone();
    let (sender, changes) = mailbox(&handle)?;
    let listed = backends.join_checks(sender);
    let checker = Rc::new(Checker {
        watched: RefCell::default(),
        limits: Limits {
            head_bytes: settings.max_head as usize,
            ..Limits::default()
        },
        on_health,
        next_task: Cell::new(0),
        settings,
    });
    checker.clone().watch_all(&handle, &listed, &known);
    // Fails only if the whole server is gone.
    let _ = started.send(());
    runtime.run(async move {
        while let Some(listed) = changes.receive().await? {
            let nothing = KnownHealth::new();
            checker.clone().watch_all(&handle, &listed, &nothing);
        }
        io::Result::Ok(())
    })?
}

impl Checker {
    /// Checks these backends and no others from now on.
    fn watch_all(
        self: Rc<Self>,
        handle: &Handle,
        listed: &[Arc<SharedBackend>],
        known: &KnownHealth,
    ) {
        let mut watched = self.watched.borrow_mut();
        let mut before = std::mem::take(&mut *watched);
        for backend in listed {
            let is_same = |other: &Watched| Arc::ptr_eq(&other.backend, backend);
            if let Some(at) = before.iter().position(is_same) {
                watched.push(before.swap_remove(at));
                continue;
            }
            let task = self.next_task.get();
            self.next_task.set(task + 1);
            watched.push(Watched {
                backend: backend.clone(),
                state: known.get(&backend.address).copied().unwrap_or_default(),
                task,
            });
            let (checker, own, backend) = (self.clone(), handle.clone(), backend.clone());
            handle.spawn(async move { checker.watch(&own, &backend, task).await });
        }
        let gone = before.iter().filter_map(|it| it.backend.health.as_ref());
        gone.for_each(BackendHealth::clear);
        show(found(&watched));
    }

    /// Checks one backend, as long as this task is to.
    async fn watch(&self, handle: &Handle, backend: &SharedBackend, task: u64) {
        let (settings, address) = (&self.settings, backend.address);
        let sources = Sources::new(&settings.source, address);
        let interval = settings.health.interval.as_millis() as Clock;
        let Ok(question) = Question::new(&settings.health, &backend.setting.address) else {
            return tracing::error!(
                "backend {address} is not checked: its request would be malformed"
            );
        };
        loop {
            let began = handle.now();
            handle.set_deadline(settings.health.timeout);
            match self.check(handle, &sources, &question, address).await {
                Some(outcome) if !self.note(backend, task, &outcome) => return,
                Some(_) => {}
                None => backend
                    .health
                    .iter()
                    .for_each(BackendHealth::count_not_made),
            }
            let next = (began + interval).saturating_sub(handle.now());
            handle.sleep(Duration::from_millis(next)).await;
            if !self.watched.borrow().iter().any(|it| it.task == task) {
                return;
            }
        }
    }

    /// One check, within the task's deadline: what it found, or why it failed. `None`: this machine had no port, descriptor or
    /// memory for it, which says nothing of the backend.
    async fn check(
        &self,
        handle: &Handle,
        sources: &Sources,
        question: &Question,
        address: SocketAddr,
    ) -> Option<Result<String, String>> {
        let settings = &self.settings;
        match sources.connect(handle, address, &settings.server).await {
            Ok(stream) => Some(self.ask(&stream, question).await),
            Err(error) if shortage::is_behind(&error) => {
                shortage::warn("check a server", &error);
                None
            }
            Err(error) if shortage::is_of_ports(&error) => {
                shortage::warn_of_ports(&settings.name, address, &error);
                None
            }
            Err(error) => Some(Err(format!("cannot connect: {}", in_words(&error)))),
        }
    }

    /// What a connection to the backend says of it.
    async fn ask(&self, stream: &TcpStream, question: &Question) -> Result<String, String> {
        let settings = &self.settings;
        let asked = async {
            stream.send_all(&self.proxy_header(), false).await?;
            if settings.health.check == HealthCheck::Http {
                stream.send_all(&question.bytes, false).await?;
            }
            io::Result::Ok(())
        };
        let asked = asked.await;
        asked.map_err(|error| format!("cannot send: {}", in_words(&error)))?;
        if settings.health.check != HealthCheck::Http {
            return Ok("connected".to_owned());
        }
        let status = self.status(stream, &question.facts).await?;
        match settings.health.status.contains(status) {
            true => Ok(format!("status {status}")),
            false => Err(format!("status {status}")),
        }
    }

    /// A connection of the proxy's own says so (LOCAL, UNKNOWN).
    fn proxy_header(&self) -> Vec<u8> {
        let mut header = Vec::new();
        let version = match self.settings.send_proxy {
            SendProxy::Off => return header,
            SendProxy::V1 => ProxyProtocol::V1,
            SendProxy::V2 => ProxyProtocol::V2,
        };
        proxy_protocol::write(version, None, &mut header);
        header
    }

    /// The status of the final reply; interim ones are passed over.
    async fn status(&self, stream: &TcpStream, asked: &RequestFacts) -> Result<u16, String> {
        let mut received = Vec::new();
        loop {
            while let Some((status, length)) = self.read(&received, asked)? {
                if status >= 200 {
                    return Ok(status);
                }
                received.drain(..length);
            }
            let before = received.len();
            received.resize(before + RECEIVE_BYTES, 0);
            let bytes = stream.receive(&mut received[before..]).await;
            match bytes {
                Ok(0) => return Err("the connection ends before a reply".to_owned()),
                Ok(bytes) => received.truncate(before + bytes),
                Err(error) => return Err(format!("no reply: {}", in_words(&error))),
            }
        }
    }

    /// The status and the length of the head that is there, once it is.
    fn read(&self, received: &[u8], asked: &RequestFacts) -> Result<Option<(u16, usize)>, String> {
        let mut slots = FieldSlots::new();
        match read_reply(received, 0, asked, &self.limits, &mut slots) {
            Ok(head) => Ok(head.map(|head| (head.facts.status, head.facts.len))),
            Err(refusal) => Err(format!("no reply that could pass: {}", refusal.text())),
        }
    }

    /// Takes note of what a check came to; false if this task is to check no more.
    fn note(&self, backend: &SharedBackend, task: u64, outcome: &Result<String, String>) -> bool {
        let (passed, text) = match outcome {
            Ok(text) => (true, text),
            Err(text) => (false, text),
        };
        let mut watched = self.watched.borrow_mut();
        let (Some(at), Some(board)) = (
            watched.iter().position(|it| it.task == task),
            &backend.health,
        ) else {
            return false;
        };
        board.count(passed, text);
        let health = &self.settings.health;
        let before = watched[at].state.is_up();
        if !watched[at].state.note(passed, health) {
            return true;
        }
        let standing = show(found(&watched));
        if !passed {
            board.counters().downs.add(1);
            backend.look_again();
        }
        let (name, check) = (&self.settings.name, described(health));
        let backend = backend.described();
        match (before, passed) {
            (None, true) => tracing::debug!("proxy {name:?}: backend {backend} is up ({check})"),
            (_, true) => {
                let text = format!("proxy {name:?}: backend {backend} is up again ({check})");
                tracing::info!("{text}");
                self.say(backend, true, text);
            }
            (_, false) => {
                let text = format!("proxy {name:?}: backend {backend} is down ({check}): {text}");
                tracing::warn!("{text}");
                self.say(backend, false, text);
            }
        }
        if standing == Availability::AllDown {
            tracing::warn!("proxy {name:?}: all backends are down, so all are used");
        }
        true
    }

    fn say(&self, backend: String, is_up: bool, text: String) {
        if let Some(on_health) = &self.on_health {
            on_health.call(&HealthChange {
                proxy: self.settings.name.clone(),
                backend,
                is_up,
                text,
            });
        }
    }
}

/// What was found of each.
fn found(watched: &[Watched]) -> impl Iterator<Item = (&BackendHealth, HealthState)> + Clone {
    watched
        .iter()
        .filter_map(|it| Some((it.backend.health.as_ref()?, it.state)))
}

/// What a check asks.
pub struct Question {
    bytes: Vec<u8>,
    facts: RequestFacts,
}

impl Question {
    /// What the settings ask of a backend.
    ///
    /// # Errors
    /// `path` or `host` make no request that the proxy itself would let pass.
    pub fn new(health: &Health, address: &BackendAddress) -> Result<Question, Refusal> {
        let host = health.host.clone().unwrap_or_else(|| address.to_string());
        let version = env!("CARGO_PKG_VERSION");
        let head = format!(
            "GET {} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: weir/{version} (health check)\r\n\
             Accept: */*\r\nConnection: close\r\n\r\n",
            health.path
        );
        let bytes = head.into_bytes();
        let mut slots = FieldSlots::new();
        let read = read_request(&bytes, 0, &Limits::default(), &mut slots)?;
        let facts = read.ok_or(Refusal::RequestLine)?.facts;
        Ok(Question { bytes, facts })
    }
}

fn in_words(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::TimedOut => "health_timeout has passed".to_owned(),
        _ => error.to_string(),
    }
}
