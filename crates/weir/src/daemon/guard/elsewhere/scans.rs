//! When all that listen are looked at, and why.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use weir_kernel::FoundListener;

/// A look is followed by none for so many times as long as it took: anybody can make one necessary.
const APART: u32 = 20;
/// And for so long.
const LEAST_APART: Duration = Duration::from_secs(1);

/// What the next look is for, and when it may be.
pub struct Scans {
    /// There is a reason to.
    pub again: bool,
    /// Sockets of notices that were no use.
    pub unused: BTreeSet<u64>,
    /// Notices that were lost until the last look.
    pub lost: u32,
    /// No look before this.
    pub at: Instant,
    /// Sockets of listeners that a look has found and no notice had told of, ever.
    pub untold: u64,
}

impl Scans {
    /// None is wanted, and one may be at once.
    pub fn none(now: Instant) -> Scans {
        Scans {
            again: false,
            unused: BTreeSet::new(),
            lost: 0,
            at: now,
            untold: 0,
        }
    }

    /// When the next one is due, if one is wanted.
    pub fn due_at(&self) -> Option<Instant> {
        self.again.then_some(self.at)
    }

    /// This one was told of by a notice that is no use.
    pub fn add_unused(&mut self, found: &FoundListener) {
        self.again = true;
        self.unused.insert(found.socket);
    }

    /// A look has taken so long, and was begun at this time.
    pub fn looked(&mut self, now: Instant, took: Duration) {
        self.at = now + (took * APART).max(LEAST_APART);
    }
}
