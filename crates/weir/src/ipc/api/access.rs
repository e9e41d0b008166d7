//! Who may write what. Whoever the socket's permissions let in may read. Root (and the user of weir
//! itself) may write everything; the user that owns all listening sockets of a listener may write the
//! classes of that listener and of no other: that is the server itself.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use weir_kernel::ListenSocket;

use super::Peer;
use crate::failure::Failure;

/// A listening socket and the user that made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owned {
    /// Its local address.
    pub ip: IpAddr,
    /// Its port.
    pub port: u16,
    /// Its user.
    pub uid: u32,
    /// Its inode, by which /proc/PID/fd names it.
    pub inode: u64,
}

/// The listening TCP sockets of this network namespace; those that cannot be read own nothing.
pub fn owners() -> Vec<Owned> {
    let of = |file: &str| {
        let text =
            std::fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap_or_default();
        text.lines().skip(1).filter_map(parse).collect::<Vec<_>>()
    };
    [of("tcp"), of("tcp6")].concat()
}

/// A line of /proc/net/tcp: number, local address, remote address, state, queues, timer, retransmits,
/// uid, timeout, inode (proc_pid_net(5)).
fn parse(line: &str) -> Option<Owned> {
    const LISTEN: &str = "0A";
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (local, state) = (fields.get(1)?, fields.get(3)?);
    if *state != LISTEN {
        return None;
    }
    let (ip, port) = local.split_once(':')?;
    Some(Owned {
        ip: address(ip)?,
        port: u16::from_str_radix(port, 16).ok()?,
        uid: fields.get(7)?.parse().ok()?,
        inode: fields.get(9)?.parse().ok()?,
    })
}

/// Words of 32 bits, each in the machine's order of bytes.
fn address(hex: &str) -> Option<IpAddr> {
    let words: Vec<[u8; 4]> = (0..hex.len() / 8)
        .map(|i| {
            Some(
                u32::from_str_radix(hex.get(8 * i..8 * i + 8)?, 16)
                    .ok()?
                    .to_ne_bytes(),
            )
        })
        .collect::<Option<_>>()?;
    match words.as_slice() {
        [word] => Some(Ipv4Addr::from(*word).into()),
        [_, _, _, _] => {
            let bytes: [u8; 16] = words.concat().try_into().ok()?;
            Some(Ipv6Addr::from(bytes).into())
        }
        _ => None,
    }
}

/// The users of these sockets.
pub fn users_of(sockets: &[ListenSocket], owners: &[Owned]) -> BTreeSet<u32> {
    let is_same = |socket: &ListenSocket, owned: &Owned| {
        socket.port == owned.port && socket.ip.to_canonical() == owned.ip.to_canonical()
    };
    let of = |owned: &&Owned| sockets.iter().any(|socket| is_same(socket, owned));
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
    fn listening_sockets_are_read_with_their_users() {
        let line = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000    33        0 4711 1 0 100 0 0 10 0";
        let expected = Owned {
            ip: "127.0.0.1".parse().unwrap(),
            port: 8080,
            uid: 33,
            inode: 4711,
        };
        if cfg!(target_endian = "little") {
            assert_eq!(parse(line), Some(expected));
        }
        assert_eq!(
            parse(&line.replace(" 0A ", " 01 ")),
            None,
            "an established one"
        );
        let six = line.replace("0100007F", "B80D0120000000000000000001000000");
        if cfg!(target_endian = "little") {
            assert_eq!(
                parse(&six).unwrap().ip,
                "2001:db8::1".parse::<IpAddr>().unwrap()
            );
        }
        assert_eq!(parse("sl local_address"), None);
    }

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
