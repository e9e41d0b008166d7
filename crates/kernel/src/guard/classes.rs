//! Classes in the kernel: their tables, their limits and what they have met.
//!
//! Rules, masks and policies are maps with two copies, and the policy in force says which one it goes
//! with, so that a packet sees all of one or all of the other. What a class has used (its bucket)
//! and met (its counters) stays in its slot, and slots stay with names.

use std::collections::BTreeMap;
use std::time::Duration;

use libbpf_rs::{MapCore, MapFlags};
use weir_core::abi;
use weir_core::class::{
    Class, Fields, Limit, MAX_MASKS, OTHER, OTHER_PRIORITY, OverRate, OwnerId, Rules,
};
use weir_core::verdict::{Counters, VERDICTS};

use super::skel::GuardMaps;
use super::skel::types::{
    bucket_limit, class_limit, class_masks, class_policy, class_state, class_tuple, guard_counters,
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

/// Classes whose counters are read by one system call.
const BATCH: u32 = 1024;
/// The classes of a guard.
#[derive(Default)]
pub(crate) struct Classes {
    /// In force, with their slots.
    classes: Vec<Class>,
    slots: BTreeMap<String, u32>,
    /// Which copy is in force.
    copy: u32,
    /// Rules of the other copy, to be taken out before it is written again.
    stale: Vec<class_tuple>,
    in_force: Vec<class_tuple>,
    /// Something limits [`OTHER`], so each SYN is looked up.
    other_is_controlled: bool,
}

/// Classes that are written but not in force yet.
pub(crate) struct Next {
    classes: Vec<Class>,
    slots: BTreeMap<String, u32>,
    copy: u32,
    keys: Vec<class_tuple>,
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
        let slots = self.assign_slots(maps, &classes)?;
        for key in self.stale.drain(..) {
            // One that is not there needs no removal.
            let _ = maps.class_rules.delete(key.bytes());
        }
        write_masks(maps, rules.masks(), copy)?;
        let mut keys = Vec::with_capacity(rules.rules().len());
        for rule in rules.rules() {
            let key = tuple(&rule.value, rule.mask as u16 | mask_copy(copy));
            let slot = slots[&classes[rule.class].name];
            // Recorded first, so that a failure leaves nothing behind.
            self.stale.push(key);
            maps.class_rules
                .update(key.bytes(), slot.bytes(), MapFlags::ANY)
                .map_err(of_libbpf("write a rule"))?;
            keys.push(key);
        }
        write_policy(maps, copy, abi::CLASS_OTHER, &policy_of_other())?;
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
    pub fn put_in_force(&mut self, maps: &Maps, next: Next) -> Result<()> {
        self.stale = std::mem::replace(&mut self.in_force, next.keys);
        (self.classes, self.slots, self.copy) = (next.classes, next.slots, next.copy);
        maps.class_active
            .update(0u32.bytes(), self.copy.bytes(), MapFlags::ANY)
            .map_err(of_libbpf("say which classes are in force"))
    }

    /// A class that stays keeps its slot; a new one starts with a full bucket and from zero.
    fn assign_slots(&self, maps: &Maps, classes: &[Class]) -> Result<BTreeMap<String, u32>> {
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
        limits: &BTreeMap<String, Option<Limit>>,
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
    pub fn counters(&self, maps: &Maps) -> Result<BTreeMap<String, Counters>> {
        let names = self.names();
        let end = names.last_key_value().map_or(0, |(slot, _)| slot + 1);
        let states = maps
            .class_states
            .lookup_batch(BATCH.min(end), MapFlags::ANY, MapFlags::ANY)
            .map_err(of_libbpf("count for classes"))?;
        // The slots of an array come in order.
        let counters: Vec<Counters> = states
            .take(end as usize)
            .filter_map(|(_, state)| class_state::read(&state))
            .map(|state| counters_of(state.counters))
            .collect();
        let of = |(slot, name): (u32, &str)| Some((name.to_owned(), *counters.get(slot as usize)?));
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

fn mask_copy(copy: u32) -> u16 {
    if copy == 0 { 0 } else { abi::CLASS_COPY as u16 }
}

/// A full bucket, no limit of the controller's, and all counters zero.
fn clear(maps: &Maps, slot: u32) -> Result<()> {
    let (limit, state) = (class_limit::zero(), class_state::zero());
    let key = slot.bytes();
    maps.class_limits
        .update(key, limit.bytes(), MapFlags::ANY)
        .and_then(|()| maps.class_states.update(key, state.bytes(), MapFlags::ANY))
        .map_err(of_libbpf("clear the slot of a class"))
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
            table.masks[at] = tuple(mask, number as u16 | mask_copy(copy));
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

fn raw_limit(limit: Limit) -> bucket_limit {
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
