//! The backends of a proxy, and which one is next.

use std::cell::{Cell, RefCell};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::rc::Rc;

use weir_core::proxy::{Balance, WeightedTurns};

use super::backend::{Backend, Lease, Link};
use super::limit::{Acquired, Notice, ThreadConnectionLimit};
use crate::runtime::{Clock, Handle, TcpStream};

/// The backends of a proxy, as one thread sees them.
pub struct Backends {
    list: Vec<Rc<Backend>>,
    balance: Balance,
    limit: Option<Rc<ThreadConnectionLimit>>,
    turns: RefCell<WeightedTurns>,
}

/// For whom a connection is.
#[derive(Clone, Copy)]
pub struct Requester<'a> {
    /// One that is gone waits no longer.
    pub client: &'a TcpStream,
    /// Its address, or what the proxy in front says of it.
    pub source: &'a SocketAddr,
    /// 0 the first.
    pub rank: u8,
    /// Set to the server that is tried, if the access log wants it.
    pub tried: Option<&'a Cell<Option<SocketAddr>>>,
}

impl Requester<'_> {
    /// A connection to this server is tried for it.
    pub fn note(&self, backend: &Backend) {
        if let Some(tried) = self.tried {
            tried.set(Some(backend.address));
        }
    }
}

impl Backends {
    /// Backends that take turns; behind a limit where connections to them are limited.
    pub fn new(
        list: Vec<Rc<Backend>>,
        balance: Balance,
        limit: Option<Rc<ThreadConnectionLimit>>,
    ) -> Backends {
        Backends {
            list,
            balance,
            limit,
            turns: RefCell::default(),
        }
    }

    /// All backends, once each, from the one that is next on; those that just failed come last, and
    /// those that health checks found down not at all, unless all are.
    pub fn walk(&self, now: Clock) -> BackendWalk {
        let count = self.list.len();
        let is_avoided = |index: &usize| self.list[*index].is_avoided();
        // Between two looks at the board it may seem that all are.
        let uses_all = (0..count).all(|index| is_avoided(&index));
        let usable = |index: &usize| uses_all || !is_avoided(index);
        let first = self.first(usable, now);
        BackendWalk {
            first,
            given: 0,
            now,
            uses_all,
        }
    }

    /// The next of the usable backends. Skipping those that are down is not enough: the backend behind them would get
    /// their share too.
    fn first(&self, usable: impl Fn(&usize) -> bool + Copy, now: Clock) -> usize {
        let count = self.list.len();
        let weighted = |index: usize| (index, self.list[index].weight());
        let all_usable = (0..count).filter(usable).map(weighted);
        let next = self.turns.borrow_mut().next(all_usable).unwrap_or(0);
        match self.balance {
            Balance::Turn => next,
            Balance::Least => {
                let from_next = (0..count).map(|step| (next + step) % count);
                let up = from_next
                    .filter(usable)
                    .filter(|index| !self.list[*index].was_down(now));
                let least = up.min_by(|a, b| self.list[*a].cmp_load(&self.list[*b]));
                least.unwrap_or(next)
            }
        }
    }

    /// An open connection, or a new one, to the next backend of the walk; `None` after the last.
    /// Where connections are limited it may have to wait for one.
    pub async fn next(
        &self,
        handle: &Handle,
        walk: &mut BackendWalk,
        requester: Requester<'_>,
    ) -> Option<io::Result<Link>> {
        match &self.limit {
            None => {
                let backend = walk.next(self)?;
                requester.note(backend);
                Some(backend.link(handle).await)
            }
            Some(limit) => {
                walk.attempt(self)?;
                let link = self.acquire(handle, limit, *walk, requester).await;
                if link.as_ref().is_err_and(is_final) {
                    walk.end(self);
                }
                Some(link)
            }
        }
    }

