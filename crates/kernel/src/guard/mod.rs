//! The guard (bpf/guard.bpf.c): loading, putting a policy in force, attaching, counting.

pub(crate) mod attach;
mod classes;
mod events;
pub(crate) mod listeners;
mod load;
mod policy;
pub(crate) mod skel;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{read_volatile, write_volatile};
use std::time::Duration;

use libbpf_rs::skel::Skel;
use weir_core::class::{Class, Limit, OwnerId};
use weir_core::listener::{Listener, MAX_LISTENERS};
use weir_core::refusals::Refusal;
use weir_core::verdict::Counters;

use crate::cgroups::cgroup_root;
use crate::clock::now_ns;
use crate::error::{Error, Result, of_libbpf};
use crate::object::{SharedMaps, drain, percpu};
use attach::{Hook, link, link_header_len};
use classes::{Classes, counters_of};
use events::Names;
use listeners::{ListenSocket, Listeners};
use load::Further;
use policy::{fill, table_of};
use skel::GuardSkel;
use skel::types::{self, guard_counters, guard_event};

pub use classes::CONTROLLED_FOR;

/// What a [`crate::queue::Parking`] of the same network namespace shares with the guard.
pub struct QueueMaps {
    pub(crate) maps: SharedMaps,
    pub(crate) iterator: OwnedFd,
    pub(crate) cgroups: Option<OwnedFd>,
}

/// A guard that is loaded, and attached where [`Guard::attach`] said. Dropping it (or the death of
/// the process) detaches everything: no pins, no residue.
pub struct Guard {
    // Links before the skeleton: fields drop in this order, and programs leave the hooks first.
    links: BTreeMap<u32, Attached>,
    pub(crate) listeners: Listeners,
    skel: GuardSkel<'static>,
    further: Further,
    slots: BTreeMap<String, u16>,
    classes: Classes,
    /// Cookies may be sent, as far as the caller has said.
    cookies: bool,
    generation: u32,
    /// Of the policy in force; `None` until they are asked for.
    names: Option<Names>,
    /// Their root, for the queue, which may be wanted when the rights to open it are given up.
    cgroups: Option<OwnedFd>,
}

struct Attached {
    _tcx: OwnedFd,
    xdp: Option<OwnedFd>,
}

/// include/uapi/linux/membarrier.h
const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;
/// How long is waited for packets without it.
const WITHOUT_MEMBARRIER: Duration = Duration::from_millis(100);

impl Guard {
    /// Loads the BPF programs. Nothing is attached yet and no listener is guarded.
    pub fn load() -> Result<Guard> {
        let skel = load::load()?;
        let listeners = Listeners::new(&skel)?;
        Ok(Guard {
            links: BTreeMap::new(),
            listeners,
            skel,
            further: Further::default(),
            slots: BTreeMap::new(),
            classes: Classes::default(),
            cookies: true,
            generation: 0,
            names: None,
            cgroups: cgroup_root(),
        })
    }

    /// Puts a policy in force, atomically for every packet: each packet is judged by the old policy
    /// or by the new one, whole. Listeners keep their counters by name, classes their counters and
    /// buckets. Fails without any change.
    pub fn apply(&mut self, listeners: &[Listener], classes: &[Class]) -> Result<()> {
        let table = table_of(listeners)?;
        let slots = self.assign_slots(listeners)?;
        let next = self
            .classes
            .write(&self.skel.maps, classes, place(&slots))?;
        let other = self.classes.other_is_controlled();
        self.generation += 1;
        let (generation, cookies) = (self.generation, self.cookies);
        self.swap(|policy| {
            fill(policy, listeners, &table, &slots);
            policy.cookies &= u8::from(cookies);
            for (l, listener) in policy.listeners.iter_mut().zip(listeners) {
                l.classes = next.mark(&listener.name, other);
            }
            policy.generation = generation;
        });
        self.slots = slots;
        self.names = None;
        self.classes.put_in_force(&self.skel.maps, next)
    }

