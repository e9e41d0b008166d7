//! A descriptor of somebody else's that becomes readable now and then.

use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;

use super::executor::Handle;
use super::poller::Trigger;
use super::source::{Direction, Source};

/// Waits for such a descriptor, one that outlives it.
pub struct Doorbell {
    source: Rc<Source>,
    handle: Handle,
}

impl Doorbell {
    /// One that has not rung.
    pub fn new(handle: &Handle) -> Doorbell {
        let source = Rc::new(Source::new());
        source.clear(Direction::Read);
        Doorbell {
            source,
            handle: handle.clone(),
        }
    }

    /// Waits until `fd`, the same in each call, becomes readable.
    ///
    /// # Errors
    /// The task's deadline passed, or epoll fails.
    pub async fn rung(&self, fd: impl AsFd) -> io::Result<()> {
        let (source, read) = (&self.source, Direction::Read);
        let ready = self.handle.ready(fd, source, Trigger::Edge, read, || false);
        ready.await?;
        self.source.clear(Direction::Read);
        Ok(())
    }
}

impl Drop for Doorbell {
    fn drop(&mut self) {
        self.handle.forget(&self.source);
    }
}
