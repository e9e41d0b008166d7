//! The thread of an emulated link, as long as it runs.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::direction::Direction;
use super::engine::Engine;
use super::report::Report;
use super::spec::Spec;
use crate::bed::Tap;
use crate::error::{Context, Result};

/// Carries packets between two devices of the kind [`crate::bed::Tun::Packets`], by a [`Spec`].
#[derive(Debug)]
pub struct Carrier {
    spec: Spec,
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<Result<()>>>,
    /// What the thread has counted, when it has ended.
    counted: Arc<Mutex<Report>>,
}

impl Carrier {
    /// Begins between the near and the far device.
    ///
    /// # Errors
    /// No thread, or no descriptor for it, can be had.
    pub fn start(devices: [Tap; 2], spec: Spec) -> Result<Carrier> {
        let stop = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
        let stop = Arc::new(stop.context("cannot create an eventfd")?);
        let directions = [
            Direction::new(spec.down, spec.lanes, spec.seed ^ 0x5bd1_e995),
            Direction::new(spec.up, spec.lanes, spec.seed ^ 0x1b87_3593),
        ];
        let counted = Arc::new(Mutex::new(Report::default()));
        let engine = Engine {
            devices,
            directions,
            stop: Arc::clone(&stop),
            counted: Arc::clone(&counted),
        };
        let thread = std::thread::Builder::new().name("weir-link".into());
        let thread = thread.spawn(move || engine.run());
        Ok(Carrier {
            spec,
            stop,
            thread: Some(thread.context("cannot start a thread")?),
            counted,
        })
    }

    /// What the link is.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Ends it, and gives what it has counted.
    ///
    /// # Errors
    /// The link could not go on carrying packets; the cause says why.
    pub fn stop(mut self) -> Result<Report> {
        self.end()?;
        let counted = self.counted.lock();
        Ok(counted.unwrap_or_else(PoisonError::into_inner).clone())
    }

    fn end(&mut self) -> Result<()> {
        let _ = self.stop.write(1);
        match self.thread.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(ended)) => ended,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
        }
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        let _ = self.stop.write(1);
        // A failure of it is reported by stop().
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