    /// Whether weir may answer SYNs with cookies of its own, from the next [`Guard::apply`] on; else the kernel
    /// answers with its own when its SYN queue is full. Cookies that are out stay valid.
    pub fn allow_cookies(&mut self, allowed: bool) {
        self.cookies = allowed;
    }

    /// Puts other classes in force, atomically for every packet; the listeners stay as they are.
    /// Classes that stay, by name, keep bucket and counters. Fails without any change.
    pub fn set_classes(&mut self, classes: &[Class]) -> Result<()> {
        let next = self
            .classes
            .write(&self.skel.maps, classes, place(&self.slots))?;
        let other = self.classes.other_is_controlled();
        let names = self.slots.iter();
        let marks: BTreeMap<u16, u8> = names
            .map(|(name, slot)| (*slot, next.mark(name, other)))
            .collect();
        self.change_listeners(|l| {
            l.classes = marks.get(&l.counters.into()).copied().unwrap_or(0);
        });
        self.names = None;
        self.classes.put_in_force(&self.skel.maps, next)
    }

    /// The classes in force, without those of proxies.
    pub fn classes(&self) -> &[Class] {
        self.classes.list()
    }

    /// Sets (`Some`) or lifts the controller's limits of these classes (or of `other`). Of such a limit and
    /// the class's own the one with the lower rate holds. What is over it gets the listener's `reject_syn`. It
    /// ends by itself after [`crate::CONTROLLED_FOR`] without being set again.
    ///
    /// # Errors
    /// There is no class of one of these names: then nothing has changed.
    pub fn set_controlled_rates(&mut self, limits: &BTreeMap<String, Option<Limit>>) -> Result<()> {
        if self.classes.control(&self.skel.maps, limits)? {
            // From now on each SYN is looked up.
            let classes = self.classes.list().to_vec();
            self.set_classes(&classes)?;
        }
        Ok(())
    }

