//! The guard (bpf/guard.bpf.c): loading, putting a policy in force, attaching, counting.

pub(crate) mod attach;
pub(crate) mod attacher;
pub(crate) mod chain;
mod classes;
mod counters;
mod cpus;
pub(crate) mod elsewhere;
pub(crate) mod events;
mod grace;
mod limits;
pub(crate) mod listeners;
mod load;
mod namespaces;
pub(crate) mod policy;
mod quic_owners;
pub(crate) mod skel;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{read_volatile, write_volatile};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use libbpf_rs::ProgramInput;
use libbpf_rs::skel::Skel;
use weir_core::class::{BucketLimit, Class, OwnerId};
use weir_core::listener::{Listener, MAX_LISTENERS, ResidenceMode};
use weir_core::policy::Services;
use weir_core::refusals::Refusal;
use weir_core::residence::{Gate, GateState};
use weir_core::verdict::Counters;

use crate::cgroups::cgroup_root;
use crate::clock::{now_ns, tick_ns};
use crate::error::{Error, Result, of_libbpf};
use crate::namespace::Namespace;
use crate::object::{Mapped, SharedMaps, drain, plain};
use crate::watch::{Established, Watch};
use attach::{Hook, link, link_header_len};
use attacher::Attacher;
use chain::Rank;
use classes::Classes;
use counters::sum_of;
use cpus::highest_cpu;
use events::Names;
use grace::wait_for_packets;
use listeners::{ListenSocket, Listeners};
use load::Further;
use namespaces::{Common, Namespaces};
use policy::{fill, table_of};
use quic_owners::QuicOwners;
use skel::GuardSkel;
use skel::types::{self, guard_event, residence_gate};

pub use classes::{CONTROLLED_FOR, ClassCounters};
pub use elsewhere::AttachedIn;
pub use limits::Limits;

plain!(residence_gate);

/// Later than any time of the guard's clock, which compares differences.
const FOR_EVER: u64 = i64::MAX as u64;

/// What a [`crate::queue::Parking`] of the same network namespace shares with the guard.
pub struct QueueMaps {
    pub(crate) maps: SharedMaps,
    pub(crate) iterator: OwnedFd,
    pub(crate) cgroups: Option<OwnedFd>,
}

/// The tables of a guard's classes.
pub struct ClassMaps(pub(crate) SharedMaps);

/// A guard that is loaded, and attached where [`Guard::attach`] said. Dropping it (or the death of
/// the process) detaches everything: no pins, no residue.
pub struct Guard {
    // Links before the skeleton: fields drop in this order, and programs leave the hooks first.
    links: BTreeMap<u32, Attached>,
    /// From the first interface of another namespace on.
    attacher: Option<Attacher>,
    pub(crate) listeners: Listeners,
    /// From the first interface on; `None`: not yet, or this kernel has no such hook.
    watch: Option<Watch>,
    skel: GuardSkel<'static>,
    further: Further,
    slots: BTreeMap<String, u16>,
    /// By the index of the listener's counters.
    gates: Mapped<residence_gate>,
    /// The guarded ports.
    ports: BTreeSet<u16>,
    namespaces: Namespaces,
    /// The ports that are guarded in other namespaces, as packets find them.
    elsewhere: BTreeSet<u16>,
    /// The rules of classes are to be written again for what is prepared there.
    rules_wait: bool,
    draining: bool,
    classes: Classes,
    /// Cookies may be sent, as far as the caller has said.
    cookies: bool,
    /// Whose packets find no listener.
    services: Services,
    /// The numbers by which rules know QUIC listeners.
    quic_owners: QuicOwners,
    generation: u32,
    /// Of the policy in force; `None` until they are asked for.
    names: Option<Names>,
    /// Their root, for the queue, which may be wanted when the rights to open it are given up.
    cgroups: Option<OwnedFd>,
}

struct Attached {
    tcx: OwnedFd,
    xdp: Option<OwnedFd>,
}

impl Guard {
    /// Loads the BPF programs, for weir's own network namespace. Nothing is attached yet and no listener is guarded.
    pub fn load() -> Result<Guard> {
        Guard::load_for(Limits::default())
    }

    /// The same with room for other namespaces too. What is over the ranges of [`Limits`] is the nearest within them.
    pub fn load_for(limits: Limits) -> Result<Guard> {
        Guard::with_tick(tick_ns(), limits)
    }

