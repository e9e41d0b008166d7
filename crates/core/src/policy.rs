//! From listeners to the tables that the guard looks packets up in (`struct policy` in bpf/abi/guard.h).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::abi;
use crate::listener::{Listener, MAX_LISTENERS};

/// Slots of the exact-address table.
pub const EXACT_SLOTS: usize = abi::EXACT_SLOTS as usize;
/// Longest probe in it.
pub const EXACT_PROBES: usize = abi::EXACT_PROBES as usize;

/// Which listener guards a port: 0 none, else 1 + index into the listeners (struct port_entry).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PortEntry {
    /// Listener on every IPv4 address.
    pub any4: u16,
    /// Listener on every IPv6 address.
    pub any6: u16,
    /// Whether the exact-address table has entries for the port.
    pub exact: bool,
}

/// One occupied slot of the exact-address table (struct exact_entry).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExactEntry {
    /// Where it stands, below [`EXACT_SLOTS`].
    pub slot: usize,
    /// The address in network byte order, IPv4 as `::ffff:a.b.c.d`.
    pub address: [u8; 16],
    /// Port, host order.
    pub port: u16,
    /// 1 + index into the listeners; more than there can be: none.
    pub listener: u16,
}

/// Where packets find their listener.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Table {
    /// By destination port, host order.
    pub ports: BTreeMap<u16, PortEntry>,
    /// The exact-address table.
    pub exact: Vec<ExactEntry>,
    /// Its seed.
    pub seed: u32,
}

/// What takes connections to addresses of this host before any socket of it: virtual services of IPVS.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Services {
    /// The address and the port of each; 0: every port.
    pub addresses: BTreeSet<(IpAddr, u16)>,
    /// There are others, which no address tells: any connection may be theirs.
    pub unknown: bool,
}

/// So many services at guarded ports have a place in the exact-address table. Where there are more, nothing is guarded on
/// the ports of services.
pub const MAX_SERVICES: usize = 1024;

/// Stands for a listener at an address of a service: none, so that its packets pass.
const NOBODY: u16 = u16::MAX;
const _: () = assert!(MAX_LISTENERS < NOBODY as usize);

impl Services {
    /// The addresses of those that take connections to this port.
    fn at(&self, port: u16) -> impl Iterator<Item = IpAddr> {
        let its = move |(ip, of): &(IpAddr, u16)| (*of == port || *of == 0).then_some(*ip);
        self.addresses
            .iter()
            .filter_map(its)
            .collect::<BTreeSet<_>>()
            .into_iter()
    }

    /// Whether there are more at the ports of these listeners than are told from other connections there.
    fn are_too_many(&self, listeners: &[Listener]) -> bool {
        let ports: BTreeSet<u16> = listeners.iter().map(|l| l.address.port).collect();
        ports
            .iter()
            .map(|port| self.at(*port).count())
            .sum::<usize>()
            > MAX_SERVICES
    }

    /// Whether all connections to a listener pass, one of these, because they are a service's or may be.
    pub fn hide(&self, listener: &Listener, listeners: &[Listener]) -> bool {
        let mut its = self.at(listener.address.port).peekable();
        self.unknown
            || (its.peek().is_some() && self.are_too_many(listeners))
            || its.any(|ip| listener.address.ip == Some(ip))
    }
}

/// Why listeners do not make a table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// Two listeners stand for the same address and port.
    #[error("listeners \"{0}\" and \"{1}\" have the same address and port")]
    Same(String, String),
    /// More than [`MAX_LISTENERS`].
    #[error("{0} listeners, but at most {MAX_LISTENERS} can be guarded in one network namespace")]
    TooMany(usize),
    /// No seed keeps the probes short; does not happen with at most [`MAX_LISTENERS`] addresses and [`MAX_SERVICES`].
    #[error("no seed for the address table found")]
    NoSeed,
}

