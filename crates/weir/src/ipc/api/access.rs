//! Who may write what. Every user that the socket's permissions let in may read. Root (and the user of weir
//! itself) may write everything; the user that owns all listening sockets of a listener may write the
//! classes of that listener and of no other: that is the server itself.

use std::collections::BTreeSet;

use weir_kernel::{ListenSocket, OwnedSocket, owned_sockets};

use crate::failure::Failure;
use crate::ipc::peer::Peer;

/// The listening TCP sockets of this network namespace and their users. Where the kernel does not tell them, no
/// user owns any: root alone may write then.
pub fn owners() -> Vec<OwnedSocket> {
    owned_sockets().unwrap_or_else(|error| {
        tracing::warn!("cannot read the users of listening sockets (sock_diag): {error}");
        Vec::new()
    })
}

/// The users of these sockets.
pub fn users_of(sockets: &[ListenSocket], owners: &[OwnedSocket]) -> BTreeSet<u32> {
    let is_same = |socket: &ListenSocket, owned: &OwnedSocket| {
        socket.port == owned.local.port()
            && socket.ip.to_canonical() == owned.local.ip().to_canonical()
    };
    let of = |owned: &&OwnedSocket| sockets.iter().any(|socket| is_same(socket, owned));
    owners.iter().filter(of).map(|owned| owned.uid).collect()
}

/// Whether this peer may write a class of this listener (`None`: one of all listeners). `users` are those
/// of the listener's sockets.
pub fn check(
    peer: Peer,
    own_uid: u32,
    listener: Option<&str>,
    users: &BTreeSet<u32>,
) -> Result<(), Failure> {
    if peer.uid == 0 || peer.uid == own_uid {
        return Ok(());
    }
    let uid = peer.uid;
    let Some(listener) = listener else {
        let message = format!("user {uid} may not write classes of all listeners");
        let hint = "name one whose sockets this user owns: \"listener\": \"web\"; or ask as root";
        return Err(Failure::usage(message, hint));
    };
    match users.contains(&uid) && users.len() == 1 {
        true => Ok(()),
        false => Err(Failure::usage(
            format!("user {uid} may not write classes of listener {listener:?}"),
            "the user that owns all of its listening sockets may (`ss -ltne` shows their uid), and root",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: Peer = Peer { uid: 0, pid: None };
    const WWW: Peer = Peer {
        uid: 33,
        pid: Some(7),
    };

    #[test]
    fn a_server_may_write_its_own_listeners_classes_and_no_others() {
        let (its, shared, none) = (
            BTreeSet::from([33]),
            BTreeSet::from([33, 34]),
            BTreeSet::new(),
        );
        assert!(check(WWW, 0, Some("web"), &its).is_ok());
        assert!(
            check(WWW, 0, Some("web"), &shared).is_err(),
            "another user serves it too"
        );
        assert!(check(WWW, 0, Some("web"), &none).is_err());
        assert!(check(WWW, 0, None, &its).is_err());
        assert!(check(ROOT, 0, None, &none).is_ok());
        assert!(check(WWW, 33, None, &none).is_ok(), "weir's own user");
        let nobody = Peer {
            uid: u32::MAX,
            pid: None,
        };
        assert!(check(nobody, 0, Some("web"), &its).is_err());
    }
}
