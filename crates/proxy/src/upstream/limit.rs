//! The limit `max_connections` over all threads: one lock around the [`ConnectionSlots`], taken only where
//! the limit is set.
//!
//! Only a shared count is exact whatever thread accepts a client. A share of the limit for each thread
//! would leave slots unused on one thread while clients of another wait. The lock is held for some tens
//! of instructions, twice a request.

use std::cell::{Cell, RefCell};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use slab::Slab;
use weir_core::proxy::Proxy;

use super::queue::{CLASSES, Ticket};
use super::shared_backend::SharedBackend;
use super::slots::{Acquisition, ConnectionSlots};
use crate::metrics::QueueCounters;
use crate::runtime::{Handle, Sender, TaskId, TcpStream};

/// How long a backend that refused a connection gets none, if there are others.
const PASSED_OVER: Duration = Duration::from_secs(1);

/// The limit, shared by all threads.
pub struct ConnectionLimit {
    state: Mutex<State>,
    /// By rank; written under the lock.
    counters: [QueueCounters; CLASSES],
    queue_timeout: Duration,
    abort_on_close: bool,
}

struct State {
    slots: ConnectionSlots<Waiter>,
    /// The way to each thread.
    threads: Vec<Option<Sender<Notice>>>,
    /// When a connection to a backend last failed, by its number; shorter if none of the others has failed.
    failed: Vec<Option<Instant>>,
    /// The backends of now, by number.
    listed: Vec<Option<Arc<SharedBackend>>>,
}

/// A client of some thread that waits.
#[derive(Debug, Clone, Copy)]
pub struct Waiter {
    thread: usize,
    key: usize,
    id: u64,
}

/// The backends of a proxy now, those of the first item of its settings first.
pub type BackendList = Arc<[Arc<SharedBackend>]>;

/// What threads tell each other.
pub enum Notice {
    /// These are the backends from now on.
    Listed(BackendList),
    /// Give up an idle connection to this backend.
    Wanted(usize),
    /// A slot of this backend, or a connection that holds one.
    Given(Waiter, usize, Option<OwnedFd>),
    /// The full queue dropped it for a client of a higher class.
    Displaced(Waiter),
}

/// One thread's access to the limit.
pub struct ThreadConnectionLimit {
    shared: Arc<ConnectionLimit>,
    thread: usize,
    handle: Handle,
    waiting: RefCell<Slab<WaitingTask>>,
    /// The slab reuses keys; these numbers are never reused.
    next_id: Cell<u64>,
}

struct WaitingTask {
    id: u64,
    task: TaskId,
    outcome: Option<Outcome>,
}

enum Outcome {
    Slot(Permit),
    Stream(TcpStream, Permit),
    Displaced,
}

/// What a client gets that may connect.
pub enum Acquired {
    /// An idle connection of this thread to this backend.
    Idle(usize),
    /// A slot for a new connection.
    New(Permit),
    /// A connection that another request has left.
    Stream(TcpStream, Permit),
}

/// The result of the first attempt, without waiting.
enum Tried {
    Acquired(Acquired),
    Waits(Ticket),
}

/// A slot of a backend. Dropping it frees the slot.
pub struct Permit {
    limit: Rc<ThreadConnectionLimit>,
    backend: usize,
    /// It has gone to another thread.
    is_passed_on: bool,
}

impl ConnectionLimit {
    /// The limit that the settings ask for; `None` if they ask for none. No backend is [listed](Self::list) yet.
    pub fn new(settings: &Proxy, threads: usize) -> Option<Arc<ConnectionLimit>> {
        let limit = settings.max_connections;
        let state = State {
            slots: ConnectionSlots::new(limit, settings.queue_limit as usize, threads),
            threads: (0..threads).map(|_| None).collect(),
            failed: Vec::new(),
            listed: Vec::new(),
        };
        (limit > 0).then(|| {
            Arc::new(ConnectionLimit {
                state: Mutex::new(state),
                counters: std::array::from_fn(|_| QueueCounters::default()),
                queue_timeout: settings.queue_timeout,
                abort_on_close: settings.abort_on_close,
            })
        })
    }

