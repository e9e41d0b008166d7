//! Classes in the kernel: their tables, their limits and what they have met.
//!
//! Rules, masks and policies are maps with two copies, and the policy in force says which one it goes
//! with, so that a packet sees all of one or all of the other. What a class has used (its bucket)
//! and met (its counters) stays in its slot, and slots stay with names.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use weir_core::abi;
use weir_core::class::{
    BucketLimit, Class, Fields, MAX_MASKS, OTHER, OTHER_PRIORITY, OverRate, OwnerId, Rules,
};
use weir_core::quic::{QUIC_VERDICTS, QuicCounters};
use weir_core::verdict::{Counters, VERDICTS};

use super::skel::GuardMaps;
use super::skel::types::{
    bucket_limit, class_limit, class_masks, class_policy, class_state, class_tuple, guard_counters,
    quic_counters,
};
use crate::clock::now_ns;
use crate::error::{Error, Result, of_libbpf};
use crate::object::{Plain, plain};

plain!(
    class_limit,
    class_masks,
    class_policy,
    class_state,
    class_tuple,
    guard_counters
);

type Maps = GuardMaps<'static>;

/// How long a controlled rate holds without renewal: its owner may be gone.
pub const CONTROLLED_FOR: Duration = Duration::from_secs(5);

/// The classes of a guard.
#[derive(Default)]
pub(crate) struct Classes {
    /// In force, with their slots.
    classes: Vec<Class>,
    slots: BTreeMap<String, u32>,
    /// What the classes have used and met, by piece: the maps in `class_states`.
    states: BTreeMap<u32, MapHandle>,
    /// By copy, the rules: held so that whoever sums up the maps of this process counts them.
    rules: BTreeMap<u32, MapHandle>,
    /// Which copy is in force.
    copy: u32,
    /// Something limits [`OTHER`], so each SYN is looked up.
    other_is_controlled: bool,
}

/// Classes that are written but not in force yet.
pub(crate) struct Next {
    classes: Vec<Class>,
    slots: BTreeMap<String, u32>,
    copy: u32,
}

impl Next {
    /// What `listener_policy.classes` is to be for the listener of this name.
    pub fn mark(&self, listener: &str, other_is_controlled: bool) -> u8 {
        mark(&self.classes, self.copy, listener, other_is_controlled)
    }
}

/// Those in force.
pub(crate) struct InForce {
    classes: Vec<Class>,
    copy: u32,
}

impl InForce {
    /// As of [`Next::mark`].
    pub fn mark(&self, listener: &str, other_is_controlled: bool) -> u8 {
        mark(&self.classes, self.copy, listener, other_is_controlled)
    }
}

/// `listener_policy.classes` of the listener of this name, with these classes in this copy.
fn mark(classes: &[Class], copy: u32, listener: &str, other_is_controlled: bool) -> u8 {
    let any = classes.iter().any(|class| class.is_of_listener(listener));
    match any || other_is_controlled {
        true => copy as u8 + 1,
        false => 0,
    }
}

impl Classes {
    /// The classes in force.
    pub fn in_force(&self) -> InForce {
        InForce {
            classes: self.classes.clone(),
            copy: self.copy,
        }
    }

    pub fn other_is_controlled(&self) -> bool {
        self.other_is_controlled
    }

    /// Writes the copy that is not in force. `place` is 1 + the counters slot of a listener, `None` if
    /// there is none of that name: then the class is kept, and no connection is of it.
    pub fn write(
        &mut self,
        maps: &Maps,
        classes: &[Class],
        place: impl Fn(&str) -> Option<OwnerId>,
    ) -> Result<Next> {
        let classes: Vec<Class> = classes.iter().filter(|c| c.is_guarded()).cloned().collect();
        let rules = Rules::compile(&classes, |class| {
            class
                .listener
                .as_deref()
                .map(|name| place(name).unwrap_or(0))
        });
        rules
            .fit_tables(classes.len())
            .map_err(|what| Error::Failed {
                what: "put the classes in force".into(),
                cause: what.to_string(),
            })?;
        let copy = 1 - self.copy;
        self.states_at(maps, abi::CLASS_OTHER)?;
        let slots = self.assign_slots(maps, &classes)?;
        write_masks(maps, rules.masks(), copy)?;
        let slot_of = |class: usize| slots[&classes[class].name];
        self.rules
            .insert(copy, write_rules(maps, &rules, slot_of, copy)?);
        write_policy(maps, copy, abi::CLASS_OTHER, &policy_of_other())?;
        for class in &classes {
            write_policy(maps, copy, slots[&class.name], &policy(class))?;
        }
        Ok(Next {
            classes,
            slots,
            copy,
        })
    }

