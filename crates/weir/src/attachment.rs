//! On which interfaces the guard has to be.

use std::collections::BTreeMap;

use weir_core::listener::{Front, Listener};

use crate::links::Link;

/// Where a guard is to be attached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The interface's name, for messages.
    pub name: String,
    /// With the XDP front.
    pub xdp: bool,
    /// A listener named it, so failing here fails the command.
    pub named: bool,
}

/// Interface index → how the guard is attached there, for all listeners together.
pub fn places(listeners: &[Listener], links: &[Link]) -> BTreeMap<u32, Place> {
    let mut places = BTreeMap::new();
    for link in links {
        let named = |l: &&Listener| l.interfaces.contains(&link.name);
        let carried = |l: &&Listener| named(l) || l.interfaces.is_empty() && !link.port;
        let mut here = listeners.iter().filter(carried).peekable();
        if here.peek().is_some() {
            // The loopback device has no XDP in its driver, and nothing is steered before it.
            let xdp = !link.loopback && here.any(|l| l.front == Front::Xdp);
            let named = listeners.iter().any(|l| named(&l));
            places.insert(
                link.index,
                Place {
                    name: link.name.clone(),
                    xdp,
                    named,
                },
            );
        }
    }
    places
}

/// Whether the listener is guarded anywhere: on all interfaces, or on a named one that exists.
pub fn exists_somewhere(listener: &Listener, links: &[Link]) -> bool {
    let exists = |name: &String| links.iter().any(|link| link.name == *name);
    listener.interfaces.is_empty() || listener.interfaces.iter().any(exists)
}

/// Interfaces that listeners name and that do not exist.
pub fn missing(listeners: &[Listener], links: &[Link]) -> Vec<String> {
    let named = listeners.iter().flat_map(|l| &l.interfaces);
    let mut missing: Vec<String> = named
        .filter(|name| !links.iter().any(|link| link.name == **name))
        .cloned()
        .collect();
    missing.sort();
    missing.dedup();
    missing
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_core::listener::ListenAddress;

    pub fn link(index: u32, name: &str) -> Link {
        Link {
            index,
            name: name.into(),
            loopback: name == "lo",
            port: false,
        }
    }

    fn listener(interfaces: &[&str], front: Front) -> Listener {
        let interfaces = interfaces.iter().map(|name| (*name).to_owned()).collect();
        let address = ListenAddress { ip: None, port: 80 };
        Listener {
            interfaces,
            front,
            ..Listener::new("web", address)
        }
    }

    fn machine() -> Vec<Link> {
        let port = Link {
            port: true,
            ..link(4, "eth2")
        };
        vec![link(1, "lo"), link(2, "eth0"), link(3, "br0"), port]
    }

    #[test]
    fn all_interfaces_but_ports_of_a_master_are_guarded() {
        let places = places(&[listener(&[], Front::Tc)], &machine());
        assert_eq!(places.keys().copied().collect::<Vec<_>>(), [1, 2, 3]);
    }

    #[test]
    fn a_named_port_is_guarded_all_the_same() {
        let places = places(&[listener(&["eth2"], Front::Tc)], &machine());
        assert_eq!(places.keys().copied().collect::<Vec<_>>(), [4]);
        assert!(places[&4].named);
    }

    #[test]
    fn xdp_is_only_where_a_listener_wants_it_and_never_on_loopback() {
        let listeners = [
            listener(&["eth0", "lo"], Front::Xdp),
            listener(&[], Front::Tc),
        ];
        let places = places(&listeners, &machine());
        let xdp: Vec<bool> = places.values().map(|place| place.xdp).collect();
        assert_eq!(xdp, [false, true, false]);
    }

    #[test]
    fn a_listener_whose_interfaces_are_missing_does_not_become_one_for_all() {
        let waiting = listener(&["eth7"], Front::Tc);
        assert!(places(std::slice::from_ref(&waiting), &machine()).is_empty());
        assert!(!exists_somewhere(&waiting, &machine()));
        assert_eq!(
            missing(&[waiting, listener(&["eth0"], Front::Tc)], &machine()),
            ["eth7"]
        );
        assert!(exists_somewhere(
            &listener(&["eth7", "eth0"], Front::Tc),
            &machine()
        ));
    }
}
