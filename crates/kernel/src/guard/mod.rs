//! The guard: loading, putting a policy in force, attaching, counting.

mod attach;
pub(crate) mod classes;
mod load;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{read_volatile, write_volatile};
use std::time::Duration;

use libbpf_rs::{MapCore, MapFlags};
use weir_core::class::{Class, Limit, OwnerId};
use weir_core::listener::{Front, HalfClose, Listener, MAX_LISTENERS, Mode};
use weir_core::policy::{Table, table};
use weir_core::verdict::{Counters, VERDICTS, Verdict};

use self::attach::{Hook, link, link_header_len};
pub use self::classes::{CONTROLLED_FOR, ClassMaps};
use self::classes::{Classes, tables};
use self::load::Further;
use crate::error::{Error, Result, of_errno, of_libbpf};
use crate::listeners::{self, ListenSocket};
use crate::probe;
use crate::queue::QueueMaps;
use crate::skel::{GuardSkel, types};
use crate::sysctl::TcpOptions;

/// A guard that is loaded, and attached where [`Guard::attach`] said. Dropping it (or the death of
/// the process) detaches everything: no pins, no residue.
pub struct Guard {
    // Links before the skeleton: fields drop in this order, and programs leave the hooks first.
    links: BTreeMap<u32, Attached>,
    iterator: libbpf_rs::Link,
    skel: GuardSkel<'static>,
    further: Further,
    slots: BTreeMap<String, u16>,
    classes: Classes,
    generation: u32,
}

struct Attached {
    _tcx: OwnedFd,
    xdp: Option<OwnedFd>,
}

/// One sampled refusal. The guard keeps at most 20 a second and listening socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The listener's name.
    pub listener: String,
    /// The class's name; `None`: the listener has no classes.
    pub class: Option<String>,
    /// What was decided.
    pub verdict: Verdict,
    /// Client.
    pub source: SocketAddr,
    /// Server.
    pub destination: SocketAddr,
    /// Connections that waited for accept().
    pub queue_length: u32,
    /// Handshakes under way.
    pub half_open: u32,
    /// The queue's limit.
    pub queue_limit: u32,
    /// Estimated wait in the queue.
    pub wait: Duration,
    /// Observed only: the packet passed.
    pub observe: bool,
}

/// include/uapi/linux/membarrier.h
const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;