    /// The same with another length of the kernel's tick, ns: its clock then goes faster or slower than time.
    pub(crate) fn with_tick(tick_ns: u32, limits: Limits) -> Result<Guard> {
        let limits = limits.fit();
        let skel = load::load(tick_ns, limits)?;
        let listeners = Listeners::new(&skel)?;
        let gates = skel.maps.gates.as_fd();
        let gates = Mapped::of(gates, limits.counters(), "map the gates of listeners")?;
        let mut guard = Guard {
            links: BTreeMap::new(),
            attacher: None,
            listeners,
            watch: None,
            skel,
            further: Further::default(),
            slots: BTreeMap::new(),
            gates,
            ports: BTreeSet::new(),
            namespaces: Namespaces::new(limits)?,
            elsewhere: BTreeSet::new(),
            rules_wait: false,
            draining: false,
            classes: Classes::default(),
            cookies: true,
            services: Services::default(),
            quic_owners: QuicOwners::default(),
            generation: 0,
            names: None,
            cgroups: cgroup_root(),
        };
        // SAFETY: mapped and aligned, and no program runs yet.
        unsafe { write_volatile(&mut guard.bss().cookies_until_ns, FOR_EVER) };
        Ok(guard)
    }

    /// Puts a policy in force, atomically for every packet: each packet is judged by the old policy
    /// or by the new one, whole. Listeners keep their counters by name, classes their counters and
    /// buckets. Fails without any change.
    pub fn apply(&mut self, listeners: &[Listener], classes: &[Class]) -> Result<()> {
        let table = table_of(listeners, &self.services)?;
        let slots = self.assign_slots(listeners)?;
        let next = self.write_classes(classes, &slots)?;
        let other = self.classes.other_is_controlled();
        let (generation, cookies) = (self.generation + 1, self.cookies);
        let elsewhere = self.elsewhere.clone();
        // What may fail comes first.
        let common = Common {
            own: &slots,
            mark: &|name| next.mark(name, other),
            draining: false,
        };
        let elsewhere_too = self.namespaces.prepare(false, &common)?;
        self.namespaces.put(&self.skel.maps, elsewhere_too)?;
        self.classes.activate(&self.skel.maps, &next)?;
        self.swap(|policy| {
            let elsewhere = elsewhere.into_iter();
            fill(policy, listeners, &table, &slots, cookies, elsewhere);
            for (l, listener) in policy.listeners.iter_mut().zip(listeners) {
                l.classes = next.mark(&listener.name, other);
            }
            policy.generation = generation;
        });
        (self.slots, self.generation) = (slots, generation);
        self.draining = false;
        self.lift_gates(listeners);
        self.names = None;
        self.ports = listeners.iter().map(|l| l.address.port).collect();
        self.watch_ports();
        self.classes.put_in_force(next);
        Ok(())
    }

    /// `slots`: of the listeners of weir's own namespace.
    fn write_classes(
        &mut self,
        classes: &[Class],
        slots: &BTreeMap<String, u16>,
    ) -> Result<classes::Next> {
        let (maps, others) = (&self.skel.maps, &self.namespaces);
        let quic = &self.quic_owners;
        let owner = |name: &str| {
            let own = own_owner(slots, name).or_else(|| others.owner(name));
            own.or_else(|| quic.of(name))
        };
        self.classes.write(maps, classes, owner)
    }

    fn watch_ports(&mut self) {
        if let Some(watch) = &mut self.watch {
            watch.set_ports(&self.ports);
        }
    }

    /// Whether weir may answer SYNs with cookies of its own, from the next [`Guard::apply`] on; else the kernel
    /// answers with its own when its SYN queue is full. While it may not, weir takes none of its own either: some that
    /// are out may have been sent to clients whom a filter keeps out.
    pub fn allow_cookies(&mut self, allowed: bool) {
        self.cookies = allowed;
    }

    /// From now on weir answers with cookies for so long at most, unless this is called again: whoever allows them knows that
    /// nothing behind weir drops SYNs only as long as it looks.
    ///
    /// # Errors
    /// The kernel does not run the program. Then they end when the last call said.
    pub fn cookies_hold(&mut self, time: Duration) -> Result<()> {
        // SAFETY: mapped and aligned; BPF programs only read it.
        unsafe { write_volatile(&mut self.bss().cookies_for_ns, time.as_nanos() as u64) };
        let renew = &self.skel.progs.cookies_renew;
        renew
            .test_run(ProgramInput::default())
            .map(drop)
            .map_err(of_libbpf("go on with SYN cookies"))
    }

    /// What takes connections to addresses of this host before its sockets do: packets to these find no listener, from
    /// the next [`Guard::apply`] on.
    pub fn pass_by(&mut self, services: Services) {
        self.services = services;
    }

