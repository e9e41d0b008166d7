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

    /// Has them in force where their servers are now. Whether that is otherwise than before in weir's own namespace.
    pub fn follow_sights(&mut self, sights: Vec<Sight>) -> bool {
        let Some(kernel) = &mut self.kernel else {
            return false;
        };
        kernel.follow_attached();
        let mut trouble = attach(kernel, &sights);
        let wanted = namespaces(&sights);
        if self.around.namespaces != wanted {
            let before = std::mem::replace(&mut self.around.namespaces, wanted);
            if let Err(error) = self.reapply() {
                // It is tried again at the next look.
                self.around.namespaces = before;
                trouble.push(error);
            }
        }
        for one in trouble.iter().filter(|one| !self.trouble.contains(one)) {
            tracing::error!("{one}");
        }
        self.trouble = trouble;
        let is_otherwise = own(&self.sights) != own(&sights);
        self.sights = sights;
        is_otherwise
    }

    /// Names of the workloads in which a listener is in force.
    pub(super) fn workloads(&self, listener: &QuicListener) -> Vec<String> {
        let its = self.around.namespaces.get(&listener.name);
        let is_known = |sight: &&Sight| its.is_some_and(|its| its.contains(&sight.namespace));
        let names = self.sights.iter().filter(is_known);
        let names = names.filter(|sight| self.is_attached(sight));
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

fn own(sights: &[Sight]) -> Option<&Sight> {
    sights.iter().find(|sight| sight.path.is_none())
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
