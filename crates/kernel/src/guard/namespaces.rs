//! The listeners of other network namespaces than weir's own (bpf/lib/namespaces.bpf.h).
//!
//! What is in force in a namespace is a map that is filled before it takes its place and never changes. Every change is a
//! new map: the kernel waits until no packet has the old one.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use weir_core::class::OwnerId;
use weir_core::listener::MAX_LISTENERS;
use weir_core::policy::{Table, mapped};

use super::attacher::Left;
use super::classes::inner;
use super::counters;
use super::grace::wait_for_packets;
use super::limits::Limits;
use super::policy::words;
use super::skel::GuardMaps;
use super::skel::types::{self, listen_place, listen_record, place_policy};
use crate::error::{Error, Result, of_libbpf};
use crate::namespace::Namespace;
use crate::object::{Plain, plain};

plain!(listen_place, place_policy);

type Maps = GuardMaps<'static>;

/// The namespaces that are guarded beside weir's own.
pub(super) struct Namespaces {
    limits: Limits,
    own: Namespace,
    guarded: BTreeMap<Namespace, Guarded>,
    /// By which rules of classes know the names of their listeners.
    owners: BTreeMap<String, OwnerId>,
    /// Of these what is written down may be otherwise than what is in force.
    written: BTreeSet<Namespace>,
    /// Where the search for a free slot of the counters begins: one that was given back rests as long as may be.
    next_slot: u16,
}

/// One of them.
pub(super) struct Guarded {
    table: Table,
    listeners: Vec<One>,
    in_force: Option<InForce>,
    /// Its listening sockets, as they were found last.
    pub sockets: RefCell<Vec<listen_record>>,
    /// By the interfaces' numbers in it.
    pub links: BTreeMap<u32, OwnedFd>,
    /// Those to which somebody is attaching.
    pub awaited: BTreeSet<u32>,
}

/// One listener in it.
struct One {
    name: String,
    slot: u16,
    /// Without owner, classes and draining.
    policy: types::listener_policy,
}

/// The map of its places, held so that whoever sums up the maps of this process counts it, and what is in it.
struct InForce {
    places: Places,
    map: MapHandle,
}

/// What is to be in force in some namespaces.
pub(super) struct Prepared(Vec<(Namespace, InForce)>);

/// What is to be in such a map.
#[derive(Default, PartialEq, Eq)]
struct Places {
    keys: Vec<u8>,
    values: Vec<u8>,
    count: u32,
}

/// What listeners have in common, in whichever namespace.
pub(super) struct Common<'a> {
    /// Slots of the listeners of weir's own namespace, whose names rules know by these.
    pub own: &'a BTreeMap<String, u16>,
    /// `listener_policy.classes` of a listener of this name.
    pub mark: &'a dyn Fn(&str) -> u8,
    /// All is let in.
    pub draining: bool,
}

impl Places {
    fn of(guarded: &Guarded, policy: impl Fn(&One) -> types::listener_policy) -> Places {
        let mut places = Places::default();
        let policy_of = |number: u16| match number.checked_sub(1) {
            Some(index) => policy(&guarded.listeners[usize::from(index)]),
            None => types::listener_policy::default(),
        };
        for (port, entry) in &guarded.table.ports {
            let every = [("0.0.0.0", entry.any4), ("::", entry.any6)];
            for (address, number) in every {
                if number == 0 && !entry.exact {
                    continue;
                }
                let address = mapped(address.parse().expect("an address"));
                let policy = place_policy {
                    listener: policy_of(number),
                    guarded: u32::from(number != 0),
                    exact: entry.exact.into(),
                };
                places.add(place(&address, *port), policy);
            }
        }
        for exact in &guarded.table.exact {
            let policy = place_policy {
                listener: policy_of(exact.listener),
                guarded: 1,
                exact: 0,
            };
            places.add(place(&exact.address, exact.port), policy);
        }
        places
    }

