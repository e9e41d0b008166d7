//! Which sockets belong together: those of one server on one address, in one SO_REUSEPORT group.

use std::net::SocketAddr;

use weir_kernel::ListenSocket;

use super::shared::Wanted;
use crate::host::sockets::serving;

/// The sockets that serve a listener, grouped as the kernel groups them.
pub fn groups(wanted: &Wanted, sockets: &[ListenSocket]) -> Vec<Vec<ListenSocket>> {
    let mut groups: Vec<Vec<ListenSocket>> = Vec::new();
    let serving = serving(&wanted.listener, &wanted.all, sockets).into_iter();
    for socket in serving.filter(|socket| !wanted.exec.contains(&socket.inode)) {
        let same = |group: &&mut Vec<ListenSocket>| {
            let first = &group[0];
            (first.ip, first.v6only) == (socket.ip, socket.v6only)
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.push(socket.clone()),
            None => groups.push(vec![socket.clone()]),
        }
    }
    groups
}

/// Where the sockets of a group listen.
pub fn address(group: &[ListenSocket]) -> SocketAddr {
    SocketAddr::new(group[0].ip, group[0].port)
}

/// What tells one set of sockets from another.
pub fn identity(group: &[ListenSocket]) -> Vec<u64> {
    let mut inodes: Vec<u64> = group.iter().map(|socket| socket.inode).collect();
    inodes.sort_unstable();
    inodes
}
