//! A question over HTTP on its way to the service's thread, and the answer on its way back.
//!
//! The threads that speak HTTP know nothing of weir: each request becomes a [`Job`] in one bounded queue, an
//! eventfd wakes the service's thread, and that thread answers between its other work. So one thread makes all
//! changes, one after the other, and a client that is slow to send or to read delays only clients of its endpoint.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use nix::sys::eventfd::{EfdFlags, EventFd};
use tokio::sync::oneshot;
use weir_api::{Answer, Question};

use crate::failure::{Failure, Result};
use crate::ipc::peer::Asker;

/// Requests that wait for the service's thread; the next ones are refused (503). More than the endpoints have
/// connections.
const WAITING: usize = 1024;

/// A request that waits for the service's thread.
pub struct Job {
    /// What the client asks.
    pub question: Question,
    /// The client.
    pub asker: Asker,
    answer: oneshot::Sender<Result<Answer>>,
}

impl Job {
    /// Answers. Nothing happens if the client has gone.
    pub fn answer(self, answer: Result<Answer>) {
        let _ = self.answer.send(answer);
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
    pub fn send(
        &self,
        asker: Asker,
        question: Question,
    ) -> Option<oneshot::Receiver<Result<Answer>>> {
        let (answer, answered) = oneshot::channel();
        let job = Job {
            question,
            asker,
            answer,
        };
        self.jobs.try_send(job).ok()?;
        // The counter of an eventfd cannot be full: the queue is bounded.
        let _ = self.waker.write(1);
        Some(answered)
    }
}