    /// Puts other classes in force, atomically for every packet; the listeners stay as they are.
    /// Classes that stay, by name, keep bucket and counters. Fails without any change.
    pub fn set_classes(&mut self, classes: &[Class]) -> Result<()> {
        let slots = self.slots.clone();
        let next = self.write_classes(classes, &slots)?;
        let other = self.classes.other_is_controlled();
        let names = self.slots.iter();
        let marks: BTreeMap<u16, u8> = names
            .map(|(name, slot)| (*slot, next.mark(name, other)))
            .collect();
        // What may fail comes first.
        self.renew(false, &|name| next.mark(name, other))?;
        self.classes.activate(&self.skel.maps, &next)?;
        self.change_listeners(|l| {
            l.classes = marks.get(&l.counters).copied().unwrap_or(0);
        });
        self.names = None;
        self.classes.put_in_force(next);
        Ok(())
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
    pub fn set_controlled_rates(
        &mut self,
        limits: &BTreeMap<String, Option<BucketLimit>>,
    ) -> Result<()> {
        if self.classes.control(&self.skel.maps, limits)? {
            // From now on each SYN is looked up.
            let classes = self.classes.list().to_vec();
            self.set_classes(&classes)?;
        }
        Ok(())
    }

    /// Those that ask for none let all in, whoever had their place before.
    fn lift_gates(&mut self, listeners: &[Listener]) {
        for one in listeners {
            if !matches!(one.residence, ResidenceMode::Within(_)) {
                self.set_gate(&one.name, None);
            }
        }
    }

    /// What this listener lets in until its server's requests are looked at again; `None`: all. It ends by itself after
    /// [`weir_core::residence::GATE_HOLDS`]. A listener that is not in force has none.
    pub fn set_gate(&mut self, listener: &str, gate: Option<&Gate>) {
        let Some(slot) = self.listener_slot(listener) else {
            return;
        };
        let state = gate.map(|gate| GateState::new(gate, now_ns()));
        let state = state.unwrap_or_default();
        let open = types::residence_gate {
            until_ns: 0,
            since_ns: state.since_ns,
            room: state.room,
            rate: state.rate,
            burst: state.burst,
            taken: 0,
        };
        let to = self.gates.at(slot.into());
        // A SYN that comes between is let in.
        // SAFETY: mapped and aligned; programs read it, and add to `taken` atomically.
        unsafe { write_volatile(&raw mut (*to).until_ns, 0) };
        fence(Ordering::SeqCst);
        // SAFETY: as above.
        unsafe { write_volatile(to, open) };
        fence(Ordering::SeqCst);
        // SAFETY: as above.
        unsafe { write_volatile(&raw mut (*to).until_ns, state.until_ns) };
    }

    /// Counters of every class, and of `other`, on all of its listeners, since it was first in force.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn class_counters(&self) -> Result<BTreeMap<String, ClassCounters>> {
        self.classes.counters()
    }