    /// Has programs without a policy of their own (QUIC's, the queue's) go by the copy that was written: before the policy that
    /// goes with it is in force, after which the kernel waits until no packet sees what was before.
    pub fn activate(&self, maps: &Maps, next: &Next) -> Result<()> {
        maps.class_active
            .update(0u32.bytes(), next.copy.bytes(), MapFlags::ANY)
            .map_err(of_libbpf("say which classes are in force"))
    }

    /// The copy that was written is in force, and no packet sees the other one any more.
    pub fn put_in_force(&mut self, next: Next) {
        (self.classes, self.slots, self.copy) = (next.classes, next.slots, next.copy);
    }

    /// A class that stays keeps its slot; a new one starts with a full bucket and from zero.
    fn assign_slots(&mut self, maps: &Maps, classes: &[Class]) -> Result<BTreeMap<String, u32>> {
        let kept = |class: &Class| Some((class.name.clone(), *self.slots.get(&class.name)?));
        let mut slots: BTreeMap<String, u32> = classes.iter().filter_map(kept).collect();
        // Slots of classes that go last: packets may still count there.
        let mut used = vec![false; abi::CLASS_SLOTS as usize];
        used[abi::CLASS_OTHER as usize] = true;
        self.slots
            .values()
            .for_each(|slot| used[*slot as usize] = true);
        let leaving = self
            .slots
            .iter()
            .filter(|(name, _)| !slots.contains_key(*name));
        let leaving: Vec<u32> = leaving.map(|(_, slot)| *slot).collect();
        let free = (0..abi::CLASS_SLOTS).filter(|slot| !used[*slot as usize]);
        let mut free = free.chain(leaving);
        for class in classes {
            if self.slots.contains_key(&class.name) {
                continue;
            }
            let slot = free.next().expect("as many slots as classes are allowed");
            self.clear(maps, slot)?;
            slots.insert(class.name.clone(), slot);
        }
        Ok(slots)
    }

    /// A full bucket, no limit of the controller's, and all counters zero.
    fn clear(&mut self, maps: &Maps, slot: u32) -> Result<()> {
        let failed = || of_libbpf("clear the slot of a class");
        let (limit, state) = (class_limit::zero(), class_state::zero());
        maps.class_limits
            .update(slot.bytes(), limit.bytes(), MapFlags::ANY)
            .map_err(failed())?;
        let place = slot % abi::CLASS_PIECE;
        self.states_at(maps, slot)?
            .update(place.bytes(), state.bytes(), MapFlags::ANY)
            .map_err(failed())
    }

    /// The piece of the states in which this slot is; makes it if need be.
    fn states_at(&mut self, maps: &Maps, slot: u32) -> Result<&MapHandle> {
        let number = slot / abi::CLASS_PIECE;
        match self.states.entry(number) {
            Entry::Occupied(piece) => Ok(piece.into_mut()),
            Entry::Vacant(place) => Ok(place.insert(new_states(maps, number)?)),
        }
    }

    fn slot(&self, name: &str) -> Result<u32> {
        match self.slots.get(name) {
            Some(slot) => Ok(*slot),
            None if name == OTHER => Ok(abi::CLASS_OTHER),
            None => Err(Error::Failed {
                what: format!("find class \"{name}\""),
                cause: "there is none of this name".into(),
            }),
        }
    }

    /// Sets or lifts controlled rates. Returns whether [`OTHER`] is controlled now and was not.
    pub fn control(
        &mut self,
        maps: &Maps,
        limits: &BTreeMap<String, Option<BucketLimit>>,
    ) -> Result<bool> {
        if limits.is_empty() {
            return Ok(false);
        }
        let until_ns = now_ns() + CONTROLLED_FOR.as_nanos() as u64;
        let (mut slots, mut values) = (Vec::new(), Vec::new());
        for (name, limit) in limits {
            let value = limit.map_or_else(class_limit::zero, |limit| class_limit {
                limit: raw_limit(limit),
                until_ns,
            });
            slots.extend_from_slice(self.slot(name)?.bytes());
            values.extend_from_slice(value.bytes());
        }
        let count = limits.len() as u32;
        maps.class_limits
            .update_batch(&slots, &values, count, MapFlags::ANY, MapFlags::ANY)
            .map_err(of_libbpf("control the rates of classes"))?;
        if limits.get(OTHER).is_none_or(Option::is_none) {
            return Ok(false);
        }
        Ok(!std::mem::replace(&mut self.other_is_controlled, true))
    }

