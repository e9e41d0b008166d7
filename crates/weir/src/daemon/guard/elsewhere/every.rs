//! Listeners for every server in a place, and for those that come (`weir protect all --where`).

use std::collections::BTreeSet;

use weir_core::listener::{Listener, MAX_LISTENERS};
use weir_kernel::FoundListener;

use super::due::Why;
use super::{Elsewhere, Every};
use crate::daemon::backend::Spaces;
use crate::failure::Result;

impl Elsewhere {
    /// Guards the servers of all ports in a place: those that are there, and those that come.
    ///
    /// # Errors
    /// As of [`Elsewhere::set`].
    pub fn guard_every(&mut self, every: Every, kernel: &mut impl Spaces) -> Result<()> {
        self.every = Some(every);
        self.set(&self.all(), kernel)
    }

    /// Asks for a listener at each port that is new, if every server is to be guarded. Listeners whose servers have all gone stay
    /// until there is no room.
    pub(super) fn ask_for_new(&mut self, found: &[FoundListener]) {
        let (new, unused) = self.new_ports(found);
        for one in &unused {
            self.scans.add_unused(one);
        }
        if self.asked.len() + new.len() > MAX_LISTENERS {
            self.forget_unserved(found);
        }
        let room = MAX_LISTENERS.saturating_sub(self.asked.len());
        let left_out = new.iter().skip(room).copied();
        let left_out: Vec<u16> = left_out
            .filter(|port| self.left_out.insert(*port))
            .collect();
        if !left_out.is_empty() {
            tracing::warn!("no more than {MAX_LISTENERS} ports can be guarded: not {left_out:?}");
        }
        if let Some(every) = &self.every {
            let new = new.into_iter().take(room);
            self.asked.extend(new.map(|port| (every.listener)(port)));
        }
    }

    /// Ports of this place for which there is no listener yet, and those of whom it is not known where they are: their process
    /// has ended, and another one may have the socket.
    fn new_ports(&self, found: &[FoundListener]) -> (BTreeSet<u16>, Vec<FoundListener>) {
        let (Some(every), Some(world)) = (&self.every, &self.world) else {
            return Default::default();
        };
        let asked: BTreeSet<u16> = self.asked.iter().map(|one| one.address.port).collect();
        let new = |one: &&FoundListener| {
            one.port != 0 && !asked.contains(&one.port) && self.is_for_others(one)
        };
        let new: Vec<FoundListener> = found.iter().filter(new).cloned().collect();
        let workloads = world.workloads(&new).into_iter();
        let (mut ports, mut unknown) = (BTreeSet::new(), Vec::new());
        for (one, workload) in new.into_iter().zip(workloads) {
            match workload {
                Some(workload) if every.location.matches(&workload) => {
                    ports.insert(one.port);
                }
                Some(_) => {}
                None => unknown.push(one),
            }
        }
        (ports, unknown)
    }

    /// Whether clients from elsewhere may come. In each of its containers Docker has a server of names at a port of its own on
    /// loopback.
    fn is_for_others(&self, one: &FoundListener) -> bool {
        one.namespace == self.own || !one.ip.to_canonical().is_loopback()
    }

    /// Forgets the listeners of every server at whose ports nobody listens. `found` do by now.
    fn forget_unserved(&mut self, found: &[FoundListener]) {
        let Some(every) = &self.every else { return };
        let listening = self.sockets.values().filter(|one| one.listens);
        let listening = listening.map(|one| &one.found).chain(found);
        let served: BTreeSet<u16> = listening.map(|one| one.port).collect();
        let is_of_every = |one: &Listener| *one == (every.listener)(one.address.port);
        self.asked
            .retain(|one| served.contains(&one.address.port) || !is_of_every(one));
        let ports: BTreeSet<u16> = self.asked.iter().map(|one| one.address.port).collect();
        self.sockets
            .retain(|_, one| one.listens || ports.contains(&one.found.port));
        let asked: BTreeSet<&str> = self.asked.iter().map(|one| &*one.name).collect();
        self.gone.retain(|name, _| asked.contains(&**name));
        for (namespace, space) in &self.spaces {
            let mut replicas = space.replicas.iter();
            if replicas.any(|one| !asked.contains(&*one.asked.name)) {
                self.due.add(*namespace, Why::Look);
            }
        }
    }
}
