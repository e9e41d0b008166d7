//! A thread's share of the [`Redirector`](super::Redirector).

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;

use super::redirector::RedirectLane;
use crate::runtime::{FdWatch, Handle, TaskId};

/// What redirects the tunnels of one thread.
pub struct Redirect {
    pub(super) lane: Box<dyn RedirectLane>,
    /// The task to wake when a pair passes something, by the pair's number.
    pub(super) tasks: RefCell<HashMap<u32, TaskId>>,
}

impl Redirect {
    /// Of the lane that [`Redirector::lane`](super::Redirector::lane) made for this thread.
    pub fn new(lane: Box<dyn RedirectLane>) -> Redirect {
        Redirect {
            lane,
            tasks: RefCell::default(),
        }
    }

    /// Wakes the tunnels that are to be taken back, for ever.
    ///
    /// # Errors
    /// epoll fails.
    pub async fn wake_passed(&self, handle: &Handle) -> io::Result<()> {
        let ring = FdWatch::new(handle);
        loop {
            ring.readable(self.lane.passed_fd()).await?;
            let tasks = self.tasks.borrow();
            for pair in self.lane.take_passed() {
                if let Some(task) = tasks.get(&pair) {
                    handle.wake(*task);
                }
            }
        }
    }
}
