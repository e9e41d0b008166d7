//! Tells a process that one of its proxies' threads has ended.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};

/// A descriptor that becomes readable when a thread of a [`Server`](super::Server) ends.
#[derive(Debug, Clone)]
pub struct Bell(Arc<OwnedFd>);

impl Bell {
    /// A bell that has not rung.
    ///
    /// # Errors
    /// The kernel gives no eventfd.
    pub fn new() -> io::Result<Bell> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Bell(Arc::new(fd)))
    }

    /// Forgets that it has rung.
    pub fn silence(&self) {
        // Nothing to read: it has not rung.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }

    fn ring(&self) {
        // Fails only when 2^64 - 2 rings are unread, and then it rings anyway.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Says that a thread is at its end, also by a panic, when it is dropped there.
pub(super) struct AtEnd {
    /// Read before the thread is waited for.
    pub ended: Arc<AtomicBool>,
    /// Rings after that.
    pub bell: Option<Bell>,
}

impl Drop for AtEnd {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        if let Some(bell) = &self.bell {
            bell.ring();
        }
    }
}