    fn add(&mut self, place: listen_place, policy: place_policy) {
        self.keys.extend_from_slice(place.bytes());
        self.values.extend_from_slice(policy.bytes());
        self.count += 1;
    }

    fn map(&self) -> libbpf_rs::Result<MapHandle> {
        let (key, value) = (size_of::<listen_place>(), size_of::<place_policy>());
        let map = inner("places", MapType::Hash, key, value, self.count.max(1), 0)?;
        if self.count > 0 {
            let flags = MapFlags::ANY;
            map.update_batch(&self.keys, &self.values, self.count, flags, flags)?;
        }
        Ok(map)
    }
}

/// Puts these in the places of those before, and waits until no packet has one of those.
fn put(maps: &Maps, changed: &[(Namespace, InForce)]) -> libbpf_rs::Result<()> {
    let flags = MapFlags::ANY;
    let cookies = changed.iter().map(|(namespace, _)| namespace.cookie());
    let keys: Vec<u8> = cookies.flat_map(u64::to_ne_bytes).collect();
    let fds = changed.iter().map(|(_, new)| new.map.as_fd().as_raw_fd());
    let values: Vec<u8> = fds.flat_map(i32::to_ne_bytes).collect();
    match changed.len() {
        0 => {}
        1 => maps.namespaces.update(&keys, &values, flags)?,
        count => {
            let count = count as u32;
            maps.namespaces
                .update_batch(&keys, &values, count, flags, flags)?;
            // Before Linux 6.8 the kernel waits after single updates only.
            wait_for_packets();
        }
    }
    Ok(())
}

fn not_in_force() -> impl FnOnce(libbpf_rs::Error) -> Error {
    of_libbpf("put the policies of network namespaces in force")
}

/// Together where it can be, since the kernel waits for packets each time. A batch ends at one that is not there.
fn take_out(maps: &Maps, namespaces: &[Namespace]) {
    let each = || namespaces.iter().map(|namespace| namespace.cookie());
    let all = || {
        let keys: Vec<u8> = each().flat_map(u64::to_ne_bytes).collect();
        let (count, flags) = (namespaces.len() as u32, MapFlags::ANY);
        maps.namespaces.delete_batch(&keys, count, flags, flags)
    };
    if namespaces.len() < 2 || all().is_err() {
        for cookie in each() {
            let _ = maps.namespaces.delete(cookie.bytes());
        }
    }
}

fn place(address: &[u8; 16], port: u16) -> listen_place {
    listen_place {
        addr: words(address),
        port: port.to_be(),
        pad: 0,
    }
}

impl Guarded {
    /// The slot of the counters of the listener of this name.
    pub fn slot(&self, name: &str) -> Option<u16> {
        let one = self.listeners.iter().find(|one| one.name == name);
        one.map(|one| one.slot)
    }
}

impl Namespaces {
    /// Guards none yet.
    ///
    /// # Errors
    /// The kernel does not say which weir's own is.
    pub fn new(limits: Limits) -> Result<Namespaces> {
        Ok(Namespaces {
            limits,
            own: Namespace::current()?,
            guarded: BTreeMap::new(),
            owners: BTreeMap::new(),
            written: BTreeSet::new(),
            next_slot: 0,
        })
    }

    /// Weir's own namespace.
    pub fn own(&self) -> Namespace {
        self.own
    }

    /// The namespaces.
    pub fn all(&self) -> impl Iterator<Item = Namespace> {
        self.guarded.keys().copied()
    }

    /// Takes these out, and gives the links to their interfaces.
    pub fn remove(&mut self, maps: &Maps, namespaces: &[Namespace]) -> Vec<Left> {
        let mut links = Vec::new();
        let (mut in_force, mut perhaps) = (Vec::new(), Vec::new());
        for namespace in namespaces {
            self.written.remove(namespace);
            if let Some(gone) = self.guarded.remove(namespace) {
                let left = |(ifindex, link)| Left {
                    namespace: *namespace,
                    ifindex,
                    link,
                };
                links.extend(gone.links.into_iter().map(left));
                match gone.in_force {
                    Some(_) => in_force.push(*namespace),
                    None => perhaps.push(*namespace),
                }
            }
        }
        // A program without a policy lets all pass.
        take_out(maps, &in_force);
        for namespace in perhaps {
            take_out(maps, &[namespace]);
        }
        self.forget_owners();
        links
    }

