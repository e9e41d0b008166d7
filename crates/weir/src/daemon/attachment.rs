//! On which interfaces the guard has to be.

use std::collections::BTreeMap;

use weir_core::listener::{Front, Listener};

use crate::host::links::{Link, Peer};
use crate::shape::ifb;

/// Where a guard is to be attached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The interface's name, for messages.
    pub name: String,
    /// Where its refusals are to be carried out.
    pub refusals: Refusals,
    /// A listener named it, so failing here fails the command.
    pub named: bool,
}

/// Where the refusals of one interface are carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusals {
    /// At tc ingress.
    Tc,
    /// In the driver, by the XDP front.
    Xdp,
    /// At tc ingress although a listener wants the front, and why.
    TcBecause(&'static str),
}

const LOOPBACK: &str = "the loopback device has no driver that could run it";
/// What keeps the front off a veth.
pub const LONELY_VETH: &str = "the other end of this veth has no XDP program, so answers from XDP \
     would be lost (attach one there, then start or reload weir)";
const VLAN: &str = "a VLAN's interface is on it, and XDP sees no tag that the device takes off: it would judge the \
     VLAN's packets here and answer them without a tag";

/// Interface index → how the guard is attached there, for all listeners together. `runs_xdp` says
/// whether the other end of a veth has an XDP program.
pub fn places(
    listeners: &[Listener],
    links: &[Link],
    runs_xdp: impl Fn(&Peer) -> bool,
) -> BTreeMap<u32, Place> {
    let mut places = BTreeMap::new();
    for link in links {
        let mut here = listeners.iter().filter(|l| carries(link, l)).peekable();
        if here.peek().is_none() {
            continue;
        }
        let refusals = match here.any(|l| l.front == Front::Xdp) {
            false => Refusals::Tc,
            true if link.loopback => Refusals::TcBecause(LOOPBACK),
            true if link.peer.is_some_and(|peer| !runs_xdp(&peer)) => {
                Refusals::TcBecause(LONELY_VETH)
            }
            true if links.iter().any(|l| l.vlan_of == Some(link.index)) => {
                Refusals::TcBecause(VLAN)
            }
            true => Refusals::Xdp,
        };
        let named = listeners.iter().any(|l| l.interfaces.contains(&link.name));
        let name = link.name.clone();
        places.insert(
            link.index,
            Place {
                name,
                refusals,
                named,
            },
        );
    }
    places
}

/// Whether the listener is guarded on this interface.
pub fn carries(link: &Link, listener: &Listener) -> bool {
    // What passes weir's own ifb is received by the interface before it.
    let passes_on = link.port || ifb::index_behind(link).is_some();
    let unnamed = listener.interfaces.is_empty() && !passes_on;
    unnamed || listener.interfaces.contains(&link.name)
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
    use crate::host::links::fake::link;
    use weir_core::listener::ListenAddress;

    fn places(listeners: &[Listener], links: &[Link]) -> BTreeMap<u32, Place> {
        super::places(listeners, links, |peer| peer.index == 7)
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
        let through = Link {
            ifb: true,
            ..link(5, "weir-in-2")
        };
        let others = [link(1, "lo"), link(2, "eth0"), link(3, "br0")];
        others.into_iter().chain([port, through]).collect()
    }

    #[test]
    fn all_interfaces_but_ports_of_a_master_and_weir_s_own_are_guarded() {
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
        let refusals: Vec<Refusals> = places.values().map(|place| place.refusals).collect();
        use Refusals::*;
        assert_eq!(refusals, [TcBecause(LOOPBACK), Xdp, Tc]);
    }

    #[test]
    fn xdp_is_on_a_veth_only_if_its_peer_runs_xdp_too() {
        let veth = |index, peer| Link {
            peer: Some(Peer {
                index: peer,
                netns: Some(0),
            }),
            ..link(index, "veth")
        };
        let links = [veth(2, 7), veth(3, 8)];
        let places = places(&[listener(&[], Front::Xdp)], &links);
        assert_eq!(places[&2].refusals, Refusals::Xdp);
        assert_eq!(places[&3].refusals, Refusals::TcBecause(LONELY_VETH));
    }

    #[test]
    fn xdp_is_not_where_a_vlan_s_interface_takes_frames_with_a_tag() {
        let vlan = Link {
            vlan_of: Some(2),
            ..link(4, "eth0.10")
        };
        let links = [link(2, "eth0"), link(3, "eth1"), vlan];
        let places = places(&[listener(&[], Front::Xdp)], &links);
        assert_eq!(places[&2].refusals, Refusals::TcBecause(VLAN));
        assert_eq!(places[&3].refusals, Refusals::Xdp);
    }

    #[test]
    fn a_listener_whose_interfaces_are_missing_does_not_become_one_for_all() {
        let waiting = listener(&["eth7"], Front::Tc);
        assert!(places(std::slice::from_ref(&waiting), &machine()).is_empty());
        assert_eq!(
            missing(&[waiting, listener(&["eth0"], Front::Tc)], &machine()),
            ["eth7"]
        );
    }
}
