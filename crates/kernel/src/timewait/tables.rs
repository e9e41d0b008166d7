//! The tables that user space writes: which rule a connection falls under.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use libbpf_rs::{MapCore, MapFlags};
use weir_core::abi;
use weir_core::listener::{ListenAddress, Listener};
use weir_core::prefix::Prefix;
use weir_core::timewait::{
    Accept, DEFAULT_LENGTH, Destination, Holder, MAX_DESTINATIONS, TimeWaitMode,
};

use super::skel::types::{timewait_prefix, timewait_rule};
use crate::error::{Error, Result, of_libbpf};
use crate::object::Plain;

/// Whose rule it is: names are unique among destinations, and among listeners.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Side {
    Destination,
    Listener,
}

/// Bits of a key before the address.
const PORT_BITS: u32 = 32;

/// The index of each rule in the programs' tables.
pub(super) type Slots = BTreeMap<(Side, String), u16>;

/// One copy of the tables, as it is to be in force.
pub(super) struct Tables {
    pub rules: Vec<timewait_rule>,
    /// Of each port as it stands in a packet: its bits, and its rule if all addresses have the same. Of servers, and of
    /// listeners here.
    pub ports: Vec<u16>,
    pub own_ports: Vec<u16>,
    pub prefixes: BTreeMap<Vec<u8>, u32>,
    pub own_prefixes: BTreeMap<Vec<u8>, u32>,
}

impl Tables {
    /// Of these destinations and listeners. A listener that leaves TIME-WAIT alone has an entry too: one beside it with
    /// the same port and a shorter prefix may negotiate.
    pub(super) fn of(
        destinations: &[Destination],
        listeners: &[Listener],
        slots: &Slots,
    ) -> Tables {
        let ports = || vec![0u16; usize::from(u16::MAX) + 1];
        let mut tables = Tables {
            rules: vec![timewait_rule::default(); abi::MAX_TIMEWAIT_RULES as usize],
            ports: ports(),
            own_ports: ports(),
            prefixes: BTreeMap::new(),
            own_prefixes: BTreeMap::new(),
        };
        tables.rules[abi::TIMEWAIT_ASKED as usize] = asked();
        for one in destinations {
            tables.add_destination(one, slots[&(Side::Destination, one.name.clone())]);
        }
        for one in listeners {
            tables.add_listener(one, slots[&(Side::Listener, one.name.clone())]);
        }
        enter_rules(&mut tables.ports, &tables.prefixes);
        enter_rules(&mut tables.own_ports, &tables.own_prefixes);
        tables
    }

    fn add_destination(&mut self, one: &Destination, slot: u16) {
        let mut rule = rule(one.timewait, one.timewait_length.as_nanos() as u64);
        rule.accept = one.accept as u8;
        self.rules[usize::from(slot)] = rule;
        let bit = match one.timewait {
            TimeWaitMode::Off => 0,
            TimeWaitMode::ClientRst => abi::PORT_CLIENT_RST as u16,
            TimeWaitMode::Negotiate => abi::PORT_NEGOTIATES as u16,
        };
        match one.to_port {
            Some(port) => self.ports[usize::from(port.to_be())] |= bit,
            None => self.ports.iter_mut().for_each(|port| *port |= bit),
        }
        for prefix in one.prefixes() {
            let key = key_of(&prefix, one.to_port).bytes().to_vec();
            self.prefixes.insert(key, u32::from(slot));
        }
    }

    fn add_listener(&mut self, one: &Listener, slot: u16) {
        let is_on = one.negotiates();
        let mode = match is_on {
            true => TimeWaitMode::Negotiate,
            false => TimeWaitMode::Off,
        };
        let mut rule = rule(mode, DEFAULT_LENGTH.as_nanos() as u64);
        rule.holder = one.holder as u8;
        self.rules[usize::from(slot)] = rule;
        if is_on {
            let port = &mut self.own_ports[usize::from(one.address.port.to_be())];
            *port |= abi::PORT_NEGOTIATES as u16;
            if one.holder == Holder::Server {
                *port |= abi::PORT_HOLDS as u16;
            }
        }
        let key = key_of(&prefix_of(one.address), Some(one.address.port));
        self.own_prefixes
            .insert(key.bytes().to_vec(), u32::from(slot));
    }
}