    /// Counters of every class, and of `other`, on all of its listeners, since it was first in force.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn class_counters(&self) -> Result<BTreeMap<String, Counters>> {
        self.classes.counters(&self.skel.maps)
    }

    /// The classes in force with their slots: what `class_of()` in C returns. 0 is `other`.
    pub fn class_slots(&self) -> impl Iterator<Item = (u32, &Class)> {
        self.classes.slots()
    }

    /// The counters slot of a listener; rules know a listener as 1 + this.
    pub fn listener_slot(&self, name: &str) -> Option<u16> {
        self.slots.get(name).copied()
    }

    /// Whether more CPUs are online than claims are kept apart for: then a full queue may get up to a receive batch of
    /// each CPU too many.
    pub fn cpus_share_claims(&self) -> bool {
        // SAFETY: sysconf(3) takes no pointers.
        let online = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
        online > i64::from(weir_core::abi::MAX_CPUS)
    }

    /// Before going: admits every SYN from now on and sends no new cookie, while cookies that are
    /// already out stay valid. Call, wait for about a round-trip time, then drop the guard.
    pub fn drain(&mut self) {
        self.change_listeners(|l| l.draining = 1);
    }

    /// Writes the copy of the policy that is not in force, starting from the one that is, and puts
    /// it in force.
    fn change_listeners(&mut self, change: impl Fn(&mut types::listener_policy)) {
        let bss = self.bss();
        // SAFETY: `active` is mapped and aligned; only this process writes it.
        let active = unsafe { read_volatile(&bss.active) } as usize & 1;
        let current = Box::new(bss.policies[active]);
        self.swap(|policy| {
            *policy = *current;
            policy.listeners.iter_mut().for_each(&change);
        });
    }

    fn swap(&mut self, write: impl FnOnce(&mut types::policy)) {
        let bss = self.bss();
        // SAFETY: as above.
        let next = 1 - (unsafe { read_volatile(&bss.active) } & 1);
        write(&mut bss.policies[next as usize]);
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        // SAFETY: `active` is mapped and aligned; BPF programs only read it.
        unsafe { write_volatile(&mut bss.active, next) };
        wait_for_packets();
    }

    fn bss(&mut self) -> &mut types::bss {
        self.skel
            .maps
            .bss_data
            .as_deref_mut()
            .expect("the guard's globals are mapped")
    }

    /// Counter slots by name; a listener that stays keeps its slot, a new one starts from zero.
    fn assign_slots(&self, listeners: &[Listener]) -> Result<BTreeMap<String, u16>> {
        let mut slots: BTreeMap<String, u16> = listeners
            .iter()
            .filter_map(|l| self.slots.get(&l.name).map(|&slot| (l.name.clone(), slot)))
            .collect();
        let mut free = (0..MAX_LISTENERS as u16)
            .filter(|slot| !self.slots.values().any(|used| used == slot))
            .chain(
                self.slots
                    .iter()
                    .filter(|(n, _)| !slots.contains_key(*n))
                    .map(|(_, &s)| s),
            )
            .collect::<Vec<_>>()
            .into_iter();
        for l in listeners
            .iter()
            .filter(|l| !self.slots.contains_key(&l.name))
        {
            let slot = free.next().expect("as many slots as listeners are allowed");
            percpu::reset::<guard_counters>(&self.skel.maps.counters, slot)
                .map_err(of_libbpf("reset the counters"))?;
            slots.insert(l.name.clone(), slot);
        }
        Ok(slots)
    }

    /// Attaches to one interface (tcx ingress; with `xdp` also native XDP). Attaching twice is no
    /// error, and adds or takes away the XDP front. An interface that has disappeared needs no detach.
    ///
    /// # Errors
    /// [`Error::Unsupported`] on link layers other than Ethernet and bare IP, and for the front
    /// where there is no link header; else what the kernel refused.
    pub fn attach(&mut self, ifindex: u32, xdp: bool) -> Result<()> {
        let header = link_header_len(ifindex)?.ok_or_else(|| Error::Unsupported {
            what: "the guard on this interface".into(),
            cause: "it carries neither Ethernet frames nor bare IP packets".into(),
            hint: "name the interfaces to guard, without it".into(),
        })?;
        if !self.links.contains_key(&ifindex) {
            let program = match header {
                0 => self.further.tc_bare(&self.skel)?,
                _ => self.tc(),
            };
            let tcx = link(program.as_raw_fd(), ifindex, Hook::Tcx)?;
            self.links.insert(
                ifindex,
                Attached {
                    _tcx: tcx,
                    xdp: None,
                },
            );
        }
        let has_front = self.links[&ifindex].xdp.is_some();
        let front = match xdp {
            false => None,
            true if header == 0 => {
                return Err(Error::Unsupported {
                    what: "the XDP front".into(),
                    cause: "the device has no link header".into(),
                    hint: "use front = \"tc\"".into(),
                });
            }
            true if has_front => return Ok(()),
            true => Some(link(self.xdp()?.as_raw_fd(), ifindex, Hook::Xdp)?),
        };
        self.links.get_mut(&ifindex).expect("inserted above").xdp = front;
        Ok(())
    }

    /// The program for tc on Ethernet devices.
    pub(crate) fn tc(&self) -> BorrowedFd<'_> {
        self.skel.progs.guard_tc.as_fd()
    }

    /// The program for native XDP.
    pub(crate) fn xdp(&self) -> Result<BorrowedFd<'_>> {
        self.further.xdp(&self.skel)
    }

    /// Loads the program for tc on devices without a link header, which the first such device would.
    pub(crate) fn load_bare(&self) -> Result<()> {
        self.further.tc_bare(&self.skel).map(drop)
    }

    /// Detaches from one interface; no error if not attached.
    pub fn detach(&mut self, ifindex: u32) {
        self.links.remove(&ifindex);
    }

    /// Counters of the listener with this name, since it was first guarded.
    pub fn counters(&self, name: &str) -> Result<Counters> {
        let failed = |cause: String| Error::Failed {
            what: format!("count for \"{name}\""),
            cause,
        };
        let slot = *self
            .slots
            .get(name)
            .ok_or_else(|| failed("no such listener".into()))?;
        let counters = percpu::values::<guard_counters>(&self.skel.maps.counters, slot)
            .map_err(of_libbpf(format!("count for \"{name}\"")))?;
        let mut sum = Counters::default();
        for one in counters {
            sum.add(&counters_of(one));
        }
        Ok(sum)
    }

    /// All listening TCP sockets of this network namespace.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn listen_sockets(&self) -> Result<Vec<ListenSocket>> {
        self.listeners.all(&self.skel)
    }

    /// The same for who asks many times a second. One that is new is among them after a second, or once the guard has let
    /// a connection come to it.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn known_sockets(&self) -> Result<Vec<ListenSocket>> {
        self.listeners.known(&self.skel)
    }

    /// What a [`crate::queue::Parking`] of this namespace shares.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn queue_maps(&self) -> Result<QueueMaps> {
        let share = |fd: BorrowedFd<'_>, what: &str| {
            fd.try_clone_to_owned().map_err(|e| Error::Failed {
                what: format!("share {what}"),
                cause: e.to_string(),
            })
        };
        let root = self.cgroups.as_ref().map(AsFd::as_fd);
        Ok(QueueMaps {
            maps: self.shared_maps()?,
            iterator: share(self.listeners.iterator(), "the iterator over sockets")?,
            cgroups: root
                .map(|fd| share(fd, "the root of the cgroups"))
                .transpose()?,
        })
    }

    pub(crate) fn shared_maps(&self) -> Result<SharedMaps> {
        SharedMaps::of(self.skel.object())
    }

    /// Sampled refusals since the last call (bounded by the ring's size; those that find it full are lost).
    ///
    /// # Errors
    /// The ring cannot be read.
    pub fn events(&mut self) -> Result<Vec<Refusal>> {
        let listeners = self.slots.iter().map(|(name, &slot)| (slot, &**name));
        let classes = || self.classes.names().into_iter();
        let names = self
            .names
            .get_or_insert_with(|| Names::new(listeners, classes()));
        let mut events = Vec::new();
        let now = now_ns();
        drain(&self.skel.maps.events, |event: guard_event| {
            events.extend(names.refusal(&event, now));
        })
        .map_err(of_libbpf("read the sampled events"))?;
        Ok(events)
    }
}

