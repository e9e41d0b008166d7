//! From listeners to `struct policy`.

use std::collections::BTreeMap;

use weir_core::abi;
use weir_core::listener::{Front, Listener, Mode, ResidenceMode};
use weir_core::policy::{Services, Table, table_beside};

use super::skel::types;
use crate::error::{Error, Result};
use crate::probe;
use crate::sysctl::TcpOptions;

/// Where packets find their listener; fails on two listeners with one address. Those of `services` find none.
pub(super) fn table_of(listeners: &[Listener], services: &Services) -> Result<Table> {
    table_beside(listeners, services).map_err(|e| Error::Failed {
        what: "put the policy in force".into(),
        cause: e.to_string(),
    })
}

/// Writes the whole policy of weir's own namespace but its generation. `slots`: counters slot of each listener, by name;
/// `cookies`: it may send them; `elsewhere`: ports of listeners in other namespaces.
pub(super) fn fill(
    policy: &mut types::policy,
    listeners: &[Listener],
    table: &Table,
    slots: &BTreeMap<String, u16>,
    cookies: bool,
    elsewhere: impl Iterator<Item = u16>,
) {
    policy.ports.fill(types::port_entry::default());
    policy.listeners.fill(types::listener_policy::default());
    policy.exact.fill(types::exact_entry::default());
    policy.exact_seed = table.seed;
    for (port, e) in &table.ports {
        policy.ports[usize::from(port.to_be())] = types::port_entry {
            any4: e.any4,
            any6: e.any6,
            exact: e.exact.into(),
            elsewhere: 0,
        };
    }
    for port in elsewhere {
        policy.ports[usize::from(port.to_be())].elsewhere = 1;
    }
    for e in &table.exact {
        policy.exact[e.slot] = types::exact_entry {
            addr: words(&e.address),
            port: e.port.to_be(),
            listener: e.listener,
        };
    }
    let place = Place::here(cookies);
    for (to, l) in policy.listeners.iter_mut().zip(listeners) {
        let slot = slots[&l.name];
        *to = place.listener_policy(l);
        (to.counters, to.owner) = (slot, slot + 1);
    }
}

/// The four words of an address as they stand in memory and in packets.
pub(crate) fn words(address: &[u8; 16]) -> [u32; 4] {
    let (words, _) = address.as_chunks();
    std::array::from_fn(|i| u32::from_ne_bytes(words[i]))
}

/// Stands in the list of a listener none of whose interfaces exists (yet): matches no packet.
const NO_INTERFACE: u32 = u32::MAX;

/// What a network namespace lets its listeners do.
pub(super) struct Place {
    may: u32,
}

impl Place {
    /// The calling thread's. `cookies`: the caller has nothing against them.
    pub(super) fn here(cookies: bool) -> Place {
        let options = TcpOptions::read();
        let cookies = cookies && options.syncookies >= 1 && probe::has_cookie_kfunc();
        let bits = [
            (cookies, abi::MAY_SEND_COOKIES),
            (options.window_scaling, abi::MAY_SCALE_WINDOWS),
            (options.sack, abi::MAY_SACK),
            (options.timestamps, abi::MAY_STAMP),
        ];
        Place { may: or(bits) }
    }

    /// For a listener of the calling thread's namespace, without what depends on others: counters, owner and classes.
    pub(super) fn listener_policy(&self, l: &Listener) -> types::listener_policy {
        let bits = [
            (l.front == Front::Xdp, abi::MAY_REFUSE_AT_XDP),
            (l.reason, abi::MAY_EXPLAIN),
            (l.health_checks, abi::MAY_SPARE_STEADY),
            (
                matches!(l.residence, ResidenceMode::Within(_)),
                abi::MAY_REFUSE_FOR_RESIDENCE,
            ),
        ];
        let mut p = types::listener_policy {
            target_wait_ns: l.target_wait.as_nanos() as u64,
            interval_ns: l.interval.as_nanos() as u64,
            overbook_1024: l.overbook_1024(),
            least_length: l.least_length,
            establish: l.establish as u8,
            reject_syn: l.reject_syn as u8,
            admit: l.admit as u8,
            half_close: l.half_close as u8,
            observe: (l.mode == Mode::Observe).into(),
            may: (self.may | or(bits)) as u8,
            ..Default::default()
        };
        for (to, name) in p.ifindex.iter_mut().zip(&l.interfaces) {
            *to = nix::net::if_::if_nametoindex(name.as_str()).unwrap_or(NO_INTERFACE);
        }
        p
    }
}

fn or<const N: usize>(bits: [(bool, u32); N]) -> u32 {
    let set = bits.into_iter().filter(|(set, _)| *set);
    set.fold(0, |all, (_, bit)| all | bit)
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
