//! Which listeners are about which sockets.

use std::net::{IpAddr, SocketAddr};

use super::Workload;
use crate::listener::{ListenAddress, Listener};

/// Whether connections to such an address may come to a socket that is bound to `socket`.
pub fn may_serve(address: &ListenAddress, socket: &SocketAddr) -> bool {
    let ip = socket.ip().to_canonical();
    let same_ip = match address.ip {
        None => true,
        Some(wanted) if wanted.is_unspecified() => {
            // `::` is of IPv4 too; a dual-stack socket is of both.
            wanted.is_ipv6() || ip.is_ipv4() || ip.is_unspecified()
        }
        Some(wanted) => ip == wanted || is_any_for(ip, wanted),
    };
    address.port == socket.port() && same_ip
}

fn is_any_for(bound: IpAddr, wanted: IpAddr) -> bool {
    bound.is_unspecified() && (bound.is_ipv6() || wanted.is_ipv4())
}

/// Which of `listeners` are to be in force in a network namespace that has these listening sockets: each with the first
/// socket that it is about. Of two that share an address there the first one is.
pub fn in_force<'a>(
    listeners: &'a [Listener],
    sockets: &[(&Workload, SocketAddr)],
) -> Vec<(&'a Listener, usize)> {
    let mut chosen: Vec<(&Listener, usize)> = Vec::new();
    for listener in listeners {
        let about = |(workload, at): &(&Workload, SocketAddr)| {
            listener.location.matches(workload) && may_serve(&listener.address, at)
        };
        let Some(socket) = sockets.iter().position(about) else {
            continue;
        };
        let taken = |(other, _): &(&Listener, usize)| other.address.conflicts(&listener.address);
        if !chosen.iter().any(taken) {
            chosen.push((listener, socket));
        }
    }
    chosen
}