    /// Counters of each class, and of [`OTHER`], since it was first in force.
    pub fn counters(&self) -> Result<BTreeMap<String, ClassCounters>> {
        let mut of = BTreeMap::new();
        let names = self.names();
        for (number, piece) in &self.states {
            let first = number * abi::CLASS_PIECE;
            let its: Vec<u32> = names
                .range(first..first + abi::CLASS_PIECE)
                .map(|(slot, _)| slot - first)
                .collect();
            let read = counters_in(piece, &its)?;
            of.extend(its.iter().map(|place| first + place).zip(read));
        }
        // Of a slot in no piece nothing was counted yet.
        let named = |(slot, name): (&u32, &&str)| {
            let counters = of.get(slot).copied().unwrap_or_default();
            ((*name).to_owned(), counters)
        };
        Ok(names.iter().map(named).collect())
    }

    /// The classes in force, in the order in which they were given.
    pub fn list(&self) -> &[Class] {
        &self.classes
    }

    /// The names by slot.
    pub fn names(&self) -> BTreeMap<u32, &str> {
        let named = self.slots.iter().map(|(name, slot)| (*slot, &**name));
        named.chain([(abi::CLASS_OTHER, OTHER)]).collect()
    }

    /// Every policy's slot and priority, as `class_of()` in C returns the slots.
    pub fn slots(&self) -> impl Iterator<Item = (u32, &Class)> {
        self.classes
            .iter()
            .map(|class| (self.slots[&class.name], class))
    }
}

/// The counters as an array.
pub(super) fn counters_of(counters: guard_counters) -> Counters {
    // SAFETY: both are as many u64 as there are verdicts, in the order of GUARD_VERDICTS.
    Counters(unsafe { std::mem::transmute::<guard_counters, [u64; VERDICTS.len()]>(counters) })
}

/// The same of QUIC's.
fn quic_counters_of(counters: quic_counters) -> QuicCounters {
    // SAFETY: both are as many u64 as there are verdicts, in the order of QUIC_VERDICTS.
    QuicCounters(unsafe {
        std::mem::transmute::<quic_counters, [u64; QUIC_VERDICTS.len()]>(counters)
    })
}

fn new_states(maps: &Maps, number: u32) -> Result<MapHandle> {
    let failed = || of_libbpf("make room for the states of classes");
    let value = size_of::<class_state>();
    let array = MapType::Array;
    let piece = inner(
        "classes",
        array,
        size_of::<u32>(),
        value,
        abi::CLASS_PIECE,
        0,
    );
    let piece = piece.map_err(failed())?;
    put_in(&maps.class_states, number, &piece).map_err(failed())?;
    Ok(piece)
}

/// Puts a copy's rules in the place of those that it had.
fn write_rules(
    maps: &Maps,
    rules: &Rules,
    slot_of: impl Fn(usize) -> u32,
    copy: u32,
) -> Result<MapHandle> {
    let failed = || of_libbpf("write the rules");
    let most = rules.rules().len().max(1) as u32;
    let (key, value) = (size_of::<class_tuple>(), size_of::<u32>());
    let table = inner(
        "classes",
        MapType::Hash,
        key,
        value,
        most,
        libbpf_sys::BPF_F_NO_PREALLOC,
    );
    let table = table.map_err(failed())?;
    for rule in rules.rules() {
        let key = tuple(&rule.value, rule.mask as u16);
        table
            .update(key.bytes(), slot_of(rule.class).bytes(), MapFlags::ANY)
            .map_err(failed())?;
    }
    put_in(&maps.class_rules, copy, &table).map_err(failed())?;
    Ok(table)
}