/// Says of each port whether there are prefixes with it, and which rule it has if that is the same at every address.
fn enter_rules(ports: &mut [u16], prefixes: &BTreeMap<Vec<u8>, u32>) {
    // By port: its rules, and whether one is of every address.
    let mut known: BTreeMap<u16, (BTreeSet<u32>, bool)> = BTreeMap::new();
    for (key, slot) in prefixes {
        let key = timewait_prefix::read(key).expect("a key of key_of()");
        let (rules, everywhere) = known.entry(key.port).or_default();
        rules.insert(*slot);
        *everywhere |= key.bits == PORT_BITS;
    }
    let rule = |port: u16| match known.get(&port) {
        Some((rules, true)) if rules.len() == 1 => {
            let only = rules.first().expect("it has one");
            (*only as u16 + 1) << abi::PORT_RULE_SHIFT
        }
        _ => 0,
    };
    let of_all_ports = rule(0);
    for (port, entry) in ports.iter_mut().enumerate() {
        *entry |= match known.contains_key(&(port as u16)) {
            true if port != 0 => rule(port as u16) | abi::PORT_HAS_PREFIXES as u16,
            _ => of_all_ports,
        };
    }
}

fn rule(mode: TimeWaitMode, length_ns: u64) -> timewait_rule {
    timewait_rule {
        length_ns,
        timewait: mode as u8,
        ..timewait_rule::default()
    }
}

/// Of sockets whose application asks to negotiate where no rule does.
fn asked() -> timewait_rule {
    timewait_rule {
        accept: Accept::Any as u8,
        holder: Holder::Client as u8,
        ..rule(TimeWaitMode::Negotiate, DEFAULT_LENGTH.as_nanos() as u64)
    }
}

/// What an address of a listener stands for: `*` and `::` are of both families.
fn prefix_of(address: ListenAddress) -> Prefix {
    let text = match address.ip {
        Some(IpAddr::V4(ip)) if ip.is_unspecified() => "0.0.0.0/0".to_owned(),
        Some(ip) if !ip.is_unspecified() => ip.to_string(),
        _ => "::/0".to_owned(),
    };
    text.parse().expect("a prefix")
}

/// Of a prefix as the programs look for it: IPv4 as `::ffff:a.b.c.d`.
fn key_of(prefix: &Prefix, port: Option<u16>) -> timewait_prefix {
    let (address, before) = match prefix.network() {
        IpAddr::V4(ip) => (ip.to_ipv6_mapped(), 96),
        IpAddr::V6(ip) => (ip, 0),
    };
    let octets = address.octets();
    let (words, _) = octets.as_chunks();
    timewait_prefix {
        bits: PORT_BITS + before + u32::from(prefix.prefix_len()),
        port: port.unwrap_or(0).to_be(),
        pad: 0,
        addr: std::array::from_fn(|i| u32::from_ne_bytes(words[i])),
    }
}

/// One that stays keeps its index; a new one gets an index that none has, if there is such a one.
///
/// # Errors
/// More rules than there is room for.
pub(super) fn assign_slots<'a>(
    old: &Slots,
    wanted: impl Iterator<Item = (Side, &'a str)>,
) -> Result<Slots> {
    let wanted: Vec<(Side, String)> = wanted.map(|(side, name)| (side, name.to_owned())).collect();
    let mut slots: Slots = wanted
        .iter()
        .filter_map(|key| Some((key.clone(), *old.get(key)?)))
        .collect();
    for key in wanted {
        if slots.contains_key(&key) {
            continue;
        }
        let all = match key.0 {
            Side::Destination => 0..MAX_DESTINATIONS as u16,
            Side::Listener => {
                let first = abi::TIMEWAIT_LISTENERS as u16;
                first..first + abi::MAX_LISTENERS as u16
            }
        };
        let has = |used: &Slots, slot: &u16| used.values().any(|u| u == slot);
        let unused = all
            .clone()
            .find(|slot| !has(&slots, slot) && !has(old, slot));
        let slot = unused.or_else(|| all.clone().find(|slot| !has(&slots, slot)));
        let slot = slot.ok_or_else(|| Error::Failed {
            what: "enter the destinations and listeners".into(),
            cause: format!("more than {}", all.len()),
        })?;
        slots.insert(key, slot);
    }
    Ok(slots)
}

