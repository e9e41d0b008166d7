//! The threads' way to the [`Places`]: one lock for all, taken only where `max_connections` is set.
//!
//! A shared count is the only one that is exact whatever thread clients come to; shares of it per
//! thread would leave places unused on one while clients of another wait. The lock is held for some
//! tens of instructions, twice a request.

use std::cell::{Cell, RefCell};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use slab::Slab;
use weir_core::proxy::Proxy;

use super::health::HealthBoard;
use super::places::{Entered, Places};
use super::queue::{CLASSES, Ticket};
use crate::metrics::QueueCounters;
use crate::runtime::{Handle, Sender, TaskId, TcpStream};

/// How long a backend that refused a connection is given to nobody, if others are there.
const PASSED_OVER: Duration = Duration::from_secs(1);

/// What the threads share.
pub struct Gate {
    state: Mutex<State>,
    /// By rank; written under the lock.
    counters: [QueueCounters; CLASSES],
    queue_timeout: Duration,
    abort_on_close: bool,
}

struct State {
    places: Places<Waiter>,
    /// The way to each thread.
    threads: Vec<Option<Sender<Notice>>>,
    /// When a connection to each backend last failed.
    failed: Vec<Option<Instant>>,
    health: Option<Arc<HealthBoard>>,
}

/// Somebody on some thread.
#[derive(Debug, Clone, Copy)]
pub struct Waiter {
    thread: usize,
    key: usize,
    id: u64,
}

/// What threads tell each other.
pub enum Notice {
    /// Give up an idle connection to this backend.
    Wanted(usize),
    /// A place at this backend, or a connection that holds one.
    Given(Waiter, usize, Option<OwnedFd>),
    /// A full queue has no room for it any more.
    Lost(Waiter),
}

/// The door of one thread.
pub struct Door {
    gate: Arc<Gate>,
    thread: usize,
    handle: Handle,
    waiting: RefCell<Slab<Slot>>,
    /// A slot's key may be another's later, the number is not.
    next_id: Cell<u64>,
}

struct Slot {
    id: u64,
    task: TaskId,
    outcome: Option<Outcome>,
}

enum Outcome {
    Place(Permit),
    Stream(TcpStream, Permit),
    Lost,
}

/// A way in.
pub enum Entry {
    /// An idle connection of this thread to this backend.
    Idle(usize),
    /// A place for a new connection.
    New(Permit),
    /// A connection that another request has left.
    Stream(TcpStream, Permit),
}

/// What came of the first look.
enum Tried {
    In(Entry),
    Waits(Ticket),
}

/// A place at a backend; free again when this is dropped.
pub struct Permit {
    door: Rc<Door>,
    backend: usize,
    /// It has gone to another thread.
    is_passed_on: bool,
}

impl Gate {
    /// The places that the settings allow, for so many threads; `None` without a limit.
    pub fn new(
        settings: &Proxy,
        threads: usize,
        health: Option<Arc<HealthBoard>>,
    ) -> Option<Arc<Gate>> {
        let backends = settings.backends.len();
        let limit = settings.max_connections;
        let state = State {
            places: Places::new(backends, limit, settings.queue_limit as usize, threads),
            threads: (0..threads).map(|_| None).collect(),
            failed: vec![None; backends],
            health,
        };
        (limit > 0).then(|| {
            Arc::new(Gate {
                state: Mutex::new(state),
                counters: std::array::from_fn(|_| QueueCounters::default()),
                queue_timeout: settings.queue_timeout,
                abort_on_close: settings.abort_on_close,
            })
        })
    }

    /// How many wait for a place.
    pub fn waiting(&self) -> usize {
        self.lock().places.waiting()
    }

    /// How many of each rank wait.
    pub fn waiting_of(&self) -> [u32; CLASSES] {
        let state = self.lock();
        std::array::from_fn(|rank| state.places.waiting_of(rank))
    }

