//! Tasks that wait for tasks of other threads.

use crate::runtime::{Handle, Sender, TaskId};

/// Makes waiters of one thread's tasks, and wakes those of any thread.
pub struct ThreadWaker {
    thread: u64,
    wakes: Sender<TaskId>,
    handle: Handle,
}

/// A task of some thread that waits for something.
pub struct Waiter {
    thread: u64,
    task: TaskId,
    wakes: Sender<TaskId>,
}

impl ThreadWaker {
    /// Of the running thread, which has this number. It must wake each task that it receives from `wakes`.
    pub fn new(thread: u64, wakes: Sender<TaskId>, handle: Handle) -> ThreadWaker {
        ThreadWaker {
            thread,
            wakes,
            handle,
        }
    }

    /// The running task.
    pub fn waiter(&self) -> Waiter {
        Waiter {
            thread: self.thread,
            task: self.handle.running(),
            wakes: self.wakes.clone(),
        }
    }

    /// Wakes a task. Only one of another thread costs a system call.
    pub fn wake(&self, waiter: Waiter) {
        match waiter.thread == self.thread {
            true => self.handle.wake(waiter.task),
            false => waiter.wakes.send(waiter.task),
        }
    }
}

impl Waiter {
    /// Adds the task to those that wait, unless it waits already.
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
