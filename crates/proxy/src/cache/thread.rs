//! A thread's access to the shared cache: its tasks wait for those of other threads.

use std::rc::Rc;
use std::sync::Arc;

use super::Cache;
use crate::runtime::{Handle, Sender, TaskId};

/// One thread's access to the cache.
pub struct ThreadCache {
    /// The cache.
    pub cache: Arc<Cache>,
    number: u64,
    waker: Sender<TaskId>,
    handle: Handle,
}

/// A task of some thread that waits for something.
pub struct Waiter {
    thread: u64,
    task: TaskId,
    waker: Sender<TaskId>,
}

impl ThreadCache {
    /// The access of the running thread. It must wake each task that it receives from `waker`.
    pub fn new(cache: Arc<Cache>, waker: Sender<TaskId>, handle: Handle) -> Rc<ThreadCache> {
        Rc::new(ThreadCache {
            number: cache.next_thread(),
            cache,
            waker,
            handle,
        })
    }

    /// The running task, as one who waits.
    pub fn waiter(&self) -> Waiter {
        Waiter {
            thread: self.number,
            task: self.handle.running(),
            waker: self.waker.clone(),
        }
    }

    /// Wakes a task. Only one of another thread costs a system call.
    pub fn wake(&self, waiter: Waiter) {
        match waiter.thread == self.number {
            true => self.handle.wake(waiter.task),
            false => waiter.waker.send(waiter.task),
        }
    }
}

impl Waiter {
    /// Adds it to those who wait, unless it waits already.
    pub fn join(self, waiting: &mut Vec<Waiter>) {
        let same = |other: &Waiter| other.thread == self.thread && other.task == self.task;
        if !waiting.iter().any(same) {
            waiting.push(self);
        }
    }
}

impl std::fmt::Debug for Waiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} of thread {}", self.task, self.thread)
    }
}