    /// What became of those of each rank.
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
        // No step of it panics halfway: a thread that fell elsewhere leaves it whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn give(&mut self) -> Vec<(Waiter, usize)> {
        let (failed, health) = (&self.failed, self.health.as_ref());
        let usable = |backend: usize| !health.is_some_and(|health| health.is_avoided(backend));
        let is_up = |backend: usize| {
            usable(backend) && failed[backend].is_none_or(|at| at.elapsed() >= PASSED_OVER)
        };
        match (0..failed.len()).any(is_up) {
            true => self.places.give(is_up),
            false => self.places.give(usable),
        }
    }

    fn tell(&self, thread: usize, notice: Notice) {
        if let Some(sender) = &self.threads[thread] {
            sender.send(notice);
        }
    }
}

impl Door {
    /// The door of this thread; it hears through `sender`.
    pub fn new(gate: Arc<Gate>, thread: usize, handle: Handle, sender: Sender<Notice>) -> Rc<Door> {
        let mut state = gate.lock();
        state.places.forget_idle(thread);
        state.threads[thread] = Some(sender);
        drop(state);
        Rc::new(Door {
            gate,
            thread,
            handle,
            waiting: RefCell::default(),
            next_id: Cell::new(0),
        })
    }

    /// Takes a place at the first of `candidates` that has one, or waits for one as a client of this
    /// rank, 0 the first.
    ///
    /// # Errors
    /// `QuotaExceeded` when the queue is full or it took too long, `ConnectionAborted` when the
    /// client is gone meanwhile.
    pub async fn enter(
        self: &Rc<Self>,
        client: &TcpStream,
        candidates: impl Iterator<Item = usize> + Clone,
        rank: u8,
    ) -> io::Result<Entry> {
        let waiter = self.waiter();
        // Leaves the queue when it is dropped.
        let mut place = Place {
            door: self,
            waiter,
            ticket: None,
        };
        match self.try_enter(candidates, rank, waiter) {
            Ok(Tried::In(entry)) => return Ok(entry),
            Ok(Tried::Waits(ticket)) => place.ticket = Some(ticket),
            Err(error) => {
                self.gate.count(rank, |counters| counters.refused.add(1));
                return Err(error);
            }
        }
        let began = Instant::now();
        self.handle.set_deadline(self.gate.queue_timeout);
        let or_ended = self.gate.abort_on_close;
        let outcome = client
            .unless_gone(or_ended, || self.take_outcome(waiter))
            .await;
        self.count_outcome(rank, &outcome, began.elapsed());
        match outcome {
            Ok(Outcome::Place(permit)) => Ok(Entry::New(permit)),
            Ok(Outcome::Stream(stream, permit)) => Ok(Entry::Stream(stream, permit)),
            Ok(Outcome::Lost) => Err(ErrorKind::QuotaExceeded.into()),
            Err(error) if error.kind() == ErrorKind::TimedOut => {
                Err(ErrorKind::QuotaExceeded.into())
            }
            Err(error) => Err(error),
        }
    }

    fn count_outcome(&self, rank: u8, outcome: &io::Result<Outcome>, wait: Duration) {
        let count = |counters: &QueueCounters| match outcome {
            Ok(Outcome::Place(_) | Outcome::Stream(..)) => {
                counters.served.add(1);
                counters.wait_ns.add(wait.as_nanos() as u64);
            }
            Ok(Outcome::Lost) => counters.refused.add(1),
            Err(error) if error.kind() == ErrorKind::TimedOut => counters.late.add(1),
            Err(_) => counters.gone.add(1),
        };
        self.gate.count(rank, count);
    }

    fn try_enter(
        self: &Rc<Self>,
        candidates: impl Iterator<Item = usize> + Clone,
        rank: u8,
        waiter: Waiter,
    ) -> io::Result<Tried> {
        let mut state = self.gate.lock();
        let entered = state
            .places
            .enter(self.thread, candidates, rank.into(), waiter);
        let waiting = match entered {
            Entered::Idle(backend) => return Ok(Tried::In(Entry::Idle(backend))),
            Entered::New(backend) => return Ok(Tried::In(Entry::New(self.permit(backend)))),
            Entered::Full => return Err(ErrorKind::QuotaExceeded.into()),
            Entered::Waits(waiting) => waiting,
        };
        self.gate.counters_of(rank).waited.add(1);
        if let Some((thread, backend)) = waiting.asked {
            state.tell(thread, Notice::Wanted(backend));
        }
        if let Some(loser) = waiting.loser {
            state.tell(loser.thread, Notice::Lost(loser));
        }
        Ok(Tried::Waits(waiting.ticket))
    }

