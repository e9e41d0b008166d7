//! Classes in the kernel: their tables, their limits and what they have met.
//!
//! Rules, masks and policies are maps with two copies, and the policy in force says which one it goes
//! with, so that a packet sees all of one or all of the other. What a class has used (its bucket)
//! and met (its counters) stays in its slot, and slots stay with names.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use libbpf_rs::{MapCore, MapFlags, MapMut};
use weir_core::class::{
    Class, Fields, Limit, MAX_CLASSES, MAX_MASKS, OTHER, OTHER_PRIORITY, OverRate, OwnerId, Rules,
};
use weir_core::verdict::{Counters, VERDICTS};

use crate::error::{Error, Result, of_libbpf};

/// How long a controlled rate holds without renewal: its owner may be gone.
pub const CONTROLLED_FOR: Duration = Duration::from_secs(5);

/// Slot of [`OTHER`] (CLASS_OTHER).
const OTHER_SLOT: u32 = 0;
/// Slots of classes, with that of [`OTHER`] (CLASS_SLOTS).
const SLOTS: u32 = MAX_CLASSES as u32 + 1;
/// Classes whose counters are read by one system call.
const BATCH: u32 = 1024;
/// Bit of a key's mask number that says which copy (WEIR_CLASS_COPY).
const COPY_BIT: u16 = 0x8000;
/// Size of struct class_tuple, checked in bpf/abi.h.
const TUPLE: usize = 40;
/// Size of struct class_policy and of struct class_limit, checked there.
const POLICY: usize = 24;
/// Where the counters stand in struct class_state, checked there.
const COUNTERS_AT: usize = 16;

/// The maps of bpf/lib/classify.bpf.h and police.bpf.h, of whichever object has them.
pub(crate) struct Tables<'a> {
    pub class_active: &'a MapMut<'static>,
    pub class_masks: &'a MapMut<'static>,
    pub class_rules: &'a MapMut<'static>,
    pub class_policies: &'a MapMut<'static>,
    pub class_limits: &'a MapMut<'static>,
    pub class_states: &'a MapMut<'static>,
}

/// The tables of a skeleton.
macro_rules! tables {
    ($maps:expr) => {
        $crate::guard::classes::Tables {
            class_active: &$maps.class_active,
            class_masks: &$maps.class_masks,
            class_rules: &$maps.class_rules,
            class_policies: &$maps.class_policies,
            class_limits: &$maps.class_limits,
            class_states: &$maps.class_states,
        }
    };
}
pub(crate) use tables;

/// The classes of a guard.
#[derive(Default)]
pub(crate) struct Classes {
    /// In force, with their slots.
    classes: Vec<Class>,
    slots: BTreeMap<String, u32>,
    /// Which copy is in force.
    copy: u32,
    /// Rules of the other copy, to be taken out before it is written again.
    stale: Vec<[u8; TUPLE]>,
    in_force: Vec<[u8; TUPLE]>,
    /// Something limits [`OTHER`], so each SYN is looked up.
    other_is_controlled: bool,
}

/// Classes that are written but not in force yet.
pub(crate) struct Next {
    classes: Vec<Class>,
    slots: BTreeMap<String, u32>,
    copy: u32,
    keys: Vec<[u8; TUPLE]>,
}

impl Next {
    /// What `listener_policy.classes` is to be for the listener of this name.
    pub fn mark(&self, listener: &str, other_is_controlled: bool) -> u8 {
        let any = self
            .classes
            .iter()
            .any(|class| class.is_of_listener(listener));
        match any || other_is_controlled {
            true => self.copy as u8 + 1,
            false => 0,
        }
    }
}

impl Classes {
    pub fn other_is_controlled(&self) -> bool {
        self.other_is_controlled
    }

    /// Writes the copy that is not in force. `place` is 1 + the counters slot of a listener, `None` if
    /// there is none of that name: then the class is kept, and no connection is of it.
    pub fn write(
        &mut self,
        maps: &Tables<'_>,
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
        let slots = self.assign_slots(maps, &classes)?;
        for key in self.stale.drain(..) {
            // One that is not there needs no removal.
            let _ = maps.class_rules.delete(&key);
        }
        write_masks(maps, rules.masks(), copy)?;
        let mut keys = Vec::with_capacity(rules.rules().len());
        for rule in rules.rules() {
            let key = tuple(&rule.value, rule.mask as u16 | mask_copy(copy));
            let slot = slots[&classes[rule.class].name];
            // Recorded first, so that a failure leaves nothing behind.
            self.stale.push(key);
            maps.class_rules
                .update(&key, &slot.to_ne_bytes(), MapFlags::ANY)
                .map_err(of_libbpf("write a rule"))?;
            keys.push(key);
        }
        write_policy(maps, copy, OTHER_SLOT, &policy_of_other())?;
        for class in &classes {
            write_policy(maps, copy, slots[&class.name], &policy(class))?;
        }
        Ok(Next {
            classes,
            slots,
            copy,
            keys,
        })
    }

