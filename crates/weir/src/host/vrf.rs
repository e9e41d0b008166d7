//! Servers whose listening socket is bound to a VRF (`ip vrf exec`, SO_BINDTODEVICE).
//!
//! The kernel looks for the socket of a packet by the interface that it came over and by the VRF of that. The look-up that
//! programs at tc have (`bpf_skc_lookup_tcp`) takes the interface for both, so it finds sockets that are bound to the interface or to
//! none, and none that is bound to the VRF: the guard passes what is for such a server.

use std::collections::BTreeMap;

use weir_kernel::OwnedSocket;

use crate::failure::Cause;
use crate::host::links::{self, Link};

/// The names of the VRFs that listening sockets are bound to, by the sockets' inode numbers; none where that cannot be read.
pub fn bound_sockets() -> BTreeMap<u64, String> {
    let links = links::list().unwrap_or_default();
    if !links.iter().any(|link| link.vrf) {
        return BTreeMap::new();
    }
    let sockets = weir_kernel::owned_sockets();
    bound(&sockets.unwrap_or_default(), &links)
}

fn bound(sockets: &[OwnedSocket], links: &[Link]) -> BTreeMap<u64, String> {
    let vrf = |socket: &OwnedSocket| {
        let its = |link: &&Link| link.vrf && link.index == socket.ifindex;
        let link = links.iter().find(its)?;
        Some((socket.inode, link.name.clone()))
    };
    sockets.iter().filter_map(vrf).collect()
}

/// What there is to say of such a socket, behind its address.
pub fn cause(vrf: &str) -> Cause {
    Cause {
        message: format!(
            "is bound to the VRF {vrf}, and weir's look-up does not find it: its connections are neither refused nor counted"
        ),
        hint: "bind it to an interface of the VRF, or to none with tcp_l3mdev_accept = 1"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::links::fake::link;

    #[test]
    fn only_sockets_that_are_bound_to_a_vrf_are_named() {
        let vrf = Link {
            vrf: true,
            ..link(5, "red")
        };
        let in_it = Link {
            master: Some(5),
            ..link(6, "eth1")
        };
        let socket = |inode, ifindex| OwnedSocket {
            local: "0.0.0.0:80".parse().unwrap(),
            uid: 0,
            inode,
            ifindex,
        };
        let sockets = [socket(1, 0), socket(2, 5), socket(3, 6)];
        let found = bound(&sockets, &[vrf, in_it]);
        assert_eq!(found, BTreeMap::from([(2, "red".to_owned())]));
    }
}
