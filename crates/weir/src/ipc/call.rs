//! A request over HTTP on its way to the service's thread, and the answer on its way back.
//!
//! The threads that speak HTTP know nothing of weir: each request becomes a [`Job`] in one bounded queue, an
//! eventfd wakes the service's thread, and that thread answers between its other work. So one thread makes all
//! changes, one after the other, and a client that is slow to send or to read delays only clients of its endpoint.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use axum::body::Bytes;
use nix::sys::eventfd::{EfdFlags, EventFd};
use serde_json::{Map, Value};
use tokio::sync::oneshot;

use crate::failure::{Failure, Result};
use crate::ipc::peer::Peer;

/// Requests that wait for the service's thread; the next ones are refused (503). More than the endpoints have
/// connections.
const WAITING: usize = 1024;

/// What a client asks for.
#[derive(Debug, Clone, PartialEq)]
pub enum Call {
    /// The report of `weir status`.
    Status,
    /// Every listener.
    Listeners,
    /// One listener.
    Listener(String),
    /// Every proxy.
    Proxies,
    /// One proxy.
    Proxy(String),
    /// Every class, `other` too.
    Classes,
    /// One class.
    Class(String),
    /// The controller.
    Controller,
    /// The events after the one with this number, so many at most.
    Events(u64, usize),
    /// The sources that are refused most.
    Sources,
    /// Why an address was refused.
    Why(IpAddr),
    /// Settings that fit what the listeners have gone through, in so many seconds at least.
    Suggestions(Option<u64>),
    /// All figures as OpenMetrics text.
    Metrics,
    /// A change of the classes.
    Change(Change),
}

/// A change of the classes. The settings are the keys of `[[class]]`, as JSON.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// A new class.
    Add(Map<String, Value>),
    /// A class, new or in place of the one of this name.
    Put(String, Map<String, Value>),
    /// Some settings of a class.
    Set(String, Map<String, Value>),
    /// A class is to go.
    Remove(String),
}

impl Change {
    /// The class that is to change, for the log.
    pub fn class(&self) -> String {
        let name = match self {
            Change::Add(settings) => settings.get("name").and_then(Value::as_str),
            Change::Put(name, _) | Change::Set(name, _) | Change::Remove(name) => {
                Some(name.as_str())
            }
        };
        name.map_or("a class".to_owned(), |name| format!("class {name:?}"))
    }
}

/// An answer, or why there is none.
#[derive(Debug)]
pub enum Reply {
    /// 200, or 201 for something new.
    Json(u16, Value),
    /// 200, OpenMetrics text.
    Text(Bytes),
    /// The HTTP status, and the failure.
    Refused(u16, Failure),
}

/// A request that waits for the service's thread.
pub struct Job {
    /// What the client asks for.
    pub call: Call,
    /// The client.
    pub peer: Peer,
    reply: oneshot::Sender<Reply>,
}

impl Job {
    /// Answers. Nothing happens if the client has gone.
    pub fn reply(self, reply: Reply) {
        let _ = self.reply.send(reply);
    }
}

/// The service's end: the requests that have come, of all endpoints.
pub struct Calls {
    jobs: Receiver<Job>,
    line: Line,
}

impl Calls {
    /// An empty queue.
    ///
    /// # Errors
    /// The kernel gives no eventfd.
    pub fn new() -> Result<Calls> {
        let waker = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)
            .map_err(|errno| Failure::io("make an eventfd", errno.into()))?;
        let (sender, jobs) = sync_channel(WAITING);
        let line = Line {
            jobs: sender,
            waker: Arc::new(waker),
        };
        Ok(Calls { jobs, line })
    }

    /// An endpoint's end.
    pub fn line(&self) -> Line {
        self.line.clone()
    }

    /// The requests that have come.
    pub fn take(&self) -> Vec<Job> {
        // The eventfd first: a request that comes after it wakes the thread again.
        let _ = self.line.waker.read();
        self.jobs.try_iter().collect()
    }
}

impl AsFd for Calls {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.line.waker.as_fd()
    }
}

/// An endpoint's end.
#[derive(Clone)]
pub struct Line {
    jobs: SyncSender<Job>,
    waker: Arc<EventFd>,
}

impl Line {
    /// Queues a request. The receiver fails if the service has gone. `None`: the queue is full.
    pub fn send(&self, peer: Peer, call: Call) -> Option<oneshot::Receiver<Reply>> {
        let (reply, answer) = oneshot::channel();
        self.jobs.try_send(Job { call, peer, reply }).ok()?;
        // The counter of an eventfd cannot be full: the queue is bounded.
        let _ = self.waker.write(1);
        Some(answer)
    }
}