    /// A connection has nothing to do. Who waits gets it; else it is the caller's to keep.
    pub fn offer(&self, stream: TcpStream, mut permit: Permit) -> Option<(TcpStream, Permit)> {
        let backend = permit.backend;
        let mut state = self.gate.lock();
        let Some(waiter) = state.places.keep(self.thread, backend) else {
            return Some((stream, permit));
        };
        if waiter.thread == self.thread {
            drop(state);
            self.give(waiter, Outcome::Stream(stream, permit));
        } else {
            permit.is_passed_on = true;
            // Without a descriptor for it the place is given alone.
            let fd = stream.detach().ok();
            state.tell(waiter.thread, Notice::Given(waiter, backend, fd));
        }
        None
    }

    /// Whether an idle connection may be closed: not if another thread was promised it.
    pub fn may_close_idle(&self, backend: usize) -> bool {
        self.gate.lock().places.close_idle(self.thread, backend)
    }

    /// A connection to a backend failed, or has succeeded again.
    pub fn note(&self, backend: usize, has_failed: bool) {
        self.gate.lock().failed[backend] = has_failed.then(Instant::now);
    }

    /// Gives places to those who wait, which may have become free with time: a backend that failed
    /// is tried again.
    pub fn look_again(self: &Rc<Self>) {
        let given = self.gate.lock().give();
        self.hand_out(given);
    }

    /// Acts on what another thread says. A connection that it wants comes back to the caller: it is
    /// to be [offered](Self::offer).
    pub fn hear(self: &Rc<Self>, notice: Notice) -> Option<usize> {
        match notice {
            Notice::Wanted(backend) => return Some(backend),
            Notice::Given(waiter, backend, fd) => {
                let permit = self.permit(backend);
                let outcome = match fd {
                    Some(fd) => Outcome::Stream(TcpStream::attach(fd, &self.handle), permit),
                    None => Outcome::Place(permit),
                };
                self.give(waiter, outcome);
            }
            Notice::Lost(waiter) => self.give(waiter, Outcome::Lost),
        }
        None
    }

    /// To one of this thread. One that has left meanwhile drops it, and with it the place.
    fn give(&self, waiter: Waiter, outcome: Outcome) {
        let mut waiting = self.waiting.borrow_mut();
        let slot = waiting.get_mut(waiter.key);
        let Some(slot) = slot.filter(|slot| slot.id == waiter.id) else {
            // Not under the borrow: a place that is free again may be given to this thread.
            drop(waiting);
            return drop(outcome);
        };
        slot.outcome = Some(outcome);
        self.handle.wake(slot.task);
    }

    fn hand_out(self: &Rc<Self>, given: Vec<(Waiter, usize)>) {
        for (waiter, backend) in given {
            if waiter.thread == self.thread {
                self.give(waiter, Outcome::Place(self.permit(backend)));
            } else {
                let notice = Notice::Given(waiter, backend, None);
                self.gate.lock().tell(waiter.thread, notice);
            }
        }
    }

    fn waiter(&self) -> Waiter {
        let id = self.next_id.get();
        self.next_id.set(id + 1);
        let slot = Slot {
            id,
            task: self.handle.running(),
            outcome: None,
        };
        Waiter {
            thread: self.thread,
            key: self.waiting.borrow_mut().insert(slot),
            id,
        }
    }

    fn take_outcome(&self, waiter: Waiter) -> Option<Outcome> {
        self.waiting.borrow_mut()[waiter.key].outcome.take()
    }

    fn permit(self: &Rc<Self>, backend: usize) -> Permit {
        Permit {
            door: self.clone(),
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
        let mut state = self.door.gate.lock();
        state.places.release(self.backend);
        let given = state.give();
        drop(state);
        self.door.hand_out(given);
    }
}

/// One who waits, or is about to.
struct Place<'a> {
    door: &'a Rc<Door>,
    waiter: Waiter,
    ticket: Option<Ticket>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.door.gate.lock().places.leave(ticket);
        }
        // What it was given and did not take goes back; what is on its way finds nobody.
        let slot = self.door.waiting.borrow_mut().remove(self.waiter.key);
        drop(slot);
    }
}