    /// Threads may ask for slots of these backends too; waiters get none of them yet.
    pub(super) fn make_known(&self, backends: &[Arc<SharedBackend>]) {
        let mut state = self.lock();
        for backend in backends {
            state.slots.make_known(backend.number);
        }
    }

    /// Waiters get slots of these backends only. All threads have been told of them: see [`Notice::Listed`].
    pub(super) fn list(&self, backends: &[Arc<SharedBackend>]) {
        let mut state = self.lock();
        let before = std::mem::take(&mut state.listed);
        for backend in backends {
            let number = backend.number;
            if number >= state.listed.len() {
                state.listed.resize(number + 1, None);
            }
            // A failure of the backend that had the number before it says nothing of this one.
            if !matches!(before.get(number), Some(Some(_))) {
                state.note(number, false);
            }
            state.listed[number] = Some(backend.clone());
        }
        let numbers = backends.iter().map(|backend| backend.number);
        state.slots.list(numbers);
    }

    /// Whether a connection to a backend holds a slot, or is about to.
    pub(super) fn is_held(&self, number: usize) -> bool {
        self.lock().slots.taken(number) > 0
    }

    /// How many clients wait for a slot.
    pub fn waiting(&self) -> usize {
        self.lock().slots.waiting()
    }

    /// How many of each rank wait.
    pub fn waiting_of(&self) -> [u32; CLASSES] {
        let state = self.lock();
        std::array::from_fn(|rank| state.slots.waiting_of(rank))
    }

    /// What became of the clients of each rank.
    pub fn counters(&self) -> &[QueueCounters; CLASSES] {
        &self.counters
    }

    /// Counts under the lock.
    fn count(&self, rank: u8, count: impl FnOnce(&QueueCounters)) {
        let _state = self.lock();
        count(self.counters_of(rank));
    }

    fn counters_of(&self, rank: u8) -> &QueueCounters {
        &self.counters[usize::from(rank).min(CLASSES - 1)]
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No step of it panics halfway: a thread that panicked elsewhere leaves it whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn give(&mut self) -> Vec<(Waiter, usize)> {
        let listed = &self.listed;
        let usable = |number: usize| {
            let backend = listed.get(number).and_then(Option::as_ref);
            backend.is_some_and(|backend| !backend.is_avoided())
        };
        let has_failed = |number: usize| {
            let failed = self.failed.get(number).copied().flatten();
            failed.is_some_and(|at| at.elapsed() < PASSED_OVER)
        };
        let is_up = |number: usize| usable(number) && !has_failed(number);
        match (0..listed.len()).any(is_up) {
            true => self.slots.give(is_up),
            false => self.slots.give(usable),
        }
    }

    fn note(&mut self, number: usize, has_failed: bool) {
        if number >= self.failed.len() {
            self.failed.resize(number + 1, None);
        }
        self.failed[number] = has_failed.then(Instant::now);
    }

    fn tell(&self, thread: usize, notice: Notice) {
        if let Some(sender) = &self.threads[thread] {
            sender.send(notice);
        }
    }
}

impl ThreadConnectionLimit {
    /// The access of this thread. Other threads send their notices through `sender`.
    pub fn new(
        shared: Arc<ConnectionLimit>,
        thread: usize,
        handle: Handle,
        sender: Sender<Notice>,
    ) -> Rc<ThreadConnectionLimit> {
        let mut state = shared.lock();
        state.slots.forget_idle(thread);
        state.threads[thread] = Some(sender);
        drop(state);
        Rc::new(ThreadConnectionLimit {
            shared,
            thread,
            handle,
            waiting: RefCell::default(),
            next_id: Cell::new(0),
        })
    }