    /// The copy that was written is in force, and no packet sees the other one any more.
    pub fn put_in_force(&mut self, maps: &Tables<'_>, next: Next) -> Result<()> {
        self.stale = std::mem::replace(&mut self.in_force, next.keys);
        (self.classes, self.slots, self.copy) = (next.classes, next.slots, next.copy);
        maps.class_active
            .update(&0u32.to_ne_bytes(), &self.copy.to_ne_bytes(), MapFlags::ANY)
            .map_err(of_libbpf("say which classes are in force"))
    }

    /// A class that stays keeps its slot; a new one starts with a full bucket and from zero.
    fn assign_slots(&self, maps: &Tables<'_>, classes: &[Class]) -> Result<BTreeMap<String, u32>> {
        let kept = |class: &Class| Some((class.name.clone(), *self.slots.get(&class.name)?));
        let mut slots: BTreeMap<String, u32> = classes.iter().filter_map(kept).collect();
        // Slots of classes that go last: packets may still count there.
        let mut used = vec![false; SLOTS as usize];
        used[OTHER_SLOT as usize] = true;
        self.slots
            .values()
            .for_each(|slot| used[*slot as usize] = true);
        let leaving = self
            .slots
            .iter()
            .filter(|(name, _)| !slots.contains_key(*name));
        let leaving: Vec<u32> = leaving.map(|(_, slot)| *slot).collect();
        let free = (0..SLOTS).filter(|slot| !used[*slot as usize]);
        let mut free = free.chain(leaving);
        for class in classes.iter().filter(|c| !self.slots.contains_key(&c.name)) {
            let slot = free.next().expect("as many slots as classes are allowed");
            clear(maps, slot)?;
            slots.insert(class.name.clone(), slot);
        }
        Ok(slots)
    }

    fn slot(&self, name: &str) -> Result<u32> {
        match self.slots.get(name) {
            Some(slot) => Ok(*slot),
            None if name == OTHER => Ok(OTHER_SLOT),
            None => Err(Error::Failed {
                what: format!("find class \"{name}\""),
                cause: "there is none of this name".into(),
            }),
        }
    }

