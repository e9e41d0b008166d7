//! Health checks: a thread of its own connects to each backend again and again, and puts what it
//! finds on the [`HealthBoard`]. The threads that move data only read that.

use std::cell::RefCell;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use weir_core::proxy::{Health, HealthCheck, HealthState, Proxy, SendProxy};

use super::health::{Availability, HealthBoard, described};
use super::source::Sources;
use crate::http::{FieldSlots, Limits, Refusal, RequestFacts, read_reply, read_request};
use crate::proxy_protocol::{self, ProxyProtocol};
use crate::runtime::{Clock, Handle, Runtime, Sender, TcpStream, mailbox};

/// Bytes of a reply's head that are received at once.
const RECEIVE_BYTES: usize = 4096;

/// The thread that checks; it ends when this is dropped, and then nothing is known any more.
pub struct Checks {
    end: Sender<()>,
    thread: Option<JoinHandle<()>>,
}

impl Checks {
    /// Starts it, with what is known already of each backend.
    ///
    /// # Errors
    /// The kernel gives no thread.
    pub fn start(
        settings: Arc<Proxy>,
        board: Arc<HealthBoard>,
        states: Vec<HealthState>,
    ) -> io::Result<Checks> {
        board.show(&states);
        let (started, starting) = sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("weir-health".to_owned())
            .spawn(move || {
                let _cleared = Cleared(&board);
                if let Err(error) = run(settings, &board, states, &started) {
                    tracing::error!("backends are not checked any more: {error}");
                }
            })?;
        let end = starting.recv().map_err(io::Error::other)?;
        Ok(Checks {
            end,
            thread: Some(thread),
        })
    }
}

impl Drop for Checks {
    fn drop(&mut self) {
        self.end.send(());
        // Its panic has been reported.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// However the thread ends: what it said of backends must not stay for ever.
struct Cleared<'a>(&'a HealthBoard);

impl Drop for Cleared<'_> {
    fn drop(&mut self) {
        self.0.clear();
    }
}

/// What the tasks of the thread share.
struct Checker {
    settings: Arc<Proxy>,
    board: Arc<HealthBoard>,
    states: RefCell<Vec<HealthState>>,
    limits: Limits,
}

fn run(
    settings: Arc<Proxy>,
    board: &Arc<HealthBoard>,
    states: Vec<HealthState>,
    started: &SyncSender<Sender<()>>,
) -> io::Result<()> {
    let runtime = Runtime::new()?;
    let handle = runtime.handle().clone();
    let (end, ended) = mailbox(&handle)?;
    // Fails only if the whole server is gone.
    let _ = started.send(end);
    let checker = Rc::new(Checker {
        states: RefCell::new(states),
        limits: Limits {
            head_bytes: settings.max_head as usize,
            ..Limits::default()
        },
        board: board.clone(),
        settings,
    });
    runtime.run(async move {
        for (index, backend) in checker.settings.backends.iter().enumerate() {
            let (checker, own, address) = (checker.clone(), handle.clone(), backend.address);
            handle.spawn(async move { checker.watch(&own, index, address).await });
        }
        ended.receive().await
    })?
}

impl Checker {
    /// Checks one backend, for ever.
    async fn watch(&self, handle: &Handle, index: usize, address: SocketAddr) {
        let settings = &self.settings;
        let sources = Sources::new(&settings.source, address);
        let interval = settings.health.interval.as_millis() as Clock;
        let Ok(question) = Question::new(&settings.health, address) else {
            return tracing::error!(
                "backend {address} is not checked: its request would be malformed"
            );
        };
        loop {
            let began = handle.now();
            handle.set_deadline(settings.health.timeout);
            let outcome = self.check(handle, &sources, &question, address).await;
            self.note(index, address, &outcome);
            let next = (began + interval).saturating_sub(handle.now());
            handle.sleep(Duration::from_millis(next)).await;
        }
    }

    /// One check, within the task's deadline: what it found, or why it failed.
    async fn check(
        &self,
        handle: &Handle,
        sources: &Sources,
        question: &Question,
        address: SocketAddr,
    ) -> Result<String, String> {
        let settings = &self.settings;
        let connected = sources.connect(handle, address, &settings.server).await;
        let stream = connected.map_err(|error| format!("cannot connect: {}", in_words(&error)))?;
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
        let status = self.status(&stream, &question.facts).await?;
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

    fn note(&self, index: usize, address: SocketAddr, outcome: &Result<String, String>) {
        let (passed, text) = match outcome {
            Ok(text) => (true, text),
            Err(text) => (false, text),
        };
        self.board.count(index, passed, text);
        let health = &self.settings.health;
        let mut states = self.states.borrow_mut();
        let before = states[index].is_up();
        if !states[index].note(passed, health) {
            return;
        }
        let standing = self.board.show(&states);
        if !passed {
            self.board.counters(index).downs.add(1);
        }
        let (name, check) = (&self.settings.name, described(health));
        match (before, passed) {
            (None, true) => tracing::debug!("proxy {name:?}: backend {address} is up ({check})"),
            (_, true) => tracing::info!("proxy {name:?}: backend {address} is up again ({check})"),
            (_, false) => {
                tracing::warn!("proxy {name:?}: backend {address} is down ({check}): {text}");
            }
        }
        if standing == Availability::AllDown {
            tracing::warn!("proxy {name:?}: all backends are down, so all are used");
        }
    }
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
    pub fn new(health: &Health, address: SocketAddr) -> Result<Question, Refusal> {
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
