//! Wakes the process when a thread of one of its proxies ends.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};

/// A descriptor that becomes readable when a thread of a [`Server`](super::Server) ends.
#[derive(Debug, Clone)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// A waker that was not woken yet.
    ///
    /// # Errors
    /// The kernel gives no eventfd.
    pub fn new() -> io::Result<Waker> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Waker(Arc::new(fd)))
    }

    /// Makes the descriptor unreadable until the next wake-up.
    pub fn clear(&self) {
        // Nothing to read: it was not woken.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }

    fn wake(&self) {
        // Fails only when 2^64 - 2 wake-ups are unread, and then the descriptor is readable anyway.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Reports the end of a thread, also by a panic, when it is dropped there.
pub(super) struct AtEnd {
    /// Read before the thread is waited for.
    pub ended: Arc<AtomicBool>,
    /// Woken after that.
    pub waker: Option<Waker>,
}

impl Drop for AtEnd {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        if let Some(waker) = &self.waker {
            waker.wake();
        }
    }
}
