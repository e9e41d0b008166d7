//! The backends of a proxy, and which one is next.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use weir_core::proxy::{Balance, Proxy, WeightedTurns};

use super::backend::{Backend, BackendContext, Lease, Link};
use super::limit::{Acquired, Notice, ThreadConnectionLimit};
use super::shared_backend::SharedBackend;
use crate::runtime::{Clock, Handle, TcpStream};

/// The backends of a proxy, as one thread sees them.
pub struct Backends {
    list: RefCell<Rc<[Rc<Backend>]>>,
    /// Those of the list, and those before it that still have a connection, by number.
    known: RefCell<HashMap<usize, Rc<Backend>>>,
    limit: Option<Rc<ThreadConnectionLimit>>,
    turns: RefCell<WeightedTurns>,
    settings: Arc<Proxy>,
    thread: usize,
    /// Idle connections to each that this thread keeps at most.
    max_idle: usize,
}

/// The backends are names, and none has been resolved yet.
#[derive(Debug, thiserror::Error)]
#[error("no backend has an address: its name has not been resolved")]
struct NoAddress;

/// Whether there is no backend because no name of one has been resolved.
pub fn is_without_address(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<NoAddress>())
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
    /// The backends of `list`, for the thread of this number; behind a limit where connections to them are limited.
    pub fn new(
        list: &[Arc<SharedBackend>],
        thread: usize,
        settings: Arc<Proxy>,
        limit: Option<Rc<ThreadConnectionLimit>>,
        max_idle: usize,
    ) -> Backends {
        let backends = Backends {
            list: RefCell::new(Rc::default()),
            known: RefCell::default(),
            limit,
            turns: RefCell::default(),
            settings,
            thread,
            max_idle,
        };
        backends.set_list(list);
        backends
    }

    /// These are the backends from now on. Those that stay keep their connections; the others get no new one.
    fn set_list(&self, list: &[Arc<SharedBackend>]) {
        let mut known = self.known.borrow_mut();
        let backend = |shared: &Arc<SharedBackend>| {
            let is_same = |backend: &&Rc<Backend>| backend.is_of(shared);
            let backend = known.get(&shared.number).filter(is_same).cloned();
            let backend = backend.unwrap_or_else(|| self.backend(shared));
            known.insert(shared.number, backend.clone());
            backend
        };
        let list: Rc<[Rc<Backend>]> = list.iter().map(backend).collect();
        let gone = |backend: &Rc<Backend>| !list.iter().any(|other| Rc::ptr_eq(other, backend));
        let (gone, stay): (Vec<Rc<Backend>>, Vec<Rc<Backend>>) =
            known.values().cloned().partition(gone);
        drop(known);
        *self.list.borrow_mut() = list;
        // Not under the borrow: a connection that is closed may free a slot for another.
        stay.iter().for_each(|backend| backend.set_gone(false));
        gone.iter().for_each(|backend| backend.set_gone(true));
    }

    fn backend(&self, shared: &Arc<SharedBackend>) -> Rc<Backend> {
        let account = &shared.accounts[self.thread];
        let context = BackendContext {
            shared: Some(shared.clone()),
            max_idle: self.max_idle,
            limit: self.limit.clone(),
            gauges: account.gauges.clone(),
        };
        let (counters, settings) = (account.counters.clone(), self.settings.clone());
        Rc::new(Backend::new(shared.address, counters, settings, context))
    }

    fn list(&self) -> Rc<[Rc<Backend>]> {
        self.list.borrow().clone()
    }

    /// The backend of a slot; `None` if it has gone meanwhile.
    fn of_slot(&self, number: usize) -> Option<Rc<Backend>> {
        self.known.borrow().get(&number).cloned()
    }

    /// All backends, once each, from the one that is next on; those that just failed come last, and
    /// those that health checks found down not at all, unless all are.
    pub fn walk(&self, now: Clock) -> BackendWalk {
        let list = self.list();
        // Between two looks at what was found it may seem that all are.
        let uses_all = list.iter().all(|backend| backend.is_avoided());
        let usable = |index: &usize| uses_all || !list[*index].is_avoided();
        let first = self.first(&list, usable, now);
        BackendWalk {
            list,
            first,
            given: 0,
            tried: Vec::new(),
            last: None,
            now,
            uses_all,
        }
    }

    /// The next of the usable backends. Skipping those that are down is not enough: the backend behind them would get
    /// their share too.
    fn first(
        &self,
        list: &[Rc<Backend>],
        usable: impl Fn(&usize) -> bool + Copy,
        now: Clock,
    ) -> usize {
        let count = list.len();
        let weighted = |index: usize| (list[index].number(), list[index].weight());
        let all_usable = (0..count).filter(usable).map(weighted);
        let next = self.turns.borrow_mut().next(all_usable);
        let of_number = |number| list.iter().position(|backend| backend.number() == number);
        let next = next.and_then(of_number).unwrap_or(0);
        match self.settings.balance {
            Balance::Turn => next,
            Balance::Least => {
                let from_next = (0..count).map(|step| (next + step) % count);
                let up = from_next
                    .filter(usable)
                    .filter(|index| !list[*index].was_down(now));
                let least = up.min_by(|a, b| list[*a].cmp_load(&list[*b]));
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
        if walk.list.is_empty() {
            let is_first = std::mem::replace(&mut walk.given, 1) == 0;
            return is_first.then(|| Err(io::Error::new(ErrorKind::NotFound, NoAddress)));
        }
        match &self.limit {
            None => {
                let backend = walk.next()?;
                requester.note(&backend);
                Some(backend.link(handle).await)
            }
            Some(limit) => {
                walk.attempt()?;
                let link = self.acquire(handle, limit, walk, requester).await;
                if link.as_ref().is_err_and(is_final) {
                    walk.end();
                }
                Some(link)
            }
        }
    }

    async fn acquire(
        &self,
        handle: &Handle,
        limit: &Rc<ThreadConnectionLimit>,
        walk: &mut BackendWalk,
        requester: Requester<'_>,
    ) -> io::Result<Link> {
        let acquired = limit
            .acquire(
                requester.client,
                walk.candidates(handle.now()),
                requester.rank,
            )
            .await?;
        let number = match &acquired {
            Acquired::Idle(number) => *number,
            Acquired::New(permit) | Acquired::Stream(_, permit) => permit.backend(),
        };
        walk.last = Some(number);
        let backend = self.of_slot(number).ok_or(ErrorKind::NotFound)?;
        requester.note(&backend);
        match acquired {
            Acquired::Idle(_) => backend.reuse_promised(handle).await,
            Acquired::New(permit) => Lease::new(backend, Some(permit)).connect(handle).await,
            Acquired::Stream(stream, permit) => Ok(backend.reused(stream, Some(permit))),
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

    /// Acts on what another thread says of backends and their slots.
    pub fn handle_notice(&self, notice: Notice) {
        if let Notice::Listed(list) = &notice {
            self.set_list(list);
        }
        let Some(limit) = &self.limit else {
            return;
        };
        match notice {
            // A new backend has free slots.
            Notice::Listed(_) => limit.look_again(),
            Notice::Wanted(number) => {
                if let Some(backend) = self.of_slot(number) {
                    backend.give_up_idle();
                }
            }
            Notice::Given(waiter, number, fd) => limit.pass_on(waiter, number, fd),
            Notice::Displaced(waiter) => limit.displace(waiter),
        }
    }

    /// Closes connections that were not used since `then`, forgets backends that have gone and have none, and tries
    /// backends again that failed.
    pub fn sweep(&self, then: Clock) {
        let known: Vec<Rc<Backend>> = self.known.borrow().values().cloned().collect();
        known.iter().for_each(|backend| backend.sweep(then));
        drop(known);
        let is_over = |backend: &Rc<Backend>| backend.is_gone() && backend.is_unused();
        let mut known = self.known.borrow_mut();
        known.retain(|_, backend| !is_over(backend));
        drop(known);
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
#[derive(Clone)]
pub struct BackendWalk {
    /// Those that there were when it began.
    list: Rc<[Rc<Backend>]>,
    first: usize,
    given: usize,
    /// Where connections are limited: those that an attempt has gone to, by number.
    tried: Vec<usize>,
    /// Where the last attempt has gone to. Apart from those before it, as most walks have one attempt and need no list.
    last: Option<usize>,
    /// Backends that fail during the walk are not given again: their failure is later than this.
    now: Clock,
    /// Also those that are down, because all are.
    uses_all: bool,
}

impl BackendWalk {
    /// The next backend to try.
    fn next(&mut self) -> Option<Rc<Backend>> {
        let count = self.list.len();
        while self.given < 2 * count {
            let second_round = self.given >= count;
            let backend = &self.list[(self.first + self.given) % count];
            self.given += 1;
            let usable = self.uses_all || !backend.is_avoided();
            if usable && second_round == backend.was_down(self.now) {
                return Some(backend.clone());
            }
        }
        None
    }

    /// Counts an attempt at whichever backend has a slot; there are more as long as one was not tried. A client that waits
    /// may be given a slot of one that was: it has lost a connection and is not known to take no other. So each may be
    /// tried twice.
    fn attempt(&mut self) -> Option<()> {
        self.tried.extend(self.last.take());
        let is_left = self.list.iter().any(|backend| self.may_try(backend));
        let more = is_left && self.given < 2 * self.list.len();
        self.given += 1;
        more.then_some(())
    }

    fn may_try(&self, backend: &Backend) -> bool {
        let usable = self.uses_all || !backend.is_avoided();
        usable && !self.tried.contains(&backend.number())
    }

    /// No more attempts.
    fn end(&mut self) {
        self.given = 2 * self.list.len();
    }

    /// Those that were not tried, by number: the ones that did not just fail, or all if all did.
    fn candidates(&self, now: Clock) -> impl Iterator<Item = usize> + Clone + '_ {
        let (list, first) = (&self.list, self.first);
        let usable = |backend: &&Rc<Backend>| self.may_try(backend);
        // Also those that failed in this turn of the loop.
        let is_up = move |backend: &Rc<Backend>| !backend.was_down(now + 1);
        let mut all = list.iter().filter(usable);
        let none_is_up = !all.any(is_up);
        let count = list.len();
        (0..count)
            .map(move |step| &list[(first + step) % count])
            .filter(usable)
            .filter(move |backend| none_is_up || is_up(backend))
            .map(|backend| backend.number())
    }
}
