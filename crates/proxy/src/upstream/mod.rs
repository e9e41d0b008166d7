//! The servers behind the proxy: which one is next, and connections to it.

mod backend;
mod names;
mod origins;
mod source;

pub use backend::{Backend, Link};
pub use names::{Names, Question, Resolved, start_resolver};
pub use origins::Origins;

use std::cell::Cell;
use std::io;
use std::rc::Rc;

use crate::runtime::{Clock, Handle};

/// The backends of a proxy, as one thread sees them.
pub struct Backends {
    list: Vec<Rc<Backend>>,
    next: Cell<usize>,
}

impl Backends {
    /// Backends that take turns.
    pub fn new(list: Vec<Rc<Backend>>) -> Backends {
        Backends {
            list,
            next: Cell::new(0),
        }
    }

    /// All of them.
    pub fn all(&self) -> &[Rc<Backend>] {
        &self.list
    }

    /// All backends, once each, from the next in turn on; those that just failed come last.
    pub fn in_turn(&self, now: Clock) -> Turn {
        let first = self.next.get();
        self.next.set((first + 1) % self.list.len().max(1));
        Turn {
            first,
            given: 0,
            now,
        }
    }

    /// Connects to the next backend in turn, or to one after it if that fails; each is tried once.
    ///
    /// # Errors
    /// That of the last one tried.
    pub async fn connect(&self, handle: &Handle) -> io::Result<Link> {
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        let mut turn = self.in_turn(handle.now());
        while let Some(backend) = turn.next(self) {
            match backend.connect(handle).await {
                Ok(link) => return Ok(link),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

/// A walk through the backends: once round for those that are up, once more for the others.
#[derive(Debug, Clone, Copy)]
pub struct Turn {
    first: usize,
    given: usize,
    /// Backends that fail during the walk are not given again: their failure is later than this.
    now: Clock,
}

impl Turn {
    /// The next backend to try.
    pub fn next<'a>(&mut self, backends: &'a Backends) -> Option<&'a Rc<Backend>> {
        let count = backends.list.len();
        while self.given < 2 * count {
            let second_round = self.given >= count;
            let backend = &backends.list[(self.first + self.given) % count];
            self.given += 1;
            if second_round == backend.was_down(self.now) {
                return Some(backend);
            }
        }
        None
    }
}