impl Guard {
    /// Loads the BPF programs. Nothing is attached yet and no listener is guarded.
    pub fn load() -> Result<Guard> {
        let skel = load::load()?;
        let iterator = skel
            .progs
            .list_listeners
            .attach()
            .map_err(of_libbpf("attach the iterator over sockets"))?;
        Ok(Guard {
            links: BTreeMap::new(),
            iterator,
            skel,
            further: Further::default(),
            slots: BTreeMap::new(),
            classes: Classes::default(),
            generation: 0,
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
            .write(&tables!(self.skel.maps), classes, place(&slots))?;
        let other = self.classes.other_is_controlled();
        self.generation += 1;
        let generation = self.generation;
        self.swap(|policy| {
            fill(policy, listeners, &table, &slots);
            for (l, listener) in policy.listeners.iter_mut().zip(listeners) {
                l.classes = next.mark(&listener.name, other);
            }
            policy.generation = generation;
        })?;
        self.slots = slots;
        self.classes.put_in_force(&tables!(self.skel.maps), next)
    }

    /// Puts other classes in force, atomically for every packet; the listeners stay as they are.
    /// Classes that stay, by name, keep bucket and counters. Fails without any change.
    pub fn set_classes(&mut self, classes: &[Class]) -> Result<()> {
        let next = self
            .classes
            .write(&tables!(self.skel.maps), classes, place(&self.slots))?;
        let other = self.classes.other_is_controlled();
        let names = self.slots.iter();
        let marks: BTreeMap<u16, u8> = names
            .map(|(name, slot)| (*slot, next.mark(name, other)))
            .collect();
        self.change_listeners(|l| {
            l.classes = marks.get(&l.counters).copied().unwrap_or(0);
        })?;
        self.classes.put_in_force(&tables!(self.skel.maps), next)
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
        if self.classes.control(&tables!(self.skel.maps), limits)? {
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
        self.classes.counters(&tables!(self.skel.maps))
    }

    /// The class tables, for another BPF object that is to find the same classes.
    pub fn class_maps(&self) -> ClassMaps<'_> {
        ClassMaps::of(&tables!(self.skel.maps))
    }

    /// The classes in force with their slots: what `class_of()` in C returns. 0 is `other`.
    pub fn class_slots(&self) -> impl Iterator<Item = (u32, &Class)> {
        self.classes.slots()
    }

    /// The counters slot of a listener; rules know a listener as 1 + this.
    pub fn listener_slot(&self, name: &str) -> Option<u16> {
        self.slots.get(name).copied()
    }

    /// Before going: admits every SYN from now on and sends no new cookie, while cookies that are
    /// already out stay valid. Call, wait for about a round-trip time, then drop the guard.
    pub fn drain(&mut self) -> Result<()> {
        self.change_listeners(|l| l.draining = 1)
    }

    /// Writes the copy of the policy that is not in force, starting from the one that is, and puts
    /// it in force.
    fn change_listeners(&mut self, change: impl Fn(&mut types::listener_policy)) -> Result<()> {
        let bss = self.bss();
        // SAFETY: `active` is mapped and aligned; only this process writes it.
        let active = unsafe { read_volatile(&bss.active) } as usize & 1;
        let current = Box::new(bss.policies[active]);
        self.swap(|policy| {
            *policy = *current;
            policy.listeners.iter_mut().for_each(&change);
        })
    }

    fn swap(&mut self, write: impl FnOnce(&mut types::policy)) -> Result<()> {
        let bss = self.bss();
        // SAFETY: as above.
        let next = 1 - (unsafe { read_volatile(&bss.active) } & 1);
        write(&mut bss.policies[next as usize]);
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        // SAFETY: `active` is mapped and aligned; BPF programs only read it.
        unsafe { write_volatile(&mut bss.active, next) };
        wait_for_packets()
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
            self.zero_counters(slot)?;
            slots.insert(l.name.clone(), slot);
        }
        Ok(slots)
    }

    fn zero_counters(&self, slot: u16) -> Result<()> {
        let cpus = libbpf_rs::num_possible_cpus().unwrap_or(1);
        let zero = vec![vec![0u8; VERDICTS.len() * 8]; cpus];
        self.skel
            .maps
            .counters
            .update_percpu(&u32::from(slot).to_ne_bytes(), &zero, MapFlags::ANY)
            .map_err(of_libbpf("reset the counters"))
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
        let per_cpu = self
            .skel
            .maps
            .counters
            .lookup_percpu(&u32::from(slot).to_ne_bytes(), MapFlags::ANY)
            .map_err(of_libbpf(format!("count for \"{name}\"")))?
            .unwrap_or_default();
        let mut sum = Counters::default();
        for cpu in per_cpu {
            for (total, bytes) in sum.0.iter_mut().zip(cpu.chunks_exact(8)) {
                *total += u64::from_ne_bytes(bytes.try_into().expect("8 bytes"));
            }
        }
        Ok(sum)
    }

    /// All listening TCP sockets of this network namespace.
    pub fn listen_sockets(&self) -> Result<Vec<ListenSocket>> {
        listeners::read(self.iterator.as_fd())
    }

    /// The maps that a [`crate::queue::Queue`] of this namespace shares.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn queue_maps(&self) -> Result<QueueMaps> {
        let keep = |fd: BorrowedFd<'_>| {
            fd.try_clone_to_owned().map_err(|e| Error::Failed {
                what: "share maps with the prioritized queue".into(),
                cause: e.to_string(),
            })
        };
        let classes = self.class_maps();
        Ok(QueueMaps {
            parking: keep(self.skel.maps.parking.as_fd())?,
            group_of: keep(self.skel.maps.group_of.as_fd())?,
            iterator: keep(self.iterator.as_fd())?,
            classes: [
                keep(classes.active)?,
                keep(classes.masks)?,
                keep(classes.rules)?,
                keep(classes.policies)?,
            ],
        })
    }

    /// Sampled refusals since the last call (bounded by the ring's size; older ones are lost).
    pub fn events(&mut self) -> Result<Vec<Event>> {
        let names = Names {
            listeners: self
                .slots
                .iter()
                .map(|(n, &slot)| (slot, n.clone()))
                .collect(),
            classes: self.classes.names(),
        };
        let mut events = Vec::new();
        self.drain_ring(|bytes| events.extend(parse_event(bytes, &names)))
            .map_err(of_libbpf("read the sampled events"))?;
        Ok(events)
    }

    fn drain_ring(&self, mut each: impl FnMut(&[u8])) -> libbpf_rs::Result<()> {
        let mut builder = libbpf_rs::RingBufferBuilder::new();
        builder.add(&self.skel.maps.events, |bytes| {
            each(bytes);
            0
        })?;
        builder.build()?.consume()
    }
}

/// The number by which rules know a listener: 1 + its counters slot.
fn place(slots: &BTreeMap<String, u16>) -> impl Fn(&str) -> Option<OwnerId> {
    |name| slots.get(name).map(|slot| slot + 1)
}

/// Length of the kernel's tick: what the coarse clock resolves (1 / CONFIG_HZ).
pub(crate) fn tick_ns() -> u32 {
    // SAFETY: timespec is plain data; all zero is valid.
    let mut resolution: libc::timespec = unsafe { std::mem::zeroed() };
    // SAFETY: resolution is writable.
    unsafe { libc::clock_getres(libc::CLOCK_MONOTONIC_COARSE, &mut resolution) };
    resolution.tv_nsec.max(1) as u32
}

/// Waits until no packet is judged by the copy of the policy that was in force before: a BPF
/// program runs inside an RCU read-side section, and this command waits for a grace period.
fn wait_for_packets() -> Result<()> {
    // SAFETY: membarrier(2) takes no pointers.
    let done = unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) };
    if done == 0 {
        return Ok(());
    }
    if std::io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL) {
        // Kernels with nohz_full CPUs have no such command. No packet takes this long.
        std::thread::sleep(Duration::from_millis(100));
        return Ok(());
    }
    Err(of_errno(
        "wait for packets under the old policy (membarrier)",
    ))
}

