//! On which interfaces the guard has to be.

use std::collections::BTreeMap;

use weir_core::listener::{Front, Listener};

use crate::failure::Cause;
use crate::host::links::{Link, Peer};
use crate::shape::ifb;

/// Where a guard is to be attached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The interface's name, for messages.
    pub name: String,
    /// Where its refusals are to be carried out.
    pub refused_at: RefusedAt,
    /// A listener named it, so failing here fails the command.
    pub named: bool,
}

/// Where the refusals of one interface are carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusedAt {
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
const MASTER: &str = "its ports would run it, and XDP is told of the port only: it could not tell which packets are for \
     this host";

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
        let refused_at = match here.any(|l| l.front == Front::Xdp) {
            false => RefusedAt::Tc,
            true if link.loopback => RefusedAt::TcBecause(LOOPBACK),
            true if link.peer.is_some_and(|peer| !runs_xdp(&peer)) => {
                RefusedAt::TcBecause(LONELY_VETH)
            }
            true if links.iter().any(|l| l.vlan_of == Some(link.index)) => {
                RefusedAt::TcBecause(VLAN)
            }
            true if links.iter().any(|l| l.port && l.master == Some(link.index)) => {
                RefusedAt::TcBecause(MASTER)
            }
            true => RefusedAt::Xdp,
        };
        let named = listeners.iter().any(|l| l.interfaces.contains(&link.name));
        let name = link.name.clone();
        places.insert(
            link.index,
            Place {
                name,
                refused_at,
                named,
            },
        );
    }
    places
}

/// Whether the listener is guarded on this interface.
pub fn carries(link: &Link, listener: &Listener) -> bool {
    // For the kernel its packets come over its master. weir would look for this host's addresses and for the sockets that
    // are bound to an interface at the wrong one, and could not tell whether it sees the SYNs of those that connect.
    if link.port {
        return false;
    }
    // What passes weir's own ifb is received by the interface before it.
    let unnamed = listener.interfaces.is_empty() && ifb::index_behind(link).is_none();
    unnamed || listener.interfaces.contains(&link.name)
}

/// Interfaces that listeners name and on which none can be guarded, since they are ports: the reason of each.
pub fn named_ports(listeners: &[Listener], links: &[Link]) -> Vec<Cause> {
    let is_named = |link: &&Link| listeners.iter().any(|l| l.interfaces.contains(&link.name));
    let named = links.iter().filter(|link| link.port).filter(is_named);
    named.map(|port| port_cause(port, links)).collect()
}

fn port_cause(port: &Link, links: &[Link]) -> Cause {
    let master = links.iter().find(|link| Some(link.index) == port.master);
    let master = master.map_or("its master", |link| &link.name);
    Cause {
        message: format!(
            "interface {} is a port of {master}: what it receives comes to this host over {master}",
            port.name
        ),
        hint: format!("name the interface that has the server's address: {master}, or one on it"),
    }
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
            master: Some(3),
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
    fn a_named_port_is_not_guarded_and_its_master_is_named() {
        let named = [listener(&["eth2", "eth0"], Front::Tc)];
        let places = places(&named, &machine());
        assert_eq!(places.keys().copied().collect::<Vec<_>>(), [2]);
        let said = named_ports(&named, &machine());
        assert_eq!(
            said[0].message,
            "interface eth2 is a port of br0: what it receives comes to this host over br0"
        );
        assert!(said[0].hint.contains("br0"), "{said:?}");
        assert_eq!(said.len(), 1);
    }

    #[test]
    fn xdp_is_only_where_a_listener_wants_it_and_never_on_loopback() {
        let listeners = [
            listener(&["eth0", "lo"], Front::Xdp),
            listener(&[], Front::Tc),
        ];
        let places = places(&listeners, &machine());
        let refused_at: Vec<RefusedAt> = places.values().map(|place| place.refused_at).collect();
        use RefusedAt::*;
        assert_eq!(refused_at, [TcBecause(LOOPBACK), Xdp, Tc]);
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
        assert_eq!(places[&2].refused_at, RefusedAt::Xdp);
        assert_eq!(places[&3].refused_at, RefusedAt::TcBecause(LONELY_VETH));
    }

    #[test]
    fn xdp_is_not_where_a_vlan_s_interface_takes_frames_with_a_tag() {
        let vlan = Link {
            vlan_of: Some(2),
            ..link(4, "eth0.10")
        };
        let links = [link(2, "eth0"), link(3, "eth1"), vlan];
        let places = places(&[listener(&[], Front::Xdp)], &links);
        assert_eq!(places[&2].refused_at, RefusedAt::TcBecause(VLAN));
        assert_eq!(places[&3].refused_at, RefusedAt::Xdp);
    }

    /// A bond hands an XDP program to its ports. There the program finds the port's number, and the port has none of this
    /// host's addresses.
    #[test]
    fn xdp_is_not_on_a_master_whose_ports_would_run_it() {
        let port = Link {
            port: true,
            master: Some(2),
            ..link(4, "eth1")
        };
        let in_vrf = Link {
            master: Some(5),
            ..link(3, "eth0")
        };
        let links = [link(2, "bond0"), in_vrf, port, link(5, "vrf0")];
        let places = places(&[listener(&[], Front::Xdp)], &links);
        let refused_at: Vec<RefusedAt> = places.values().map(|place| place.refused_at).collect();
        use RefusedAt::*;
        assert_eq!(refused_at, [TcBecause(MASTER), Xdp, Xdp]);
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
