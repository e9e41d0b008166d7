//! The prioritized listen queue of the guarded listeners: one thread that releases what is parked, and
//! the daemon's end of it.
//!
//! The thread owns the kernel half ([`weir_kernel::queue::Parking`]); the daemon tells it what is wanted
//! and reads what it has published. When the daemon goes, so does the thread, and what is parked goes to
//! the servers.

mod address;
mod release;
mod shared;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;

use nix::sys::eventfd::{EfdFlags, EventFd};
use weir_core::refusals::Refusal;
use weir_core::verdict::Counters;
use weir_kernel::queue::QueueMaps;

use crate::failure::{Failure, Result};
use crate::host::descriptors::raise_limit;

use shared::Shared;
pub use shared::{ClassLimits, QueueState, Wanted};

/// The daemon's end.
#[derive(Default)]
pub struct Queues {
    running: Option<Running>,
}

struct Running {
    shared: Arc<Shared>,
    waker: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl Queues {
    /// Has these listeners' queues prioritized from now on, and no others; returns when they are, or when the
    /// thread has said why not. It is started with the first one.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn apply(
        &mut self,
        wanted: Vec<Wanted>,
        maps: impl FnOnce() -> weir_kernel::Result<QueueMaps>,
    ) -> Result<()> {
        if self.running.is_none() {
            if wanted.is_empty() {
                return Ok(());
            }
            self.running = Some(Running::start(maps()?)?);
        }
        if let Some(running) = &self.running {
            let mut notes = running.shared.lock();
            (notes.wanted, notes.pending) = (Some(wanted), true);
            drop(notes);
            running.wake();
            running.shared.wait_until_obeyed();
        }
        Ok(())
    }

    /// What is said of a listener; `None` if nothing is (yet).
    pub fn state(&self, listener: &str) -> Option<QueueState> {
        let running = self.running.as_ref()?;
        running.shared.lock().states.get(listener).cloned()
    }

    /// Connections that were reset while they waited, by class, on all listeners.
    pub fn refused(&self) -> BTreeMap<String, Counters> {
        let mut sums: BTreeMap<String, Counters> = BTreeMap::new();
        if let Some(running) = &self.running {
            let shared = running.shared.lock();
            for (class, counters) in shared.states.values().flat_map(|s| &s.refused) {
                sums.entry(class.clone()).or_default().add(counters);
            }
        }
        sums
    }

    /// Connections of a class that wait, on all listeners; `None`: nothing is parked anywhere.
    pub fn waiting_of(&self, class: &str) -> Option<u32> {
        let shared = self.running.as_ref()?.shared.lock();
        let mut parking = shared.states.values().filter(|s| s.parking).peekable();
        parking.peek()?;
        Some(parking.filter_map(|s| s.waiting.get(class)).sum())
    }

    /// Examples of connections that were reset while they waited, since the last call.
    pub fn examples(&self) -> Vec<Refusal> {
        match &self.running {
            Some(running) => std::mem::take(&mut running.shared.lock().examples),
            None => Vec::new(),
        }
    }
}

impl Running {
    fn start(maps: QueueMaps) -> Result<Running> {
        // Each parked connection is a descriptor of this process.
        raise_limit();
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let waker = EventFd::from_flags(flags)
            .map_err(|errno| Failure::io("make an eventfd", errno.into()))?;
        let waker = Arc::new(waker);
        let shared = Arc::<Shared>::default();
        let thread = std::thread::Builder::new().name("weir-queue".into());
        let theirs = (shared.clone(), waker.clone());
        let thread = thread
            .spawn(move || release::run(maps, &theirs.0, &theirs.1))
            .map_err(|error| Failure::io("start the thread of the queues", error))?;
        Ok(Running {
            shared,
            waker,
            thread: Some(thread),
        })
    }

    fn wake(&self) {
        // Fails only after 2^64 - 1 times that the thread has not read.
        let _ = self.waker.write(1);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shared.lock().ends = true;
        self.wake();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!(
                "the thread of the queues had failed; what was parked went to the servers"
            );
        }
    }
}