    async fn acquire(
        &self,
        handle: &Handle,
        limit: &Rc<ThreadConnectionLimit>,
        walk: BackendWalk,
        requester: Requester<'_>,
    ) -> io::Result<Link> {
        let acquired = limit
            .acquire(
                requester.client,
                walk.candidates(self, handle.now()),
                requester.rank,
            )
            .await?;
        match acquired {
            Acquired::Idle(index) => {
                requester.note(&self.list[index]);
                self.list[index].reuse_promised(handle).await
            }
            Acquired::New(permit) => {
                let backend = self.list[permit.backend()].clone();
                requester.note(&backend);
                Lease::new(backend, Some(permit)).connect(handle).await
            }
            Acquired::Stream(stream, permit) => {
                let backend = &self.list[permit.backend()];
                Ok(backend.reused(stream, Some(permit)))
            }
        }
    }

    /// Connects to the next backend in turn, or to one after it if that fails; each is tried once.
    ///
    /// # Errors
    /// That of the last one tried.
    pub async fn connect(&self, handle: &Handle, requester: Requester<'_>) -> io::Result<Link> {
        let mut last = io::Error::from(ErrorKind::NotFound);
        let mut walk = self.walk(handle.now());
        while let Some(link) = self.next(handle, &mut walk, requester).await {
            match link {
                Ok(link) => return Ok(link),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Acts on what another thread says of slots.
    pub fn handle_notice(&self, notice: Notice) {
        if let Some(limit) = &self.limit
            && let Some(backend) = limit.handle_notice(notice)
        {
            self.list[backend].give_up_idle();
        }
    }

    /// Closes connections that were not used since `then`, and tries backends again that failed.
    pub fn sweep(&self, then: Clock) {
        self.list.iter().for_each(|backend| backend.sweep(then));
        if let Some(limit) = &self.limit {
            limit.look_again();
        }
    }
}

/// Whether no other backend can help: there is no slot, or no client.
fn is_final(error: &io::Error) -> bool {
    let kind = error.kind();
    kind == ErrorKind::QuotaExceeded || kind == ErrorKind::ConnectionAborted
}

/// A walk through the backends: once round for those that are up, once more for the others.
#[derive(Debug, Clone, Copy)]
pub struct BackendWalk {
    first: usize,
    given: usize,
    /// Backends that fail during the walk are not given again: their failure is later than this.
    now: Clock,
    /// Also those that are down, because all are.
    uses_all: bool,
}

impl BackendWalk {
    /// The next backend to try.
    fn next<'a>(&mut self, backends: &'a Backends) -> Option<&'a Rc<Backend>> {
        let count = backends.list.len();
        while self.given < 2 * count {
            let second_round = self.given >= count;
            let backend = &backends.list[(self.first + self.given) % count];
            self.given += 1;
            let usable = self.uses_all || !backend.is_avoided();
            if usable && second_round == backend.was_down(self.now) {
                return Some(backend);
            }
        }
        None
    }

    /// Counts an attempt at whichever backend has a slot; as many as there are backends.
    fn attempt(&mut self, backends: &Backends) -> Option<()> {
        let more = self.given < backends.list.len();
        self.given += 1;
        more.then_some(())
    }

    /// No more attempts.
    fn end(&mut self, backends: &Backends) {
        self.given = 2 * backends.list.len();
    }

    /// Those that may be tried, by number: the ones that did not just fail, or all if all did.
    fn candidates<'a>(
        &self,
        backends: &'a Backends,
        now: Clock,
    ) -> impl Iterator<Item = usize> + Clone + 'a {
        let (first, count, uses_all) = (self.first, backends.list.len(), self.uses_all);
        let usable = move |index: &usize| uses_all || !backends.list[*index].is_avoided();
        // Also those that failed in this turn of the loop.
        let is_up = move |index: &usize| !backends.list[*index].was_down(now + 1);
        let none_is_up = !(0..count).any(|index| usable(&index) && is_up(&index));
        (0..count)
            .map(move |step| (first + step) % count)
            .filter(move |index| usable(index) && (none_is_up || is_up(index)))
    }
}
