//! Slots: the connections to each backend, at most so many over all threads. Decides which client gets one, which waits
//! and which is refused. Knows threads by number only, and no sockets.
//!
//! A connection holds its slot from before connect() until after close(), whether it is busy or idle. While a client
//! waits, no connection stays idle: a connection that becomes free goes to the first waiter, and one that is idle on
//! another thread is asked for.

use super::queue::{Queued, Ticket, WaitQueue};

/// The slots of all backends, and the clients that wait for one.
#[derive(Debug)]
pub struct ConnectionSlots<W> {
    /// Of each backend.
    limit: u32,
    backends: Vec<Load>,
    queue: WaitQueue<W>,
    threads: usize,
}

#[derive(Debug, Clone, Default)]
struct Load {
    /// It may get connections: the proxy has it now.
    is_listed: bool,
    /// Slots that are taken, also by idle connections.
    taken: u32,
    /// Idle connections that each thread has.
    idle: Vec<u32>,
}

/// What a client that wants a slot gets.
#[derive(Debug, PartialEq, Eq)]
pub enum Acquisition<W> {
    /// An idle connection of its thread to this backend.
    Idle(usize),
    /// A slot for a new connection to this backend.
    New(usize),
    /// It waits.
    Waits(Waiting<W>),
    /// Nothing: the queue is full.
    Full,
}

/// A client that waits, and what follows from it.
#[derive(Debug, PartialEq, Eq)]
pub struct Waiting<W> {
    /// Its slot in the queue.
    pub ticket: Ticket,
    /// A thread that has an idle connection to a backend and is to give it up.
    pub asked: Option<(usize, usize)>,
    /// The waiter that lost its place, because the queue was full.
    pub displaced: Option<W>,
}

impl<W> ConnectionSlots<W> {
    /// So many slots of each backend, a queue of so many, and connections on so many threads. No backend is
    /// [listed](Self::list) yet.
    pub fn new(limit: u32, queue_limit: usize, threads: usize) -> ConnectionSlots<W> {
        ConnectionSlots {
            limit,
            backends: Vec::new(),
            queue: WaitQueue::new(queue_limit),
            threads,
        }
    }

    /// The backends with these numbers have slots to give; the others take theirs back, and give none.
    pub fn list(&mut self, numbers: impl Iterator<Item = usize>) {
        for load in &mut self.backends {
            load.is_listed = false;
        }
        for number in numbers {
            self.make_known(number);
            self.backends[number].is_listed = true;
        }
    }

