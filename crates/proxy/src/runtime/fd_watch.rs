//! Waits for a descriptor that is not a socket of the event loop.

use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;

use super::executor::Handle;
use super::poller::Trigger;
use super::source::{Direction, Source};

/// Waits until a descriptor, which outlives it, becomes readable.
pub struct FdWatch {
    source: Rc<Source>,
    handle: Handle,
}

impl FdWatch {
    /// Watches nothing yet: [`readable`](Self::readable) says which descriptor.
    pub fn new(handle: &Handle) -> FdWatch {
        let source = Rc::new(Source::new());
        source.clear(Direction::Read);
        FdWatch {
            source,
            handle: handle.clone(),
        }
    }

    /// Waits until `fd`, the same in each call, becomes readable.
    ///
    /// # Errors
    /// The task's deadline passed, or epoll fails.
    pub async fn readable(&self, fd: impl AsFd) -> io::Result<()> {
        let (source, read) = (&self.source, Direction::Read);
        let ready = self.handle.ready(fd, source, Trigger::Edge, read, || false);
        ready.await?;
        self.source.clear(Direction::Read);
        Ok(())
    }
}

impl Drop for FdWatch {
    fn drop(&mut self) {
        self.handle.forget(&self.source);
    }
}