/// A trie of prefixes, and what it has.
#[derive(Default)]
pub(super) struct Trie(BTreeMap<Vec<u8>, u32>);

impl Trie {
    /// Makes it have these. New ones first: one that stays is never missing.
    ///
    /// # Errors
    /// The kernel takes no more; then it has what it had.
    pub(super) fn write(
        &mut self,
        map: &impl MapCore,
        wanted: &BTreeMap<Vec<u8>, u32>,
    ) -> Result<()> {
        let old = self.0.clone();
        self.add(map, wanted).inspect_err(|_| {
            // What is taken away or overwritten makes no new entry, so this does not fail for want of space.
            let _ = self.take_away(map, &old);
            let _ = self.add(map, &old);
        })?;
        self.take_away(map, wanted)
    }

    fn add(&mut self, map: &impl MapCore, wanted: &BTreeMap<Vec<u8>, u32>) -> Result<()> {
        for (key, slot) in wanted {
            map.update(key, slot.bytes(), MapFlags::ANY)
                .map_err(of_libbpf("enter the destinations and listeners"))?;
            self.0.insert(key.clone(), *slot);
        }
        Ok(())
    }

    /// All but these.
    fn take_away(&mut self, map: &impl MapCore, wanted: &BTreeMap<Vec<u8>, u32>) -> Result<()> {
        let gone: Vec<_> = self
            .0
            .keys()
            .filter(|key| !wanted.contains_key(*key))
            .cloned()
            .collect();
        for key in gone {
            map.delete(&key)
                .map_err(of_libbpf("take destinations and listeners away"))?;
            self.0.remove(&key);
        }
        Ok(())
    }

    /// What it has.
    pub(super) fn entries(&self) -> &BTreeMap<Vec<u8>, u32> {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn destination(name: &str, to: &[&str], to_port: Option<u16>) -> Destination {
        Destination {
            to: to.iter().map(|prefix| prefix.parse().unwrap()).collect(),
            to_port,
            timewait: TimeWaitMode::Negotiate,
            ..Destination::new(name)
        }
    }

    /// Whether prefixes with the port are known, and its rule if the prefixes need not be asked.
    fn entry(all: &[Destination], port: u16) -> (bool, Option<u16>) {
        let names = all.iter().map(|one| (Side::Destination, one.name.as_str()));
        let slots = assign_slots(&Slots::new(), names).unwrap();
        let entry = Tables::of(all, &[], &slots).ports[usize::from(port.to_be())];
        let rule = entry >> abi::PORT_RULE_SHIFT;
        (
            entry & abi::PORT_HAS_PREFIXES as u16 != 0,
            rule.checked_sub(1),
        )
    }

    #[test]
    fn a_port_has_a_rule_where_every_address_has_the_same() {
        let everywhere = destination("everywhere", &[], None);
        let web = destination("web", &[], Some(80));
        let ten = destination("ten", &["10.0.0.0/8"], None);
        let ten_web = destination("ten-web", &["10.0.0.0/8"], Some(80));
        for (all, port, expected) in [
            (vec![&everywhere], 80, (false, Some(0))),
            (vec![&everywhere, &web], 80, (true, Some(1))),
            (vec![&everywhere, &web], 81, (false, Some(0))),
            (vec![&web], 81, (false, None)),
            (vec![&everywhere, &ten], 80, (false, None)),
            (vec![&ten], 80, (false, None)),
            (vec![&web, &ten], 80, (true, Some(0))),
            (vec![&web, &ten_web], 80, (true, None)),
            (vec![&everywhere, &ten_web], 80, (true, None)),
        ] {
            let all: Vec<Destination> = all.into_iter().cloned().collect();
            assert_eq!(entry(&all, port), expected, "{all:?} {port}");
        }
    }
}