/// A map that goes into one of maps. Bytes of its keys and values; flags of the kernel's.
pub(super) fn inner(
    name: &str,
    kind: MapType,
    key: usize,
    value: usize,
    most: u32,
    flags: u32,
) -> libbpf_rs::Result<MapHandle> {
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as u64,
        map_flags: flags,
        ..Default::default()
    };
    MapHandle::create(kind, Some(name), key as u32, value as u32, most, &options)
}

fn put_in(outer: &impl MapCore, number: u32, map: &MapHandle) -> libbpf_rs::Result<()> {
    let fd = map.as_fd().as_raw_fd() as u32;
    outer.update(number.bytes(), fd.bytes(), MapFlags::ANY)
}

/// What a class has met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClassCounters {
    /// Over TCP.
    pub syns: Counters,
    /// Over QUIC.
    pub quic: QuicCounters,
}

impl ClassCounters {
    fn of(state: class_state) -> ClassCounters {
        ClassCounters {
            syns: counters_of(state.counters),
            quic: quic_counters_of(state.quic),
        }
    }
}

/// So many states of a piece are read one by one; of more, the whole piece in one call.
const FEW_STATES: usize = 32;

/// The counters of these places of a piece of the states, in their order.
fn counters_in(piece: &MapHandle, places: &[u32]) -> Result<Vec<ClassCounters>> {
    let failed = || of_libbpf("count for classes");
    if places.len() <= FEW_STATES {
        let one = |place: &u32| {
            let state = piece.lookup(place.bytes(), MapFlags::ANY);
            let state = state.map_err(failed())?;
            let state = state.and_then(|state| class_state::read(&state));
            Ok(state.map(ClassCounters::of).unwrap_or_default())
        };
        return places.iter().map(one).collect();
    }
    let states = piece
        .lookup_batch(abi::CLASS_PIECE, MapFlags::ANY, MapFlags::ANY)
        .map_err(failed())?;
    // The slots of an array come in order.
    let all: Vec<_> = states.map(|(_, state)| class_state::read(&state)).collect();
    let of = |place: &u32| all.get(*place as usize).copied().flatten();
    let counters = |place: &u32| of(place).map(ClassCounters::of);
    Ok(places
        .iter()
        .map(|place| counters(place).unwrap_or_default())
        .collect())
}

fn write_masks(maps: &Maps, masks: &[Fields], copy: u32) -> Result<()> {
    let mut table = Box::new(class_masks::zero());
    for family in 0..2 {
        let own = masks
            .iter()
            .enumerate()
            .filter(|(_, mask)| mask.families()[family]);
        for (number, mask) in own {
            let count = &mut table.count[family];
            let at = family * MAX_MASKS + *count as usize;
            *count += 1;
            table.masks[at] = tuple(mask, number as u16);
        }
    }
    maps.class_masks
        .update(copy.bytes(), table.bytes(), MapFlags::ANY)
        .map_err(of_libbpf("write the masks of the rules"))
}

/// A mask, or a rule's key.
fn tuple(fields: &Fields, mask: u16) -> class_tuple {
    let words = |address: u128| {
        let octets = address.to_be_bytes();
        let (words, _) = octets.as_chunks();
        std::array::from_fn(|i| u32::from_ne_bytes(words[i]))
    };
    class_tuple {
        from: words(fields.from),
        to: words(fields.to),
        from_port: fields.from_port.to_be(),
        to_port: fields.to_port.to_be(),
        listener: fields.owner,
        mask,
    }
}

fn raw_limit(limit: BucketLimit) -> bucket_limit {
    bucket_limit {
        interval: limit.interval,
        tolerance: limit.tolerance,
    }
}

fn policy(class: &Class) -> class_policy {
    class_policy {
        limit: class.limit().map(raw_limit).unwrap_or_default(),
        priority: class.priority,
        over_rate: class.over_rate as u8,
        ..Default::default()
    }
}

fn policy_of_other() -> class_policy {
    class_policy {
        priority: OTHER_PRIORITY,
        over_rate: OverRate::Drop as u8,
        ..Default::default()
    }
}

fn write_policy(maps: &Maps, copy: u32, slot: u32, policy: &class_policy) -> Result<()> {
    let key = copy * abi::CLASS_SLOTS + slot;
    maps.class_policies
        .update(key.bytes(), policy.bytes(), MapFlags::ANY)
        .map_err(of_libbpf("write a class"))
}
