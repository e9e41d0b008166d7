//! What a session keeps of its looks at whether SYNs reach weir.

use std::collections::BTreeMap;
use std::time::Instant;

use weir_core::sight::Sight;
use weir_kernel::Program;

use crate::host::chains::Chains;

/// Whether SYNs reach weir, as far as a session knows.
pub(super) struct Sights {
    pub begun: Instant,
    /// The next look; [`begun`](Self::begun): at once.
    pub due: Instant,
    pub listeners: BTreeMap<String, Sight>,
    /// Programs of others that see a packet before weir at tc ingress, by the interface's index.
    pub before: BTreeMap<u32, Vec<Program>>,
    /// Those behind it, of each interface that could be asked at the last look.
    pub behind: Chains,
}

impl Sights {
    pub fn new() -> Sights {
        let now = Instant::now();
        Sights {
            begun: now,
            due: now,
            listeners: BTreeMap::new(),
            before: BTreeMap::new(),
            behind: Chains::new(),
        }
    }

    /// Other listeners, or another place among the programs: what was seen says nothing of what comes.
    pub fn forget(&mut self) {
        self.listeners.clear();
        self.due = self.begun;
    }

    /// An interface has come or gone.
    pub fn begin_anew(&mut self) {
        self.listeners.values_mut().for_each(Sight::begin_anew);
        self.due = self.begun;
    }

    pub fn is_lost(&self, listener: &str) -> bool {
        self.listeners.get(listener).is_some_and(Sight::is_lost)
    }
}