    /// Sets or lifts controlled rates. Returns whether [`OTHER`] is controlled now and was not.
    pub fn control(
        &mut self,
        maps: &Tables<'_>,
        limits: &BTreeMap<String, Option<Limit>>,
    ) -> Result<bool> {
        if limits.is_empty() {
            return Ok(false);
        }
        let until = monotonic_ns() + CONTROLLED_FOR.as_nanos() as u64;
        let (mut slots, mut values) = (Vec::new(), Vec::new());
        for (name, limit) in limits {
            let mut bytes = [0u8; POLICY];
            if let Some(limit) = limit {
                write_limit(&mut bytes, limit);
                bytes[16..24].copy_from_slice(&until.to_ne_bytes());
            }
            slots.extend(self.slot(name)?.to_ne_bytes());
            values.extend(bytes);
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
    pub fn counters(&self, maps: &Tables<'_>) -> Result<BTreeMap<String, Counters>> {
        let names = self.names();
        let end = names.last_key_value().map_or(0, |(slot, _)| slot + 1);
        let states = maps
            .class_states
            .lookup_batch(BATCH.min(end), MapFlags::ANY, MapFlags::ANY)
            .map_err(of_libbpf("count for classes"))?;
        // The slots of an array come in order.
        let counters: Vec<Counters> = states
            .take(end as usize)
            .map(|(_, state)| counters_of(&state))
            .collect();
        let of = |(slot, name): (u32, String)| Some((name, *counters.get(slot as usize)?));
        let named: Option<BTreeMap<String, Counters>> = names.into_iter().map(of).collect();
        named.ok_or_else(|| Error::Failed {
            what: "count for classes".into(),
            cause: format!("only {} of {end} slots can be read", counters.len()),
        })
    }

    /// The classes in force, in the order in which they were given.
    pub fn list(&self) -> &[Class] {
        &self.classes
    }

    /// The names by slot.
    pub fn names(&self) -> BTreeMap<u32, String> {
        let named = self.slots.iter().map(|(name, slot)| (*slot, name.clone()));
        named.chain([(OTHER_SLOT, OTHER.to_owned())]).collect()
    }

    /// Every policy's slot and priority, as `class_of()` in C returns the slots.
    pub fn slots(&self) -> impl Iterator<Item = (u32, &Class)> {
        self.classes
            .iter()
            .map(|class| (self.slots[&class.name], class))
    }
}

/// The tables that a BPF object of its own needs to find classes as the guard does: it declares the
/// maps of bpf/lib/classify.bpf.h and reuses these descriptors.
pub struct ClassMaps<'a> {
    /// `class_active`.
    pub active: BorrowedFd<'a>,
    /// `class_masks`.
    pub masks: BorrowedFd<'a>,
    /// `class_rules`.
    pub rules: BorrowedFd<'a>,
    /// `class_policies`.
    pub policies: BorrowedFd<'a>,
}

impl<'a> ClassMaps<'a> {
    pub(crate) fn of(maps: &Tables<'a>) -> ClassMaps<'a> {
        ClassMaps {
            active: maps.class_active.as_fd(),
            masks: maps.class_masks.as_fd(),
            rules: maps.class_rules.as_fd(),
            policies: maps.class_policies.as_fd(),
        }
    }
}

/// The counters of a struct class_state.
fn counters_of(state: &[u8]) -> Counters {
    let mut counters = Counters::default();
    let words = state.get(COUNTERS_AT..).unwrap_or_default();
    for (count, word) in counters.0.iter_mut().zip(words.chunks_exact(8)) {
        *count = u64::from_ne_bytes(word.try_into().expect("8 bytes"));
    }
    counters
}

fn mask_copy(copy: u32) -> u16 {
    if copy == 0 { 0 } else { COPY_BIT }
}

/// A full bucket, no limit of the controller's, and all counters zero.
fn clear(maps: &Tables<'_>, slot: u32) -> Result<()> {
    let key = slot.to_ne_bytes();
    let state = vec![0u8; COUNTERS_AT + VERDICTS.len() * 8];
    maps.class_limits
        .update(&key, &[0u8; POLICY], MapFlags::ANY)
        .and_then(|()| maps.class_states.update(&key, &state, MapFlags::ANY))
        .map_err(of_libbpf("make room for a class"))
}

fn write_masks(maps: &Tables<'_>, masks: &[Fields], copy: u32) -> Result<()> {
    let mut bytes = vec![0u8; 8 + 2 * MAX_MASKS * TUPLE];
    for family in 0..2 {
        let own = masks
            .iter()
            .enumerate()
            .filter(|(_, m)| m.families()[family]);
        let mut count = 0;
        for (number, mask) in own {
            let at = 8 + (family * MAX_MASKS + count) * TUPLE;
            let number = number as u16 | mask_copy(copy);
            bytes[at..at + TUPLE].copy_from_slice(&tuple(mask, number));
            count += 1;
        }
        bytes[family * 4..family * 4 + 4].copy_from_slice(&(count as u32).to_ne_bytes());
    }
    maps.class_masks
        .update(&copy.to_ne_bytes(), &bytes, MapFlags::ANY)
        .map_err(of_libbpf("write the masks of the rules"))
}

/// struct class_tuple: a mask, or a rule's key.
fn tuple(fields: &Fields, mask: u16) -> [u8; TUPLE] {
    let mut bytes = [0u8; TUPLE];
    bytes[..16].copy_from_slice(&Ipv6Addr::from(fields.from).octets());
    bytes[16..32].copy_from_slice(&Ipv6Addr::from(fields.to).octets());
    bytes[32..34].copy_from_slice(&fields.from_port.to_be_bytes());
    bytes[34..36].copy_from_slice(&fields.to_port.to_be_bytes());
    bytes[36..38].copy_from_slice(&fields.owner.to_ne_bytes());
    bytes[38..40].copy_from_slice(&mask.to_ne_bytes());
    bytes
}

fn write_limit(bytes: &mut [u8; POLICY], limit: &Limit) {
    bytes[..8].copy_from_slice(&limit.interval.to_ne_bytes());
    bytes[8..16].copy_from_slice(&limit.tolerance.to_ne_bytes());
}

/// struct class_policy.
fn policy(class: &Class) -> [u8; POLICY] {
    let mut bytes = [0u8; POLICY];
    if let Some(limit) = class.limit() {
        write_limit(&mut bytes, &limit);
    }
    bytes[16] = class.priority;
    bytes[17] = class.over_rate as u8;
    bytes
}

fn policy_of_other() -> [u8; POLICY] {
    let mut bytes = [0u8; POLICY];
    bytes[16] = OTHER_PRIORITY;
    bytes[17] = OverRate::Drop as u8;
    bytes
}

fn write_policy(maps: &Tables<'_>, copy: u32, slot: u32, policy: &[u8; POLICY]) -> Result<()> {
    maps.class_policies
        .update(&(copy * SLOTS + slot).to_ne_bytes(), policy, MapFlags::ANY)
        .map_err(of_libbpf("write a class"))
}

/// The clock of bpf_ktime_get_ns().
fn monotonic_ns() -> u64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC);
    now.map_or(0, |now| {
        now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64
    })
}
