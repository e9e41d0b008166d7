//! QUIC listeners in other network namespaces: they go with the listeners there.

use std::collections::{BTreeMap, BTreeSet};

use weir_core::quic::QuicListener;
use weir_kernel::{Namespace, NamespacePath, Quic};

use super::QuicGuard;

/// A network namespace with servers of QUIC listeners.
#[derive(Debug, Clone, PartialEq)]
pub struct Sight {
    /// Which.
    pub namespace: Namespace,
    /// By which it is entered; `None`: weir's own.
    pub path: Option<NamespacePath>,
    /// Its interfaces, by their numbers there: those that TCP is guarded on.
    pub interfaces: BTreeMap<u32, String>,
    /// By the QUIC listener's name, what its workload is called.
    pub listeners: BTreeMap<String, String>,
}

impl QuicGuard {
    /// Whether some are in other network namespaces.
    pub fn is_elsewhere(&self) -> bool {
        self.list.iter().any(QuicListener::is_elsewhere)
    }

    /// Has them in force where their servers are now. Whether that is somewhere else than before.
    pub fn follow_sights(&mut self, sights: Vec<Sight>) -> bool {
        let Some(kernel) = &mut self.kernel else {
            return false;
        };
        kernel.follow_attached();
        self.trouble = attach(kernel, &sights);
        let has_changed = self.sights != sights;
        if has_changed {
            self.sights = sights;
            self.around.namespaces = namespaces(&self.sights);
            self.reapply();
        }
        has_changed
    }

    /// Names of the workloads in which a listener is in force.
    pub(super) fn workloads(&self, listener: &QuicListener) -> Vec<String> {
        let names = self.sights.iter().filter(|sight| self.is_attached(sight));
        let names = names.filter_map(|sight| sight.listeners.get(&listener.name).cloned());
        let names: BTreeSet<String> = names.collect();
        names.into_iter().collect()
    }

    /// To all interfaces; those of weir's own namespace are another matter.
    fn is_attached(&self, sight: &Sight) -> bool {
        let Some(kernel) = &self.kernel else {
            return false;
        };
        let is_on = |index: &u32| kernel.attached_in(sight.namespace, *index) == Ok(true);
        sight.path.is_none() || sight.interfaces.keys().all(is_on)
    }
}

fn namespaces(sights: &[Sight]) -> BTreeMap<String, BTreeSet<Namespace>> {
    let mut namespaces: BTreeMap<String, BTreeSet<Namespace>> = BTreeMap::new();
    for sight in sights {
        for name in sight.listeners.keys() {
            let its = namespaces.entry(name.clone()).or_default();
            its.insert(sight.namespace);
        }
    }
    namespaces
}

/// Attaches where they are and nowhere else. What is not as it should be, a sentence each.
fn attach(kernel: &mut Quic, sights: &[Sight]) -> Vec<String> {
    let mut trouble = Vec::new();
    let mut wanted = BTreeSet::new();
    for sight in sights {
        let Some(path) = &sight.path else {
            continue;
        };
        for (index, name) in &sight.interfaces {
            wanted.insert((sight.namespace, *index));
            let before = kernel.attached_in(sight.namespace, *index);
            let before = before.err().map(str::to_owned);
            // One that has failed is tried again.
            let now = kernel.attach_in(path, sight.namespace, *index).err();
            let failed = now.map(|error| error.to_string()).or(before);
            let failed = failed
                .map(|why| format!("QUIC through {name} of another network namespace: {why}"));
            trouble.extend(failed);
        }
    }
    for (namespace, index) in kernel.interfaces_elsewhere() {
        if !wanted.contains(&(namespace, index)) {
            kernel.detach_in(namespace, index);
        }
    }
    trouble
}
