//! What the daemon and the thread that releases tell each other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weir_core::listener::Listener;
use weir_core::refusals::Refusal;
use weir_core::verdict::Counters;
#[cfg(doc)]
use weir_core::verdict::Verdict;

/// The programs of the queue are loaded and the servers' sockets found in far less on a busy machine.
const OBEYED_WITHIN: Duration = Duration::from_secs(10);
/// As many examples of resets are kept for who asks; the counters count.
pub(super) const EXAMPLES: usize = 200;
/// How often the thread says that it lives, and looks for parking listeners to be given back.
pub(super) const HEARTBEAT: Duration = Duration::from_millis(250);

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
pub(super) struct Shared {
    pub notes: Mutex<Notes>,
    /// The thread has done what was wanted.
    pub obeyed: Condvar,
}

#[derive(Default)]
pub(super) struct Notes {
    /// What is wanted by now; taken by the thread when it has changed.
    pub wanted: Option<Vec<Wanted>>,
    /// What was wanted is not in force yet.
    pub pending: bool,
    /// By listener name.
    pub states: BTreeMap<String, QueueState>,
    /// Examples of what was reset since they were asked for last; at most [`EXAMPLES`].
    pub examples: Vec<Refusal>,
    /// Whether the thread is to end.
    pub ends: bool,
}

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was taken last is in force, or cannot be.
    pub fn answer(&self, states: BTreeMap<String, QueueState>) {
        let mut notes = self.lock();
        notes.states = states;
        notes.pending = notes.wanted.is_some();
        self.obeyed.notify_all();
    }

    /// Waits until what is wanted is in force. A thread that hangs or has failed keeps nobody waiting for long.
    pub fn wait_until_obeyed(&self) {
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

impl QueueState {
    /// All that was reset while it waited.
    pub fn refused(&self) -> Counters {
        let mut sum = Counters::default();
        self.refused.values().for_each(|counters| sum.add(counters));
        sum
    }
}
