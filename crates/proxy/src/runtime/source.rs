//! What is known of a socket's readiness, and who waits for it.

use std::cell::Cell;

use super::executor::TaskId;

/// One of the two ways of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Bytes that come in.
    Read,
    /// Bytes that go out.
    Write,
}

/// What an event says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Readiness {
    pub read: bool,
    pub write: bool,
    /// The peer will send no more: an end or an error waits to be read behind the data.
    pub read_closed: bool,
    /// Both ways are over: the connection was reset, or closed on both sides.
    pub broken: bool,
}

/// A socket's side of the event loop.
pub struct Source {
    read: Side,
    write: Side,
    read_closed: Cell<bool>,
    broken: Cell<bool>,
    /// Its key in the poller, once it had to wait.
    pub key: Cell<Option<usize>>,
}

struct Side {
    /// Whether a system call is worth a try. A guess at first, and exact after an EAGAIN.
    ready: Cell<bool>,
    waiter: Cell<Option<TaskId>>,
}

impl Side {
    fn new() -> Side {
        Side {
            ready: Cell::new(true),
            waiter: Cell::new(None),
        }
    }

    fn set_ready(&self) -> Option<TaskId> {
        self.ready.set(true);
        self.waiter.take()
    }
}

impl Source {
    pub fn new() -> Source {
        Source {
            read: Side::new(),
            write: Side::new(),
            read_closed: Cell::new(false),
            broken: Cell::new(false),
            key: Cell::new(None),
        }
    }

    fn side(&self, direction: Direction) -> &Side {
        match direction {
            Direction::Read => &self.read,
            Direction::Write => &self.write,
        }
    }

    pub fn is_ready(&self, direction: Direction) -> bool {
        self.side(direction).ready.get()
    }

    /// Whether the connection is known to be over, in both ways.
    pub fn is_broken(&self) -> bool {
        self.broken.get()
    }

    /// Whether the peer is known to send no more.
    pub fn is_read_closed(&self) -> bool {
        self.read_closed.get()
    }

    /// Nothing is known of what has come.
    pub fn guess_readable(&self) {
        self.read.ready.set(true);
    }

    /// A call said EAGAIN: the next event tells when to try again.
    pub fn clear(&self, direction: Direction) {
        self.side(direction).ready.set(false);
    }

    /// A read returned less than it could have: nothing is left, unless the end is.
    pub fn clear_after_short_read(&self) {
        self.read.ready.set(self.read_closed.get());
    }

    pub fn wait(&self, direction: Direction, task: TaskId) {
        self.side(direction).waiter.set(Some(task));
    }

    /// Takes note of an event and hands those who waited for it to `wake`.
    pub fn update(&self, readiness: Readiness, mut wake: impl FnMut(TaskId)) {
        if readiness.read_closed {
            self.read_closed.set(true);
        }
        if readiness.broken {
            self.broken.set(true);
        }
        if readiness.read
            && let Some(task) = self.read.set_ready()
        {
            wake(task);
        }
        if readiness.write
            && let Some(task) = self.write.set_ready()
        {
            wake(task);
        }
    }
}
