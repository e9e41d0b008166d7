//! A thread's access to the shared cache.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Cache;
use super::waiter::ThreadWaker;
use crate::runtime::{Handle, Sender, TaskId};

/// One thread's access to the cache.
pub struct ThreadCache {
    /// The cache.
    pub cache: Arc<Cache>,
    /// Wakes the tasks that wait for this thread's.
    pub waker: Rc<ThreadWaker>,
}

impl ThreadCache {
    /// The access of the running thread. It must wake each task that it receives from `wakes`.
    pub fn new(cache: Arc<Cache>, wakes: Sender<TaskId>, handle: Handle) -> Rc<ThreadCache> {
        // A thread that is started again gets a new number.
        let number = cache.threads.fetch_add(1, Ordering::Relaxed);
        Rc::new(ThreadCache {
            waker: Rc::new(ThreadWaker::new(number, wakes, handle)),
            cache,
        })
    }
}