/// Builds the table for listeners, in which listener `i` has number `i + 1`.
pub fn table(listeners: &[Listener]) -> Result<Table, TableError> {
    table_beside(listeners, &Services::default())
}

/// The same beside services, whose packets find no listener.
pub fn table_beside(listeners: &[Listener], services: &Services) -> Result<Table, TableError> {
    if listeners.len() > MAX_LISTENERS {
        return Err(TableError::TooMany(listeners.len()));
    }
    refuse_same(listeners)?;
    let mut ports: BTreeMap<u16, PortEntry> = BTreeMap::new();
    let mut keys = Vec::new();
    // The specific wildcards first: one for both families only fills what they leave.
    let mut order: Vec<usize> = (0..listeners.len()).collect();
    order.sort_by_key(|&i| wildcard_rank(&listeners[i]));
    for i in order {
        let (number, address) = (i as u16 + 1, listeners[i].address);
        let entry = ports.entry(address.port).or_default();
        match address.ip {
            _ if services.hide(&listeners[i], listeners) => {}
            Some(ip) if !ip.is_unspecified() => {
                entry.exact = true;
                keys.push((mapped(ip), address.port, number));
            }
            Some(IpAddr::V4(_)) => entry.any4 = number,
            _ => {
                for slot in [&mut entry.any6, &mut entry.any4] {
                    if *slot == 0 {
                        *slot = number;
                    }
                }
            }
        }
    }
    for (port, entry) in &mut ports {
        for ip in services.at(*port) {
            let guarded = match ip {
                IpAddr::V4(_) => entry.any4,
                IpAddr::V6(_) => entry.any6,
            };
            if guarded != 0 {
                entry.exact = true;
                keys.push((mapped(ip), *port, NOBODY));
            }
        }
    }
    let (seed, exact) = (0..4096)
        .find_map(|seed| place(&keys, seed).map(|e| (seed, e)))
        .ok_or(TableError::NoSeed)?;
    Ok(Table { ports, exact, seed })
}

/// 0.0.0.0 before ::, and :: before "every address".
fn wildcard_rank(listener: &Listener) -> u8 {
    match listener.address.ip {
        Some(IpAddr::V4(_)) => 0,
        Some(IpAddr::V6(_)) => 1,
        None => 2,
    }
}

fn refuse_same(listeners: &[Listener]) -> Result<(), TableError> {
    let mut seen = BTreeMap::new();
    let mut names = BTreeSet::new();
    for l in listeners {
        let other = seen.insert((l.address.port, l.address.ip), l.name.clone());
        if let Some(other) = other {
            return Err(TableError::Same(other, l.name.clone()));
        }
        if !names.insert(&l.name) {
            return Err(TableError::Same(l.name.clone(), l.name.clone()));
        }
    }
    Ok(())
}

