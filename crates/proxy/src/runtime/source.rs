//! What is known of a socket's readiness, and the tasks that wait for it.

use std::cell::Cell;

use super::task::TaskId;

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

/// A socket's side of the event loop. There are as many as idle connections, so it is small.
pub struct Source {
    /// The task that waits until a way is ready.
    reader: Cell<Option<TaskId>>,
    writer: Cell<Option<TaskId>>,
    /// Its key in the poller, once it had to wait; else [`NO_KEY`].
    key: Cell<u32>,
    /// Whether a system call is worth a try. A guess at first, and exact after an EAGAIN.
    readable: Cell<bool>,
    writable: Cell<bool>,
    read_closed: Cell<bool>,
    broken: Cell<bool>,
}

const NO_KEY: u32 = u32::MAX;
const _: () = assert!(size_of::<Source>() == 24);

impl Source {
    pub fn new() -> Source {
        Source {
            reader: Cell::new(None),
            writer: Cell::new(None),
            key: Cell::new(NO_KEY),
            readable: Cell::new(true),
            writable: Cell::new(true),
            read_closed: Cell::new(false),
            broken: Cell::new(false),
        }
    }

    /// Its key in the poller; `None`: it is not registered there.
    pub fn key(&self) -> Option<usize> {
        let key = self.key.get();
        (key != NO_KEY).then_some(key as usize)
    }

    /// It is registered with the poller. Descriptors are fewer than 2^31, and so are keys.
    pub fn set_key(&self, key: usize) {
        self.key.set(key as u32);
    }

    /// It is registered no more.
    pub fn take_key(&self) -> Option<usize> {
        let key = self.key();
        self.key.set(NO_KEY);
        key
    }

    fn ready(&self, direction: Direction) -> &Cell<bool> {
        match direction {
            Direction::Read => &self.readable,
            Direction::Write => &self.writable,
        }
    }

    fn waiter(&self, direction: Direction) -> &Cell<Option<TaskId>> {
        match direction {
            Direction::Read => &self.reader,
            Direction::Write => &self.writer,
        }
    }

    fn set_ready(&self, direction: Direction) -> Option<TaskId> {
        self.ready(direction).set(true);
        self.waiter(direction).take()
    }

    pub fn is_ready(&self, direction: Direction) -> bool {
        self.ready(direction).get()
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
        self.readable.set(true);
    }

    /// A call said EAGAIN: the next event tells when to try again.
    pub fn clear(&self, direction: Direction) {
        self.ready(direction).set(false);
    }

    /// A read returned less than it could have: nothing is left, unless the end is.
    pub fn clear_after_short_read(&self) {
        self.readable.set(self.read_closed.get());
    }

    pub fn wait(&self, direction: Direction, task: TaskId) {
        self.waiter(direction).set(Some(task));
    }

    /// Takes note of an event and hands the tasks that waited for it to `wake`.
    pub fn update(&self, readiness: Readiness, mut wake: impl FnMut(TaskId)) {
        if readiness.read_closed {
            self.read_closed.set(true);
        }
        if readiness.broken {
            self.broken.set(true);
        }
        if readiness.read
            && let Some(task) = self.set_ready(Direction::Read)
        {
            wake(task);
        }
        if readiness.write
            && let Some(task) = self.set_ready(Direction::Write)
        {
            wake(task);
        }
    }
}