    /// Takes a slot of the first of `candidates` that has one, or waits for one as a client of this
    /// rank; 0 is the highest.
    ///
    /// # Errors
    /// `QuotaExceeded` when the queue is full or it took too long, `ConnectionAborted` when the
    /// client is gone meanwhile.
    pub async fn acquire(
        self: &Rc<Self>,
        client: &TcpStream,
        candidates: impl Iterator<Item = usize> + Clone,
        rank: u8,
    ) -> io::Result<Acquired> {
        let waiter = self.waiter();
        let mut queued = QueuedWaiter {
            limit: self,
            waiter,
            ticket: None,
        };
        match self.try_acquire(candidates, rank, waiter) {
            Ok(Tried::Acquired(entry)) => return Ok(entry),
            Ok(Tried::Waits(ticket)) => queued.ticket = Some(ticket),
            Err(error) => {
                self.shared.count(rank, |counters| counters.refused.add(1));
                return Err(error);
            }
        }
        let began = Instant::now();
        self.handle.set_deadline(self.shared.queue_timeout);
        let or_ended = self.shared.abort_on_close;
        let outcome = client
            .unless_gone(or_ended, || self.take_outcome(waiter))
            .await;
        self.count_outcome(rank, &outcome, began.elapsed());
        match outcome {
            Ok(Outcome::Slot(permit)) => Ok(Acquired::New(permit)),
            Ok(Outcome::Stream(stream, permit)) => Ok(Acquired::Stream(stream, permit)),
            Ok(Outcome::Displaced) => Err(ErrorKind::QuotaExceeded.into()),
            Err(error) if error.kind() == ErrorKind::TimedOut => {
                Err(ErrorKind::QuotaExceeded.into())
            }
            Err(error) => Err(error),
        }
    }

    fn count_outcome(&self, rank: u8, outcome: &io::Result<Outcome>, wait: Duration) {
        let count = |counters: &QueueCounters| match outcome {
            Ok(Outcome::Slot(_) | Outcome::Stream(..)) => {
                counters.served.add(1);
                counters.wait_ns.add(wait.as_nanos() as u64);
            }
            Ok(Outcome::Displaced) => counters.refused.add(1),
            Err(error) if error.kind() == ErrorKind::TimedOut => counters.late.add(1),
            Err(_) => counters.gone.add(1),
        };
        self.shared.count(rank, count);
    }

    fn try_acquire(
        self: &Rc<Self>,
        candidates: impl Iterator<Item = usize> + Clone,
        rank: u8,
        waiter: Waiter,
    ) -> io::Result<Tried> {
        let mut state = self.shared.lock();
        let acquired = state
            .slots
            .acquire(self.thread, candidates, rank.into(), waiter);
        let waiting = match acquired {
            Acquisition::Idle(backend) => return Ok(Tried::Acquired(Acquired::Idle(backend))),
            Acquisition::New(backend) => {
                return Ok(Tried::Acquired(Acquired::New(self.permit(backend))));
            }
            Acquisition::Full => return Err(ErrorKind::QuotaExceeded.into()),
            Acquisition::Waits(waiting) => waiting,
        };
        self.shared.counters_of(rank).waited.add(1);
        if let Some((thread, backend)) = waiting.asked {
            state.tell(thread, Notice::Wanted(backend));
        }
        if let Some(displaced) = waiting.displaced {
            state.tell(displaced.thread, Notice::Displaced(displaced));
        }
        Ok(Tried::Waits(waiting.ticket))
    }

    /// Offers an idle connection to the clients that wait. If none waits, the caller gets it back.
    pub fn offer(&self, stream: TcpStream, mut permit: Permit) -> Option<(TcpStream, Permit)> {
        let backend = permit.backend;
        let mut state = self.shared.lock();
        let Some(waiter) = state.slots.keep(self.thread, backend) else {
            return Some((stream, permit));
        };
        if waiter.thread == self.thread {
            drop(state);
            self.give(waiter, Outcome::Stream(stream, permit));
        } else {
            permit.is_passed_on = true;
            // If the descriptor cannot be detached, only the slot is handed over.
            let fd = stream.detach().ok();
            state.tell(waiter.thread, Notice::Given(waiter, backend, fd));
        }
        None
    }