/// An address as the table holds it: IPv6, or IPv4 mapped into it (RFC 4291, Section 2.5.5.2).
pub fn mapped(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// First slot that is probed for an address and port; `exact_slot()` of bpf/lib/state.bpf.h. It
/// mixes the words as they stand in the packet, read by a little-endian machine.
pub fn exact_slot(address: &[u8; 16], port: u16, seed: u32) -> usize {
    let mut h = seed ^ u32::from(port.swap_bytes());
    for word in address.chunks_exact(4) {
        h ^= u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        h = h.wrapping_mul(0x9e37_79b1);
        h ^= h >> 15;
    }
    // Its high bits: an IPv4 address's last octet, the highest byte here, changes no lower ones.
    (h >> (32 - abi::EXACT_SLOT_BITS)) as usize
}

fn place(keys: &[([u8; 16], u16, u16)], seed: u32) -> Option<Vec<ExactEntry>> {
    let mut taken = vec![false; EXACT_SLOTS];
    let mut entries = Vec::with_capacity(keys.len());
    for &(address, port, listener) in keys {
        let first = exact_slot(&address, port, seed);
        let slot = (first..first + EXACT_PROBES)
            .map(|s| s % EXACT_SLOTS)
            .find(|&slot| !taken[slot])?;
        taken[slot] = true;
        entries.push(ExactEntry {
            slot,
            address,
            port,
            listener,
        });
    }
    Some(entries)
}

impl Table {
    /// The number of the listener for a destination, 0 for none: `listener_of()` of
    /// bpf/lib/state.bpf.h.
    pub fn listener_of(&self, destination: IpAddr, port: u16) -> u16 {
        let Some(entry) = self.ports.get(&port) else {
            return 0;
        };
        let address = mapped(destination);
        let exact = self
            .exact
            .iter()
            .find(|e| e.address == address && e.port == port);
        match (exact, destination) {
            (Some(e), _) if e.listener == NOBODY => 0,
            (Some(e), _) => e.listener,
            (None, IpAddr::V4(_)) => entry.any4,
            (None, IpAddr::V6(_)) => entry.any6,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listener::ListenAddress;

    fn on(name: &str, ip: Option<&str>, port: u16) -> Listener {
        let ip = ip.map(|s| s.parse().unwrap());
        Listener::new(name, ListenAddress { ip, port })
    }

    fn found(t: &Table, ip: &str, port: u16) -> u16 {
        t.listener_of(ip.parse().unwrap(), port)
    }

    fn beside(
        listeners: &[Listener],
        addresses: &[(&str, u16)],
        unknown: bool,
    ) -> (Table, Services) {
        let addresses = addresses
            .iter()
            .map(|(ip, port)| (ip.parse().unwrap(), *port));
        let services = Services {
            addresses: addresses.collect(),
            unknown,
        };
        (table_beside(listeners, &services).unwrap(), services)
    }

    #[test]
    fn a_service_finds_no_listener_and_other_addresses_of_its_port_find_theirs() {
        let all = [
            on("a", None, 443),
            on("b", Some("10.0.0.1"), 443),
            on("c", Some("0.0.0.0"), 80),
        ];
        let at = [
            ("10.96.0.1", 443),
            ("fd00::1", 443),
            ("10.96.0.2", 0),
            ("fd00::2", 0),
            ("10.0.0.9", 22),
        ];
        let (t, services) = beside(&all, &at, false);
        for (ip, port, listener) in [
            ("10.96.0.1", 443, 0),
            ("fd00::1", 443, 0),
            ("10.96.0.1", 80, 3),
            ("10.96.0.2", 443, 0),
            ("10.96.0.2", 80, 0),
            ("fd00::2", 443, 0),
            ("192.0.2.1", 443, 1),
            ("fd00::3", 443, 1),
            ("10.0.0.1", 443, 2),
            ("10.0.0.9", 443, 1),
        ] {
            assert_eq!(found(&t, ip, port), listener, "{ip} {port}");
        }
        assert!(all.iter().all(|one| !services.hide(one, &all)));
    }

    #[test]
    fn a_listener_at_the_address_of_a_service_guards_nothing() {
        let all = [on("a", None, 80), on("b", Some("10.0.0.1"), 80)];
        let (t, services) = beside(&all, &[("10.0.0.1", 80)], false);
        assert_eq!(
            (found(&t, "10.0.0.1", 80), found(&t, "10.0.0.2", 80)),
            (0, 1)
        );
        assert_eq!(
            all.each_ref().map(|one| services.hide(one, &all)),
            [false, true]
        );
    }

    #[test]
    fn beside_services_that_no_address_tells_all_packets_pass() {
        let all = [on("a", None, 80), on("b", Some("10.0.0.1"), 80)];
        let (t, services) = beside(&all, &[], true);
        assert_eq!(
            (found(&t, "10.0.0.1", 80), found(&t, "10.0.0.2", 80)),
            (0, 0)
        );
        assert!(all.iter().all(|one| services.hide(one, &all)));
    }

    #[test]
    fn as_many_services_as_are_allowed_have_a_place_and_beside_more_their_ports_pass() {
        let mut all: Vec<Listener> = (0..255u8)
            .map(|n| on(&format!("l{n}"), Some(&format!("10.0.0.{n}")), 80))
            .collect();
        all.push(on("any", None, 443));
        let of = |number: u32| {
            (
                IpAddr::from(std::net::Ipv4Addr::from_bits(0x0a60_0000 + number)),
                443,
            )
        };
        let mut services = Services {
            addresses: (0..MAX_SERVICES as u32).map(of).collect(),
            unknown: false,
        };
        let t = table_beside(&all, &services).unwrap();
        assert_eq!(found(&t, "10.96.3.255", 443), 0);
        assert_eq!(found(&t, "10.96.4.0", 443), 256);
        assert_eq!(found(&t, "10.0.0.7", 80), 8);
        services.addresses.insert(of(MAX_SERVICES as u32));
        let t = table_beside(&all, &services).unwrap();
        assert_eq!(found(&t, "10.96.5.0", 443), 0);
        assert_eq!(found(&t, "10.0.0.7", 80), 8);
        assert!(services.hide(&all[255], &all) && !services.hide(&all[0], &all));
    }

    #[test]
    fn the_exact_address_wins_over_the_wildcard() {
        let t = table(&[on("a", Some("0.0.0.0"), 80), on("b", Some("10.0.0.1"), 80)]).unwrap();
        assert_eq!(found(&t, "10.0.0.1", 80), 2);
        assert_eq!(found(&t, "10.0.0.2", 80), 1);
        assert_eq!(found(&t, "::1", 80), 0);
        assert_eq!(found(&t, "10.0.0.1", 81), 0);
    }

    #[test]
    fn six_takes_four_unless_four_has_its_own() {
        let t = table(&[on("six", Some("::"), 80)]).unwrap();
        assert_eq!((found(&t, "1.2.3.4", 80), found(&t, "::1", 80)), (1, 1));
        let t = table(&[on("six", Some("::"), 80), on("four", Some("0.0.0.0"), 80)]).unwrap();
        assert_eq!((found(&t, "1.2.3.4", 80), found(&t, "::1", 80)), (2, 1));
        let t = table(&[on("all", None, 80), on("six", Some("::"), 80)]).unwrap();
        assert_eq!((found(&t, "1.2.3.4", 80), found(&t, "::1", 80)), (2, 2));
    }

    #[test]
    fn every_one_of_256_addresses_is_within_four_probes_however_they_differ() {
        let addresses: [fn(u32) -> String; 6] = [
            |i| format!("10.0.{}.{}", i / 16, i % 16),
            |i| format!("10.9.8.{i}"),
            |i| format!("10.9.{i}.1"),
            |i| format!("10.{i}.0.1"),
            |i| format!("2001:db8::{i:x}"),
            |i| format!("2001:db8:{i:x}::1"),
        ];
        for address in addresses {
            let listeners: Vec<_> = (0..256)
                .map(|i| on(&format!("l{i}"), Some(&address(i)), 80))
                .collect();
            let t = table(&listeners).unwrap();
            assert_eq!(t.exact.len(), 256);
            for e in &t.exact {
                let first = exact_slot(&e.address, e.port, t.seed);
                assert!((e.slot + EXACT_SLOTS - first) % EXACT_SLOTS < EXACT_PROBES);
            }
        }
    }

    #[test]
    fn the_same_address_twice_is_refused() {
        let same = table(&[on("a", None, 80), on("b", None, 80)]);
        assert_eq!(same, Err(TableError::Same("a".into(), "b".into())));
        let many: Vec<_> = (0..257).map(|i| on(&format!("{i}"), None, i + 1)).collect();
        assert_eq!(table(&many), Err(TableError::TooMany(257)));
    }
}
