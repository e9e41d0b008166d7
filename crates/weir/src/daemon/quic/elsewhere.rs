//! QUIC listeners in other network namespaces: they go with the listeners there.

use std::collections::{BTreeMap, BTreeSet};

use weir_kernel::{Namespace, NamespacePath, Quic};

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

/// Weir's own namespace, if it has servers of such listeners.
pub(super) fn own(sights: &[Sight]) -> Option<&Sight> {
    sights.iter().find(|sight| sight.path.is_none())
}

/// By the listener's name, where it is to be in force.
pub(super) fn namespaces(sights: &[Sight]) -> BTreeMap<String, BTreeSet<Namespace>> {
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
pub(super) fn attach(kernel: &mut Quic, sights: &[Sight]) -> Vec<String> {
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
