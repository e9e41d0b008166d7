//! A thread's place at the cache that all threads share: how its tasks wait for those of others.

use std::rc::Rc;
use std::sync::Arc;

use super::Cache;
use crate::runtime::{Handle, Sender, TaskId};

/// One thread's way to the cache.
pub struct Seat {
    /// The cache.
    pub cache: Arc<Cache>,
    number: u64,
    bell: Sender<TaskId>,
    handle: Handle,
}

/// A task of some thread that waits for something.
pub struct Waiter {
    seat: u64,
    task: TaskId,
    bell: Sender<TaskId>,
}

impl Seat {
    /// A seat for the running thread. Tasks whose number is sent to `bell` must be woken.
    pub fn new(cache: Arc<Cache>, bell: Sender<TaskId>, handle: Handle) -> Rc<Seat> {
        Rc::new(Seat {
            number: cache.next_seat(),
            cache,
            bell,
            handle,
        })
    }

    /// The running task, as one who waits.
    pub fn waiter(&self) -> Waiter {
        Waiter {
            seat: self.number,
            task: self.handle.running(),
            bell: self.bell.clone(),
        }
    }

    /// Wakes a task. Only one of another thread costs a system call.
    pub fn wake(&self, waiter: Waiter) {
        match waiter.seat == self.number {
            true => self.handle.wake(waiter.task),
            false => waiter.bell.send(waiter.task),
        }
    }
}

impl Waiter {
    /// Adds it to those who wait, unless it waits already.
    pub fn join(self, waiting: &mut Vec<Waiter>) {
        let same = |other: &Waiter| other.seat == self.seat && other.task == self.task;
        if !waiting.iter().any(same) {
            waiting.push(self);
        }
    }
}

impl std::fmt::Debug for Waiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} of seat {}", self.task, self.seat)
    }
}
