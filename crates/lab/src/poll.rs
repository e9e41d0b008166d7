//! Sockets that are watched for events: what the loops of the lab's clients and servers have in common.
//!
//! A loop is `for event in 0..poll.wait(timeout)?`, and [`Poll::key`] says what each event is about.

use std::os::fd::AsFd;
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use crate::error::{Context, Result};

/// Events that one wait takes.
const AT_ONCE: usize = 256;

/// As long as there is something to read.
pub const INPUT: EpollFlags = EpollFlags::EPOLLIN;
/// Once each time that something can be read or written: the first event of a new socket follows at once if it is
/// connected.
pub const EDGES: EpollFlags = EpollFlags::EPOLLIN
    .union(EpollFlags::EPOLLOUT)
    .union(EpollFlags::EPOLLET);

/// Watches sockets.
#[derive(Debug)]
pub struct Poll {
    epoll: Arc<Epoll>,
    events: Box<[EpollEvent]>,
}

impl Poll {
    /// Watches nothing yet.
    pub fn new() -> Result<Poll> {
        let epoll =
            Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context("cannot create an epoll")?;
        Ok(Poll {
            epoll: Arc::new(epoll),
            events: vec![EpollEvent::empty(); AT_ONCE].into(),
        })
    }

    /// The descriptor, for another epoll: it has an event when one of the watched sockets has.
    pub fn epoll(&self) -> Arc<Epoll> {
        self.epoll.clone()
    }

    /// Watches a socket until it is closed; its events have this key.
    pub fn watch(&self, socket: &impl AsFd, key: u64, events: EpollFlags) -> Result<()> {
        let event = EpollEvent::new(events, key);
        self.epoll
            .add(socket, event)
            .context("cannot watch a socket")
    }

    /// Watches it for other events from now on.
    pub fn change(&self, socket: &impl AsFd, key: u64, events: EpollFlags) -> Result<()> {
        let mut event = EpollEvent::new(events, key);
        self.epoll
            .modify(socket, &mut event)
            .context("cannot watch a socket for other events")
    }

    /// Watches it no longer.
    pub fn leave(&self, socket: &impl AsFd) -> Result<()> {
        self.epoll
            .delete(socket)
            .context("cannot stop to watch a socket")
    }

    /// Waits for events so long at most, ms; how many there are. A signal is none.
    pub fn wait(&mut self, timeout: impl Into<EpollTimeout>) -> Result<usize> {
        match self.epoll.wait(&mut self.events, timeout) {
            Err(Errno::EINTR) => Ok(0),
            ready => ready.context("cannot wait for events of sockets"),
        }
    }

    /// The key of an event of the last wait, by its number.
    pub fn key(&self, event: usize) -> u64 {
        self.events[event].data()
    }

    /// What it says of the socket.
    pub fn says(&self, event: usize) -> EpollFlags {
        self.events[event].events()
    }
}
