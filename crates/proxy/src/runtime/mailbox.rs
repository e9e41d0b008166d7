//! Messages from other threads to a task.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use super::executor::Handle;
use super::poller::Trigger;
use super::source::{Direction, Source};

struct Shared<T> {
    messages: Mutex<VecDeque<T>>,
    eventfd: OwnedFd,
}

/// Puts messages into a [`Mailbox`], from any thread.
pub struct Sender<T>(Arc<Shared<T>>);

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Sender(self.0.clone())
    }
}

/// Where a task finds its messages.
pub struct Mailbox<T> {
    shared: Arc<Shared<T>>,
    source: Rc<Source>,
    handle: Handle,
}

/// A mailbox of this loop and the way to it.
///
/// # Errors
/// The kernel gives no eventfd.
pub fn mailbox<T>(handle: &Handle) -> io::Result<(Sender<T>, Mailbox<T>)> {
    let shared = Arc::new(Shared {
        messages: Mutex::default(),
        eventfd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
    });
    let mailbox = Mailbox {
        shared: shared.clone(),
        source: Rc::new(Source::new()),
        handle: handle.clone(),
    };
    Ok((Sender(shared), mailbox))
}

impl<T> Sender<T> {
    /// Puts a message in.
    pub fn send(&self, message: T) {
        let messages = self.0.messages.lock();
        messages
            .unwrap_or_else(PoisonError::into_inner)
            .push_back(message);
        // Fails only when 2^64 - 2 wake-ups are unread, and then the descriptor is readable anyway.
        let _ = rustix::io::write(&self.0.eventfd, &1u64.to_ne_bytes());
    }
}

impl<T> Mailbox<T> {
    /// The next message.
    ///
    /// # Errors
    /// The task's deadline passed, or epoll fails.
    pub async fn receive(&self) -> io::Result<T> {
        let (eventfd, source) = (&self.shared.eventfd, &self.source);
        loop {
            // A task that asks again and again, like the one that accepts, learns it from the event and makes no call.
            self.handle
                .ready(eventfd, source, Trigger::Edge, Direction::Read, || false)
                .await?;
            if let Some(message) = self.take() {
                return Ok(message);
            }
            if rustix::io::read(eventfd, &mut [0; 8]).is_err() {
                source.clear(Direction::Read);
            }
        }
    }

    fn take(&self) -> Option<T> {
        let messages = self.shared.messages.lock();
        messages.unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

impl<T> Drop for Mailbox<T> {
    fn drop(&mut self) {
        // Senders may keep the descriptor open: its events then find a source that is forgotten.
        self.handle.forget(&self.source);
    }
}