    /// A backend with this number may be asked for from now on.
    pub fn make_known(&mut self, number: usize) {
        let threads = self.threads;
        let new = || Load {
            is_listed: false,
            taken: 0,
            idle: vec![0; threads],
        };
        let count = self.backends.len().max(number + 1);
        self.backends.resize_with(count, new);
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// How many of a class wait.
    pub fn waiting_of(&self, class: usize) -> u32 {
        self.queue.len_of(class)
    }

    /// Slots of a backend that are taken.
    pub fn taken(&self, backend: usize) -> u32 {
        self.backends[backend].taken
    }

    /// Takes a slot at the first of `candidates` that has one; else waits as `waiter`.
    pub fn acquire(
        &mut self,
        thread: usize,
        candidates: impl Iterator<Item = usize> + Clone,
        class: usize,
        waiter: W,
    ) -> Acquisition<W> {
        if self.queue.is_empty() {
            for backend in candidates.clone() {
                let load = &mut self.backends[backend];
                if load.idle[thread] > 0 {
                    load.idle[thread] -= 1;
                    return Acquisition::Idle(backend);
                }
                if load.taken < self.limit {
                    load.taken += 1;
                    return Acquisition::New(backend);
                }
            }
        }
        let (ticket, displaced) = match self.queue.push(class, waiter) {
            Queued::In(ticket) => (ticket, None),
            Queued::InsteadOf(ticket, displaced) => (ticket, Some(displaced)),
            Queued::Full(_) => return Acquisition::Full,
        };
        Acquisition::Waits(Waiting {
            ticket,
            asked: self.ask(candidates),
            displaced,
        })
    }

    /// Finds an idle connection on any thread, and takes it off that thread's account.
    fn ask(&mut self, mut candidates: impl Iterator<Item = usize>) -> Option<(usize, usize)> {
        candidates.find_map(|backend| {
            let idle = &mut self.backends[backend].idle;
            let thread = idle.iter().position(|count| *count > 0)?;
            idle[thread] -= 1;
            Some((thread, backend))
        })
    }

    /// A connection has nothing to do: the first waiter gets it, with its slot; without one the thread keeps it.
    pub fn keep(&mut self, thread: usize, backend: usize) -> Option<W> {
        let waiter = self.queue.pop();
        if waiter.is_none() {
            self.backends[backend].idle[thread] += 1;
        }
        waiter
    }

    /// A thread wants to close an idle connection; it must not if that was asked for.
    pub fn close_idle(&mut self, thread: usize, backend: usize) -> bool {
        let idle = &mut self.backends[backend].idle[thread];
        let may = *idle > 0;
        *idle -= u32::from(may);
        may
    }

    /// A thread has begun anew, without connections.
    pub fn forget_idle(&mut self, thread: usize) {
        for load in &mut self.backends {
            load.idle[thread] = 0;
        }
    }

    /// A connection is closed.
    pub fn release(&mut self, backend: usize) {
        self.backends[backend].taken -= 1;
    }

    /// Gives free slots to waiters: at backends that are up, or at all backends if none is up; at listed ones only.
    pub fn give(&mut self, is_up: impl Fn(usize) -> bool) -> Vec<(W, usize)> {
        let mut given = Vec::new();
        if self.queue.is_empty() {
            return given;
        }
        let is_listed = |number: &usize| self.backends[*number].is_listed;
        let mut listed = (0..self.backends.len()).filter(is_listed);
        let none_is_up = !listed.any(&is_up);
        for (backend, load) in self.backends.iter_mut().enumerate() {
            while load.is_listed
                && load.taken < self.limit
                && (none_is_up || is_up(backend))
                && let Some(waiter) = self.queue.pop()
            {
                load.taken += 1;
                given.push((waiter, backend));
            }
        }
        given
    }

    /// A waiter leaves; false if it was given something meanwhile.
    pub fn leave(&mut self, ticket: Ticket) -> bool {
        self.queue.remove(ticket).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UP: fn(usize) -> bool = |_| true;

    fn slots(backends: usize, limit: u32) -> ConnectionSlots<&'static str> {
        let mut slots = ConnectionSlots::new(limit, 10, 2);
        slots.list(0..backends);
        slots
    }

    fn waits(acquired: Acquisition<&'static str>) -> Waiting<&'static str> {
        match acquired {
            Acquisition::Waits(waiting) => waiting,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn backends_fill_in_the_order_asked_for_and_then_all_wait() {
        let mut slots = slots(2, 1);
        assert_eq!(
            slots.acquire(0, [1, 0].into_iter(), 0, "a"),
            Acquisition::New(1)
        );
        assert_eq!(
            slots.acquire(1, [1, 0].into_iter(), 0, "b"),
            Acquisition::New(0)
        );
        let waiting = waits(slots.acquire(0, 0..2, 0, "c"));
        assert_eq!((waiting.asked, waiting.displaced), (None, None));
        assert!(slots.give(UP).is_empty());
        slots.release(1);
        assert_eq!(slots.give(UP), [("c", 1)]);
        assert_eq!((slots.taken(0), slots.taken(1)), (1, 1));
    }

    #[test]
    fn a_free_connection_goes_to_the_first_waiter_before_it_is_idle() {
        let mut slots = slots(1, 1);
        slots.acquire(0, 0..1, 0, "a");
        waits(slots.acquire(1, 0..1, 5, "low"));
        waits(slots.acquire(1, 0..1, 0, "high"));
        assert_eq!(slots.keep(0, 0), Some("high"));
        assert_eq!(slots.keep(1, 0), Some("low"));
        assert_eq!(slots.keep(1, 0), None);
        assert_eq!(slots.acquire(1, 0..1, 0, "b"), Acquisition::Idle(0));
        assert_eq!(slots.taken(0), 1);
    }

    #[test]
    fn a_connection_that_is_idle_on_another_thread_is_asked_for_once() {
        let mut slots = slots(1, 1);
        slots.acquire(0, 0..1, 0, "a");
        slots.keep(0, 0);
        assert_eq!(waits(slots.acquire(1, 0..1, 0, "b")).asked, Some((0, 0)));
        assert_eq!(waits(slots.acquire(1, 0..1, 0, "c")).asked, None);
        assert!(!slots.close_idle(0, 0), "it is promised");
        assert_eq!(slots.keep(0, 0), Some("b"));
    }

    #[test]
    fn nobody_overtakes_those_who_wait() {
        let mut slots = slots(1, 1);
        slots.acquire(0, 0..1, 0, "a");
        waits(slots.acquire(0, 0..1, 9, "b"));
        slots.release(0);
        waits(slots.acquire(0, 0..1, 9, "c"));
        assert_eq!(slots.give(UP), [("b", 0)]);
    }

    #[test]
    fn a_backend_that_is_down_is_given_to_nobody_unless_all_are() {
        let mut slots = slots(2, 1);
        slots.acquire(0, 0..2, 0, "a");
        slots.acquire(0, 0..2, 0, "b");
        waits(slots.acquire(0, 0..2, 0, "c"));
        slots.release(0);
        assert!(slots.give(|backend| backend != 0).is_empty());
        assert_eq!(slots.give(|_| false), [("c", 0)]);
    }

    #[test]
    fn who_has_left_is_given_nothing() {
        let mut slots = slots(1, 1);
        slots.acquire(0, 0..1, 0, "a");
        let ticket = waits(slots.acquire(0, 0..1, 0, "b")).ticket;
        assert!(slots.leave(ticket));
        assert!(!slots.leave(ticket));
        slots.release(0);
        assert!(slots.give(UP).is_empty());
        assert_eq!(slots.taken(0), 0);
    }

    #[test]
    fn without_a_queue_who_finds_no_place_loses() {
        let mut slots = ConnectionSlots::new(1, 0, 1);
        slots.list(0..1);
        slots.acquire(0, 0..1, 0, "a");
        assert_eq!(slots.acquire(0, 0..1, 0, "b"), Acquisition::Full);
    }

    #[test]
    fn a_backend_that_is_listed_no_longer_takes_its_slots_back_and_gives_none() {
        let mut slots = slots(1, 1);
        slots.acquire(0, 0..1, 0, "a");
        waits(slots.acquire(0, 0..1, 0, "b"));
        slots.list([2].into_iter());
        slots.release(0);
        assert_eq!(slots.give(|_| false), [("b", 2)]);
        assert_eq!((slots.taken(0), slots.taken(2)), (0, 1));
    }
}