    /// Whether an idle connection may be closed: not if it was promised to another thread.
    pub fn may_close_idle(&self, backend: usize) -> bool {
        self.shared.lock().slots.close_idle(self.thread, backend)
    }

    /// A connection to a backend failed, or has succeeded again.
    pub fn note(&self, backend: usize, has_failed: bool) {
        self.shared.lock().note(backend, has_failed);
    }

    /// Gives free slots to the clients that wait. Time alone may free some: a backend that failed is
    /// tried again.
    pub fn look_again(self: &Rc<Self>) {
        let given = self.shared.lock().give();
        self.hand_out(given);
    }

    /// A waiter of this thread is given a slot of a backend, or a connection that holds one.
    pub fn pass_on(self: &Rc<Self>, waiter: Waiter, backend: usize, fd: Option<OwnedFd>) {
        let permit = self.permit(backend);
        let outcome = match fd {
            Some(fd) => Outcome::Stream(TcpStream::attach(fd, &self.handle), permit),
            None => Outcome::Slot(permit),
        };
        self.give(waiter, outcome);
    }

    /// A waiter of this thread has lost its place.
    pub fn displace(&self, waiter: Waiter) {
        self.give(waiter, Outcome::Displaced);
    }

    /// Hands `outcome` to a waiter of this thread. If the waiter has left, the outcome is dropped, which frees the slot.
    fn give(&self, waiter: Waiter, outcome: Outcome) {
        let mut waiting = self.waiting.borrow_mut();
        let waiting_task = waiting.get_mut(waiter.key);
        let Some(waiting_task) = waiting_task.filter(|waiting_task| waiting_task.id == waiter.id)
        else {
            // Not under the borrow: the freed slot may be given to this thread.
            drop(waiting);
            return drop(outcome);
        };
        waiting_task.outcome = Some(outcome);
        self.handle.wake(waiting_task.task);
    }

    fn hand_out(self: &Rc<Self>, given: Vec<(Waiter, usize)>) {
        for (waiter, backend) in given {
            if waiter.thread == self.thread {
                self.give(waiter, Outcome::Slot(self.permit(backend)));
            } else {
                let notice = Notice::Given(waiter, backend, None);
                self.shared.lock().tell(waiter.thread, notice);
            }
        }
    }

    fn waiter(&self) -> Waiter {
        let id = self.next_id.get();
        self.next_id.set(id + 1);
        let waiting_task = WaitingTask {
            id,
            task: self.handle.running(),
            outcome: None,
        };
        Waiter {
            thread: self.thread,
            key: self.waiting.borrow_mut().insert(waiting_task),
            id,
        }
    }

    fn take_outcome(&self, waiter: Waiter) -> Option<Outcome> {
        self.waiting.borrow_mut()[waiter.key].outcome.take()
    }

    fn permit(self: &Rc<Self>, backend: usize) -> Permit {
        Permit {
            limit: self.clone(),
            backend,
            is_passed_on: false,
        }
    }
}

impl Permit {
    /// The backend.
    pub fn backend(&self) -> usize {
        self.backend
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.is_passed_on {
            return;
        }
        let mut state = self.limit.shared.lock();
        state.slots.release(self.backend);
        let given = state.give();
        drop(state);
        self.limit.hand_out(given);
    }
}

/// A client that waits or is about to; it leaves the queue when this is dropped.
struct QueuedWaiter<'a> {
    limit: &'a Rc<ThreadConnectionLimit>,
    waiter: Waiter,
    ticket: Option<Ticket>,
}

impl Drop for QueuedWaiter<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.limit.shared.lock().slots.leave(ticket);
        }
        // A slot that it was given and did not take is freed. A slot on its way finds no waiter and is freed, too.
        let waiting_task = self.limit.waiting.borrow_mut().remove(self.waiter.key);
        drop(waiting_task);
    }
}