    /// The first link that is so, which no namespace has any more then.
    pub fn take_link(&mut self, is_it: impl Fn(&OwnedFd) -> bool) -> Option<OwnedFd> {
        self.guarded.values_mut().find_map(|guarded| {
            let mut links = guarded.links.iter();
            let (&ifindex, _) = links.find(|(_, link)| is_it(link))?;
            guarded.links.remove(&ifindex)
        })
    }

    /// By which rules know the listeners of this name; `None`: there are none.
    pub fn owner(&self, name: &str) -> Option<OwnerId> {
        self.owners.get(name).copied()
    }

    /// The guarded ports.
    pub fn ports(&self) -> BTreeSet<u16> {
        let tables = self.guarded.values().map(|guarded| &guarded.table);
        tables
            .flat_map(|table| table.ports.keys().copied())
            .collect()
    }

    /// All listeners with the slots of their counters.
    pub fn listeners(&self) -> impl Iterator<Item = (u16, Namespace, &str)> {
        let each = self.guarded.iter();
        each.flat_map(|(namespace, guarded)| {
            let listeners = guarded.listeners.iter();
            listeners.map(|one| (one.slot, *namespace, &*one.name))
        })
    }

    /// Whether somebody is attaching to this interface there.
    pub fn awaits(&self, namespace: Namespace, ifindex: u32) -> bool {
        let guarded = self.guarded.get(&namespace);
        guarded.is_some_and(|guarded| guarded.awaited.contains(&ifindex))
    }

    pub fn get(&self, namespace: Namespace) -> Result<&Guarded> {
        self.guarded
            .get(&namespace)
            .ok_or_else(|| not_guarded(namespace))
    }

    pub fn get_mut(&mut self, namespace: Namespace) -> Result<&mut Guarded> {
        let guarded = self.guarded.get_mut(&namespace);
        guarded.ok_or_else(|| not_guarded(namespace))
    }

    fn policy(&self, one: &One, common: &Common<'_>) -> types::listener_policy {
        let own = common.own.get(&one.name).map(|slot| slot + 1);
        types::listener_policy {
            counters: one.slot,
            owner: own.or_else(|| self.owner(&one.name)).unwrap_or(0),
            classes: (common.mark)(&one.name),
            draining: common.draining.into(),
            ..one.policy
        }
    }

    /// Makes what has changed of namespaces in which something was [written down](Namespaces::set), or of any. Nothing is in
    /// force yet.
    ///
    /// # Errors
    /// The kernel has no memory for it.
    pub fn prepare(&self, only_written: bool, common: &Common<'_>) -> Result<Prepared> {
        let wanted = |namespace: &Namespace| !only_written || self.written.contains(namespace);
        let mut changed = Vec::new();
        for (namespace, guarded) in self.guarded.iter().filter(|(at, _)| wanted(at)) {
            let places = Places::of(guarded, |one| self.policy(one, common));
            let in_force = guarded.in_force.as_ref();
            if in_force.is_none_or(|now| now.places != places) {
                let map = places.map().map_err(not_in_force())?;
                changed.push((*namespace, InForce { places, map }));
            }
        }
        Ok(Prepared(changed))
    }

    /// Puts it in force. Each namespace has what was there before until then, and never less.
    ///
    /// # Errors
    /// The kernel refuses. Then it may be in force in some, and all of them are tried again the next time.
    pub fn put(&mut self, maps: &Maps, prepared: Prepared) -> Result<()> {
        if let Err(error) = put(maps, &prepared.0) {
            for (namespace, _) in &prepared.0 {
                self.written.insert(*namespace);
                self.get_mut(*namespace)?.in_force = None;
            }
            return Err(not_in_force()(error));
        }
        self.written.clear();
        for (namespace, new) in prepared.0 {
            self.get_mut(namespace)?.in_force = Some(new);
        }
        Ok(())
    }