/// The number by which rules know a listener: 1 + its counters slot.
fn place(slots: &BTreeMap<String, u16>) -> impl Fn(&str) -> Option<OwnerId> {
    |name| slots.get(name).map(|slot| slot + 1)
}

/// Waits until no packet is judged by the copy of the policy that was in force before: a BPF
/// program runs inside an RCU read-side section, and this command waits for a grace period.
fn wait_for_packets() {
    // SAFETY: membarrier(2) takes no pointers.
    let done = unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) };
    if done != 0 {
        // Kernels with nohz_full CPUs or without CONFIG_MEMBARRIER have no such command, and sandboxes refuse it. No packet
        // takes this long.
        std::thread::sleep(WITHOUT_MEMBARRIER);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::seccomp::{NUMBER, answer, install, load, skip};

    /// The new policy is in force by then: an error could not take it back.
    #[test]
    fn where_the_kernel_refuses_to_wait_for_packets_time_passes_instead() {
        for errno in [libc::ENOSYS, libc::EPERM, libc::EINVAL] {
            let refused = std::thread::spawn(move || {
                let filter = [
                    load(NUMBER),
                    skip(libc::SYS_membarrier as u32, 0, 1),
                    answer(libc::SECCOMP_RET_ERRNO | errno as u32),
                    answer(libc::SECCOMP_RET_ALLOW),
                ];
                install(&filter, 0).unwrap();
                let begun = Instant::now();
                wait_for_packets();
                begun.elapsed()
            });
            let took = refused.join().unwrap();
            assert!(took >= WITHOUT_MEMBARRIER, "errno {errno}: {took:?}");
        }
    }
}