    /// The tables of classes, for a [`crate::Quic`] beside this guard.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn class_maps(&self) -> Result<ClassMaps> {
        const TABLES: [&str; 6] = [
            "class_active",
            "class_limits",
            "class_masks",
            "class_policies",
            "class_rules",
            "class_states",
        ];
        Ok(ClassMaps(self.shared_maps()?.only(&TABLES)))
    }

    /// The numbers by which rules of classes know these QUIC listeners, from the next [`Guard::apply`] or
    /// [`Guard::set_classes`] on. A name keeps its number.
    pub fn quic_owners(&mut self, names: &[&str]) -> BTreeMap<String, OwnerId> {
        let number = |name: &&str| ((*name).to_owned(), self.quic_owners.assign(name));
        names.iter().map(number).collect()
    }

    /// The classes in force with their slots: what `class_of()` in C returns. 0 is `other`.
    pub fn class_slots(&self) -> impl Iterator<Item = (u32, &Class)> {
        self.classes.slots()
    }

    /// The names of the classes in force and of `other`, by their slots; none where there is no class.
    pub fn class_names(&self) -> BTreeMap<u32, Arc<str>> {
        if self.classes.list().is_empty() {
            return BTreeMap::new();
        }
        let names = self.classes.names().into_iter();
        names.map(|(slot, name)| (slot, name.into())).collect()
    }

    /// The counters slot of a listener; rules know a listener as 1 + this.
    pub fn listener_slot(&self, name: &str) -> Option<u16> {
        self.slots.get(name).copied()
    }

    /// Whether a CPU is online whose claims another one's may be kept with: then a full queue may get up to a receive
    /// batch of each CPU too many.
    pub fn cpus_share_claims(&self) -> bool {
        let online = std::fs::read_to_string("/sys/devices/system/cpu/online");
        let highest = online.ok().and_then(|text| highest_cpu(&text));
        highest.is_some_and(|cpu| cpu >= weir_core::abi::MAX_CPUS)
    }

    /// Before going: admits every SYN from now on and sends no new cookie, while cookies that are
    /// already out stay valid. Call, wait for about a round-trip time, then drop the guard.
    pub fn drain(&mut self) {
        self.draining = true;
        self.change_listeners(|l| l.draining = 1);
        let (other, copy) = (self.classes.other_is_controlled(), self.classes.in_force());
        // Where there is no memory for it, the listeners of a namespace are guarded until the end.
        let _ = self.renew(false, &|name| copy.mark(name, other));
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
        fence(Ordering::SeqCst);
        // SAFETY: `active` is mapped and aligned; BPF programs only read it.
        unsafe { write_volatile(&mut bss.active, next) };
        wait_for_packets();
    }

    /// How many sources of SYNs each set keeps.
    #[cfg(feature = "testing")]
    pub fn sources_in_sets(&mut self) -> Vec<usize> {
        let kept = |set: &types::source_set| set.source.iter().filter(|s| s.count > 0).count();
        self.bss().sources.iter().map(kept).collect()
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
            counters::clear(&self.skel.maps, slot)?;
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
        let header = link_header_len(ifindex)?.ok_or_else(attach::unknown_link)?;
        if !self.links.contains_key(&ifindex) {
            // Before packets come, so that no connection of theirs is missed.
            self.begin_watch();
            let program = self.program_for(Some(header))?;
            let tcx = match link(program, ifindex, Hook::Tcx(Rank::Guard)) {
                Ok(link) => link,
                Err(error) => {
                    let links = chain::tcx(ifindex).map_or(Vec::new(), |chain| chain.links);
                    self.take_link(&links).ok_or(error)?
                }
            };
            self.links.insert(ifindex, Attached { tcx, xdp: None });
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
            true => Some(link(self.xdp()?, ifindex, Hook::Xdp)?),
        };
        self.links.get_mut(&ifindex).expect("inserted above").xdp = front;
        Ok(())
    }

    /// Puts the guard before all others at tc ingress of an interface that it is attached to, if it is not. The kernel
    /// cannot move a program, and takes none twice: what comes in between passes unjudged.
    ///
    /// # Errors
    /// What the kernel refuses: then the interface is not guarded.
    pub fn go_first(&mut self, ifindex: u32) -> Result<()> {
        if !self.links.contains_key(&ifindex) || chain::neighbours(ifindex)?.before.is_empty() {
            return Ok(());
        }
        let Some(Attached { tcx, xdp }) = self.links.remove(&ifindex) else {
            return Ok(());
        };
        drop(tcx);
        self.attach(ifindex, false)?;
        if let Some(attached) = self.links.get_mut(&ifindex) {
            attached.xdp = xdp;
        }
        Ok(())
    }

    /// Begins to count the connections of guarded ports, where the kernel lets weir.
    fn begin_watch(&mut self) {
        if self.watch.is_none() {
            self.watch = Watch::load().ok();
            self.watch_ports();
        }
    }

    /// The connections that were established with guarded ports since the first interface is guarded, whether or not the
    /// guard has seen their SYNs. `None`: this kernel does not let weir see them.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn established(&self) -> Result<Option<Vec<Established>>> {
        self.watch.as_ref().map(Watch::established).transpose()
    }

    /// The program for tc on a device with a link header of so many bytes; `None`: of another kind.
    fn program_for(&self, header: Option<u32>) -> Result<BorrowedFd<'_>> {
        match header.ok_or_else(attach::unknown_link)? {
            0 => self.further.tc_bare(&self.skel),
            _ => Ok(self.tc()),
        }
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
        sum_of(&self.skel.maps, name, self.slots.get(name).copied())
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

    /// Sampled refusals of weir's own network namespace since the last call (bounded by the ring's size; those that find it
    /// full are lost). Those of others are lost too: [`Guard::all_events`].
    ///
    /// # Errors
    /// The ring cannot be read.
    pub fn events(&mut self) -> Result<Vec<Refusal>> {
        let own = self.namespaces.own();
        let all = self.all_events()?.into_iter();
        Ok(all
            .filter_map(|(at, refusal)| (at == own).then_some(refusal))
            .collect())
    }

    /// The same of all namespaces.
    ///
    /// # Errors
    /// The ring cannot be read.
    pub fn all_events(&mut self) -> Result<Vec<(Namespace, Refusal)>> {
        let own = self.namespaces.own();
        let listeners = self.slots.iter().map(|(name, &slot)| (slot, own, &**name));
        let listeners = listeners.chain(self.namespaces.listeners());
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

/// The number by which rules know a listener of weir's own namespace: 1 + its counters slot.
fn own_owner(slots: &BTreeMap<String, u16>, name: &str) -> Option<OwnerId> {
    slots.get(name).map(|slot| slot + 1)
}
