//! From QUIC listeners to what the programs look up: ports, places and their policies.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use weir_core::abi;
use weir_core::class::OwnerId;
use weir_core::listener::Mode;
use weir_core::policy::mapped;
use weir_core::quic::QuicListener;

use super::skel::types::{quic_place, quic_policy};
use crate::guard::policy::words;
use crate::namespace::Namespace;
use crate::object::Plain;

/// Stands in the list of a listener none of whose interfaces exists (yet): matches no packet.
const NO_INTERFACE: u32 = u32::MAX;
const EVERY_IPV4: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
const EVERY_IPV6: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

/// What the programs know a listener by.
#[derive(Clone, Copy)]
pub(super) struct Numbers {
    /// Its slot of counters.
    pub counters: u16,
    /// What rules of classes have; 0: none.
    pub owner: OwnerId,
}

/// Each place in this namespace as the bytes of its key, with its policy. `numbers`: by the listener's name.
pub(super) fn places_of(
    namespace: Namespace,
    listeners: &[&QuicListener],
    numbers: impl Fn(&str) -> Numbers,
) -> BTreeMap<Vec<u8>, quic_policy> {
    let mut places = BTreeMap::new();
    // Of two that share an address the first one has it.
    for listener in listeners.iter().rev() {
        let policy = policy_of(listener, numbers(&listener.name));
        for ip in addresses(listener, listeners) {
            let place = quic_place {
                netns: namespace.cookie(),
                addr: words(&mapped(ip)),
                port: listener.address.port.to_be(),
                pad: [0; 3],
            };
            places.insert(place.bytes().to_vec(), policy);
        }
    }
    places
}

/// The port of a place, as it stands in packets, and what `quic_ports` says of it.
pub(super) fn mark_of(place: &[u8]) -> (u16, u8) {
    let place = quic_place::read(place).expect("keys are whole");
    let every = [EVERY_IPV4, EVERY_IPV6].map(|ip| words(&mapped(ip)));
    let mark = match every.contains(&place.addr) {
        true => abi::QUIC_AT_EVERY,
        false => abi::QUIC_AT_ONE,
    };
    (place.port, mark as u8)
}

/// Like a dual-stack socket, one on `::` is on every IPv4 address too that no other one names.
fn addresses(listener: &QuicListener, all: &[&QuicListener]) -> Vec<IpAddr> {
    let port = listener.address.port;
    let is_on_ipv4 =
        |other: &QuicListener| other.address.port == port && other.address.ip == Some(EVERY_IPV4);
    match listener.address.ip {
        None => vec![EVERY_IPV4, EVERY_IPV6],
        Some(ip) if ip == EVERY_IPV6 && !all.iter().any(|one| is_on_ipv4(one)) => {
            vec![EVERY_IPV4, EVERY_IPV6]
        }
        Some(ip) => vec![ip],
    }
}

fn policy_of(listener: &QuicListener, numbers: Numbers) -> quic_policy {
    // 0 is none at all.
    let share = |of: f64| (of * 1024.0).ceil() as u32;
    let mut policy = quic_policy {
        target_wait_ns: listener.target_wait.as_nanos() as u64,
        interval_ns: listener.interval.as_nanos() as u64,
        room_1024: share(listener.room),
        floor_1024: share(listener.floor),
        counters: numbers.counters,
        owner: numbers.owner,
        refuse: listener.refuse as u8,
        observe: (listener.mode == Mode::Observe).into(),
        ..Default::default()
    };
    for (to, name) in policy.ifindex.iter_mut().zip(&listener.interfaces) {
        *to = nix::net::if_::if_nametoindex(name.as_str()).unwrap_or(NO_INTERFACE);
    }
    policy
}

#[cfg(test)]
mod tests {
    use weir_core::listener::ListenAddress;

    use super::*;

    fn on(name: &str, ip: Option<&str>) -> QuicListener {
        let ip = ip.map(|ip| ip.parse().unwrap());
        QuicListener::new(name, ListenAddress { ip, port: 443 })
    }

    fn names(listeners: &[QuicListener]) -> Vec<(IpAddr, &str)> {
        let all: Vec<&QuicListener> = listeners.iter().collect();
        let of = |one| {
            let all = addresses(one, &all).into_iter();
            all.map(|ip| (ip, one.name.as_str())).collect::<Vec<_>>()
        };
        listeners.iter().flat_map(of).collect()
    }

    #[test]
    fn a_listener_on_every_address_is_found_by_both_families() {
        assert_eq!(names(&[on("all", None)]).len(), 2);
        assert_eq!(names(&[on("dual", Some("::"))]).len(), 2);
        let apart = [on("six", Some("::")), on("four", Some("0.0.0.0"))];
        assert_eq!(names(&apart), [(EVERY_IPV6, "six"), (EVERY_IPV4, "four")]);
    }

    #[test]
    fn shares_are_of_1024() {
        let numbers = Numbers {
            counters: 3,
            owner: 0x8001,
        };
        let policy = policy_of(&on("all", None), numbers);
        assert_eq!((policy.room_1024, policy.floor_1024), (512, 128));
        assert_eq!((policy.counters, policy.owner), (3, 0x8001));
        assert_eq!(policy.target_wait_ns, 20_000_000);
    }
}