fn table_of(listeners: &[Listener]) -> Result<Table> {
    table(listeners).map_err(|e| Error::Failed {
        what: "put the policy in force".into(),
        cause: e.to_string(),
    })
}

/// Writes a policy for these listeners, with counter slots in their order.
pub(crate) fn fill_policy(policy: &mut types::policy, listeners: &[Listener]) -> Result<()> {
    let slots = listeners
        .iter()
        .enumerate()
        .map(|(i, l)| (l.name.clone(), i as u16))
        .collect();
    fill(policy, listeners, &table_of(listeners)?, &slots);
    Ok(())
}

fn fill(
    policy: &mut types::policy,
    listeners: &[Listener],
    table: &Table,
    slots: &BTreeMap<String, u16>,
) {
    policy.ports.fill(types::port_entry::default());
    policy.listeners.fill(types::listener_policy::default());
    policy.exact.fill(types::exact_entry::default());
    let options = TcpOptions::read();
    policy.cookies = (options.syncookies >= 1 && probe::has_cookie_kfunc()).into();
    policy.tcp_wscale = options.window_scaling.into();
    policy.tcp_sack = options.sack.into();
    policy.tcp_tstamp = options.timestamps.into();
    policy.exact_seed = table.seed;
    for (port, e) in &table.ports {
        policy.ports[usize::from(port.to_be())] = types::port_entry {
            any4: e.any4,
            any6: e.any6,
            exact: e.exact.into(),
            pad: 0,
        };
    }
    for e in &table.exact {
        policy.exact[e.slot] = types::exact_entry {
            addr: words(&e.address),
            port: e.port.to_be(),
            listener: e.listener,
        };
    }
    for (to, l) in policy.listeners.iter_mut().zip(listeners) {
        *to = listener_policy(l, slots[&l.name]);
    }
}

/// The four words of an address as they stand in memory and in packets.
fn words(address: &[u8; 16]) -> [u32; 4] {
    std::array::from_fn(|i| {
        u32::from_ne_bytes(address[i * 4..i * 4 + 4].try_into().expect("4 bytes"))
    })
}

/// Stands in the list of a listener none of whose interfaces exists (yet): matches no packet.
const NO_INTERFACE: u32 = u32::MAX;

fn listener_policy(l: &Listener, slot: u16) -> types::listener_policy {
    let mut p = types::listener_policy {
        target_wait_ns: l.target_wait.as_nanos() as u64,
        interval_ns: l.interval.as_nanos() as u64,
        overbook_1024: l.overbook_1024(),
        counters: slot,
        establish: l.establish as u8,
        reject_syn: l.reject_syn as u8,
        admit: l.admit as u8,
        half_close: (l.half_close == HalfClose::Reset).into(),
        observe: (l.mode == Mode::Observe).into(),
        reason: l.reason.into(),
        front_xdp: (l.front == Front::Xdp).into(),
        ..Default::default()
    };
    for (to, name) in p.ifindex.iter_mut().zip(&l.interfaces) {
        *to = nix::net::if_::if_nametoindex(name.as_str()).unwrap_or(NO_INTERFACE);
        p.interfaces += 1;
    }
    p
}

/// Size of struct guard_event in bpf/abi.h, checked there.
const EVENT: usize = 64;

/// Names by slot.
struct Names {
    listeners: BTreeMap<u16, String>,
    classes: BTreeMap<u32, String>,
}

fn parse_event(bytes: &[u8], names: &Names) -> Option<Event> {
    let b: &[u8; EVENT] = bytes.get(..EVENT)?.try_into().ok()?;
    let u16_at = |at: usize| u16::from_ne_bytes([b[at], b[at + 1]]);
    let u32_at = |at: usize| u32::from_ne_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
    let address = |at: usize| {
        let v6 = Ipv6Addr::from(<[u8; 16]>::try_from(&b[at..at + 16]).expect("16 bytes"));
        v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
    };
    Some(Event {
        listener: names.listeners.get(&u16_at(44))?.clone(),
        class: names.classes.get(&u32_at(0)).cloned(),
        verdict: VERDICTS.get(usize::from(b[46]))?.verdict,
        source: SocketAddr::new(address(8), u16_at(40)),
        destination: SocketAddr::new(address(24), u16_at(42)),
        queue_length: u32_at(48),
        half_open: u32_at(52),
        queue_limit: u32_at(56),
        wait: Duration::from_micros(u32_at(60).into()),
        observe: b[47] != 0,
    })
}

#[cfg(test)]
mod tests {
    use weir_core::policy::mapped;

    use super::*;

    #[test]
    fn addresses_keep_the_order_of_their_bytes() {
        let w = words(&mapped("10.1.2.3".parse().unwrap()));
        assert_eq!(w[3].to_ne_bytes(), [10, 1, 2, 3]);
        assert_eq!(w[2].to_ne_bytes(), [0, 0, 0xff, 0xff]);
    }
}