    /// Writes down what is to be in force. A listener that stays keeps its slot. Fails without any change.
    pub fn set(
        &mut self,
        maps: &Maps,
        namespace: Namespace,
        listeners: Vec<(String, types::listener_policy)>,
        table: Table,
    ) -> Result<()> {
        let is_new = !self.guarded.contains_key(&namespace);
        if is_new && self.guarded.len() >= self.limits.namespaces as usize {
            return Err(no_room("network namespaces", self.limits.namespaces));
        }
        let old = self.guarded.get(&namespace);
        let slot_of = |name: &str| old.and_then(|guarded| guarded.slot(name));
        let slots: Vec<Option<u16>> = listeners.iter().map(|(name, _)| slot_of(name)).collect();
        let wanted = slots.iter().filter(|slot| slot.is_none()).count();
        let mut free = self.free_slots(wanted)?.into_iter();
        let mut ones = Vec::new();
        for ((name, policy), slot) in listeners.into_iter().zip(slots) {
            let slot = match slot {
                Some(slot) => slot,
                None => {
                    let slot = free.next().expect("as many as are wanted");
                    counters::clear(maps, slot)?;
                    slot
                }
            };
            ones.push(One { name, slot, policy });
        }
        self.name_owners(&ones);
        let guarded = self.guarded.entry(namespace).or_insert_with(|| Guarded {
            table: Table::default(),
            listeners: Vec::new(),
            in_force: None,
            sockets: RefCell::default(),
            links: BTreeMap::new(),
            awaited: BTreeSet::new(),
        });
        (guarded.table, guarded.listeners) = (table, ones);
        self.written.insert(namespace);
        Ok(())
    }

    fn free_slots(&mut self, wanted: usize) -> Result<Vec<u16>> {
        let used: BTreeSet<u16> = self.listeners().map(|(slot, ..)| slot).collect();
        let most = self.limits.listeners as u16;
        let all = (0..most).map(|n| (self.next_slot + n) % most + MAX_LISTENERS as u16);
        let free: Vec<u16> = all
            .filter(|slot| !used.contains(slot))
            .take(wanted)
            .collect();
        if free.len() < wanted {
            return Err(no_room(
                "listeners of other network namespaces",
                most.into(),
            ));
        }
        if let Some(last) = free.last() {
            self.next_slot = (last + 1 - MAX_LISTENERS as u16) % most;
        }
        Ok(free)
    }

    /// Gives numbers to names that have none.
    fn name_owners(&mut self, listeners: &[One]) {
        let used: BTreeSet<OwnerId> = self.owners.values().copied().collect();
        let mut free = (MAX_LISTENERS as OwnerId + 1..).filter(|id| !used.contains(id));
        for one in listeners {
            if !self.owners.contains_key(&one.name) {
                let id = free.next().expect("more than listeners");
                self.owners.insert(one.name.clone(), id);
            }
        }
    }

    /// Takes the numbers of names that no listener has.
    pub fn forget_owners(&mut self) {
        let names = self.guarded.values().flat_map(|guarded| &guarded.listeners);
        let names: BTreeSet<&str> = names.map(|one| &*one.name).collect();
        self.owners.retain(|name, _| names.contains(&**name));
    }
}

fn not_guarded(namespace: Namespace) -> Error {
    Error::Failed {
        what: format!("find the network namespace {}", namespace.cookie()),
        cause: "none of its listeners is guarded".into(),
    }
}

fn no_room(what: &str, most: u32) -> Error {
    Error::Failed {
        what: format!("guard more {what}"),
        cause: format!("the guard was loaded with room for {most}"),
    }
}
