//! The prioritized listen queue of the guarded listeners: one thread that releases what is parked, and
//! the daemon's end of it.
//!
//! The thread owns the kernel half ([`weir_kernel::queue::Parking`]); the daemon tells it what is wanted
//! and reads what it has published. When the daemon goes, so does the thread, and what is parked goes to
//! the servers.

mod address;
mod release;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};
use weir_core::listener::Listener;
use weir_core::verdict::Counters;
#[cfg(doc)]
use weir_core::verdict::Verdict;
use weir_kernel::Event;
use weir_kernel::queue::QueueMaps;

use crate::failure::{Failure, Result};
use crate::host::descriptors::raise_limit;

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
    /// Its classes by slot, without `other`.
    pub classes: BTreeMap<u32, ClassLimits>,
}

/// What the queue has to know of a class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassLimits {
    /// Its name.
    pub name: String,
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
    /// Connections parked now, by class. Those in the server's own queue are not among them.
    pub waiting: BTreeMap<String, u32>,
    /// Connections reset while they waited, ever, by class: [`Verdict::QueueResetFull`] and
    /// [`Verdict::QueueResetLimit`].
    pub refused: BTreeMap<String, Counters>,
    /// Connections that went from a parking listener to the server, ever.
    pub released: u64,
    /// Connections that went to the server, released or straight, before one that had come earlier.
    pub overtook: u64,
}

/// What daemon and thread share.
#[derive(Default)]
struct Shared {
    notes: Mutex<Notes>,
    /// The thread has done what was wanted.
    obeyed: Condvar,
}

#[derive(Default)]
struct Notes {
    /// What is wanted by now; taken by the thread when it has changed.
    wanted: Option<Vec<Wanted>>,
    /// What was wanted is not in force yet.
    pending: bool,
    /// By listener name.
    states: BTreeMap<String, QueueState>,
    /// Examples of what was reset since they were asked for last; at most [`EXAMPLES`].
    examples: Vec<Event>,
    /// Whether the thread is to end.
    ends: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was taken last is in force, or cannot be.
    fn answer(&self, states: BTreeMap<String, QueueState>) {
        let mut notes = self.lock();
        notes.states = states;
        notes.pending = notes.wanted.is_some();
        self.obeyed.notify_all();
    }

    /// Waits until what is wanted is in force. A thread that hangs or has failed keeps nobody waiting for long.
    fn wait_until_obeyed(&self) {
        let waiting = |notes: &mut Notes| notes.pending;
        let waited = self
            .obeyed
            .wait_timeout_while(self.lock(), OBEYED_WITHIN, waiting);
        if waited.is_ok_and(|(_, timeout)| timeout.timed_out()) {
            tracing::warn!(
                "the queues are not in order of priority {OBEYED_WITHIN:?} after it was asked for"
            );
        }
    }
}

/// The daemon's end.
#[derive(Default)]
pub struct Queues {
    running: Option<Running>,
}

struct Running {
    shared: Arc<Shared>,
    bell: Arc<EventFd>,
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
            running.ring();
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
    pub fn examples(&self) -> Vec<Event> {
        match &self.running {
            Some(running) => std::mem::take(&mut running.shared.lock().examples),
            None => Vec::new(),
        }
    }
}

impl QueueState {
    /// All that was reset while it waited.
    pub fn refused(&self) -> Counters {
        let mut sum = Counters::default();
        self.refused.values().for_each(|counters| sum.add(counters));
        sum
    }
}

impl Running {
    fn start(maps: QueueMaps) -> Result<Running> {
        // Each parked connection is a descriptor of this process.
        raise_limit();
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let bell = EventFd::from_flags(flags)
            .map_err(|errno| Failure::io("make an eventfd", errno.into()))?;
        let bell = Arc::new(bell);
        let shared = Arc::<Shared>::default();
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
        self.shared.lock().ends = true;
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

/// The programs of the queue are loaded and the servers' sockets found in far less on a busy machine.
const OBEYED_WITHIN: Duration = Duration::from_secs(10);
/// As many examples of resets are kept for who asks; the counters count.
const EXAMPLES: usize = 20;
/// How often the thread says that it lives, and looks for parking listeners to be given back.
const HEARTBEAT: Duration = Duration::from_millis(250);
