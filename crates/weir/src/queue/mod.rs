//! The prioritized listen queue of the guarded listeners: one thread that releases what is parked, and
//! the daemon's end of it.
//!
//! The thread owns the kernel half ([`weir_kernel::queue::Queue`]); the daemon tells it what is wanted
//! and reads what it has published. When the daemon goes, so does the thread, and what is parked goes to
//! the servers.

mod address;
mod release;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};
use weir_core::listener::Listener;
use weir_kernel::queue::QueueMaps;

use crate::failure::{Failure, Result};

/// A listener whose queue is to be prioritized.
#[derive(Debug, Clone, PartialEq)]
pub struct Wanted {
    /// The listener.
    pub listener: Listener,
    /// All listeners of the policy: which sockets serve this one depends on the others.
    pub all: Vec<Listener>,
    /// Index of its counters.
    pub counters: u16,
    /// Inodes of sockets for which `weir exec` answers: nothing is parked for them.
    pub exec: BTreeSet<u64>,
    /// Its classes by slot: priority, and how many may wait.
    pub classes: BTreeMap<u32, ClassLimits>,
}

/// What the queue has to know of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassLimits {
    /// 1 (the highest) to 64.
    pub priority: u8,
    /// How many of its connections may wait; `None`: as many as the queue holds.
    pub queue_limit: Option<u32>,
}

/// What the thread says of one listener.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct QueueState {
    /// Whether connections are parked before its server.
    pub parking: bool,
    /// Why not, or why not for all of its sockets.
    pub because: Option<String>,
    /// Connections parked now, by class slot.
    pub waiting: BTreeMap<u32, u32>,
    /// Connections reset because a full queue was needed for higher ones, ever, by class slot.
    pub displaced: BTreeMap<u32, u64>,
    /// Connections released so far.
    pub released: u64,
    /// Of these, those that overtook another.
    pub overtook: u64,
}

/// What daemon and thread share.
#[derive(Default)]
struct Shared {
    /// What is wanted by now; taken by the thread when it has changed.
    wanted: Option<Vec<Wanted>>,
    /// By listener name.
    states: BTreeMap<String, QueueState>,
    /// Whether the thread is to end.
    ends: bool,
}

type SharedState = Arc<Mutex<Shared>>;

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The daemon's end.
#[derive(Default)]
pub struct Queues {
    running: Option<Running>,
}

struct Running {
    shared: SharedState,
    bell: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl Queues {
    /// Has these listeners' queues prioritized from now on, and no others. The thread is started with the
    /// first one.
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
            lock(&running.shared).wanted = Some(wanted);
            running.ring();
        }
        Ok(())
    }

    /// What is said of a listener; `None` if nothing is (yet).
    pub fn state(&self, listener: &str) -> Option<QueueState> {
        let running = self.running.as_ref()?;
        lock(&running.shared).states.get(listener).cloned()
    }
}

impl Running {
    fn start(maps: QueueMaps) -> Result<Running> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let bell = EventFd::from_flags(flags)
            .map_err(|errno| Failure::io("make an eventfd", errno.into()))?;
        let bell = Arc::new(bell);
        let shared = SharedState::default();
        let thread = std::thread::Builder::new().name("weir-queue".into());
        let theirs = (shared.clone(), bell.clone());
        let thread = thread
            .spawn(move || release::run(maps, &theirs.0, &theirs.1))
            .map_err(|error| Failure::io("start the thread of the queues", error))?;
        Ok(Running {
            shared,
            bell,
            thread: Some(thread),
        })
    }

    fn ring(&self) {
        // Fails only when it has been rung 2^64 times.
        let _ = self.bell.write(1);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        lock(&self.shared).ends = true;
        self.ring();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!(
                "the thread of the queues had failed; what was parked went to the servers"
            );
        }
    }
}

/// How often the thread says that it lives, and looks for parking listeners to be given back.
const HEARTBEAT: Duration = Duration::from_millis(250);
