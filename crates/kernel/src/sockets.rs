//! The listening TCP sockets of a network namespace and their users, by sock_diag(7).
//!
//! The kernel walks its table of listeners alone, as the request names no other state. /proc/net/tcp has every
//! connection too: it is long when the server is overloaded.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;

use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_sock_diag::SockDiagMessage;
use netlink_packet_sock_diag::constants::{AF_INET, AF_INET6, IPPROTO_TCP};
use netlink_packet_sock_diag::inet::{
    ExtensionFlags, InetRequest, InetResponseHeader, SocketId, StateFlags,
};
use netlink_sys::{Socket, SocketAddr as NetlinkAddr, protocols::NETLINK_SOCK_DIAG};

/// A listening socket and the user that made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnedSocket {
    /// Its local address; `0.0.0.0` or `::` for any.
    pub local: SocketAddr,
    /// Its user, as the caller's user namespace numbers it.
    pub uid: u32,
    /// Its inode number, by which /proc/PID/fd names it.
    pub inode: u64,
}

/// The listening TCP sockets of the calling thread's network namespace, IPv4 before IPv6.
///
/// # Errors
/// The kernel has no tcp_diag (CONFIG_INET_DIAG), or answers in a form that is not known.
pub fn owned_sockets() -> io::Result<Vec<OwnedSocket>> {
    let mut sockets = Vec::new();
    for family in [AF_INET, AF_INET6] {
        dump(family, |header| sockets.push(of_header(&header)))?;
    }
    Ok(sockets)
}

/// A number that the kernel gives to one socket only, until the machine stops.
pub(crate) type Cookie = [u8; 8];

/// The cookies of all listening TCP sockets of the calling thread's network namespace. It takes the kernel some 50 µs.
///
/// # Errors
/// As of [`owned_sockets`].
pub(crate) fn listening_cookies() -> io::Result<BTreeSet<Cookie>> {
    let mut cookies = BTreeSet::new();
    for family in [AF_INET, AF_INET6] {
        dump(family, |header| {
            cookies.insert(header.socket_id.cookie);
        })?;
    }
    Ok(cookies)
}

fn of_header(header: &InetResponseHeader) -> OwnedSocket {
    let id = &header.socket_id;
    OwnedSocket {
        local: SocketAddr::new(id.source_address, id.source_port),
        uid: header.uid,
        inode: header.inode.into(),
    }
}

/// Asks for the listeners of one address family.
fn dump(family: u8, mut found: impl FnMut(InetResponseHeader)) -> io::Result<()> {
    let mut socket = Socket::new(NETLINK_SOCK_DIAG)?;
    socket.bind_auto()?;
    socket.connect(&NetlinkAddr::new(0, 0))?;
    socket.send(&request(family), 0)?;
    loop {
        let (bytes, _) = socket.recv_from_full()?;
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let message = NetlinkMessage::<SockDiagMessage>::deserialize(rest)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
            // Messages are padded to four bytes (NLMSG_ALIGN).
            let length = (message.header.length as usize).next_multiple_of(4).max(4);
            rest = rest.get(length..).unwrap_or_default();
            match message.payload {
                NetlinkPayload::Done(_) => return Ok(()),
                NetlinkPayload::Error(error) => return Err(error.to_io()),
                NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(response)) => {
                    found(response.header);
                }
                _ => {}
            }
        }
    }
}

fn request(family: u8) -> Vec<u8> {
    let request = SockDiagMessage::InetRequest(InetRequest {
        family,
        protocol: IPPROTO_TCP,
        extensions: ExtensionFlags::empty(),
        states: StateFlags::LISTEN,
        // Any address, port and interface.
        socket_id: SocketId::new_v4(),
    });
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    let mut message = NetlinkMessage::new(header, NetlinkPayload::from(request));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use super::*;

    /// The inode number of a socket, as /proc names it.
    fn inode_of(socket: &impl AsRawFd) -> u64 {
        let link = format!("/proc/self/fd/{}", socket.as_raw_fd());
        let target = std::fs::read_link(link).unwrap();
        let target = target.to_str().unwrap();
        target["socket:[".len()..target.len() - 1].parse().unwrap()
    }

    #[test]
    fn listening_sockets_are_found_with_their_address_user_and_inode() {
        for address in ["127.0.0.1:0", "[::1]:0", "0.0.0.0:0", "[::]:0"] {
            let listener = TcpListener::bind(address).unwrap();
            let expected = OwnedSocket {
                local: listener.local_addr().unwrap(),
                uid: nix::unistd::geteuid().as_raw(),
                inode: inode_of(&listener),
            };
            let found = owned_sockets().unwrap();
            let same = |socket: &&OwnedSocket| socket.inode == expected.inode;
            let found: Vec<&OwnedSocket> = found.iter().filter(same).collect();
            assert_eq!(found, [&expected], "{address}");
        }
    }

    /// How many messages a dump answers with is what grows.
    #[test]
    fn connections_are_not_read() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let connections: Vec<(TcpStream, TcpStream)> = (0..400)
            .map(|_| {
                let client = TcpStream::connect(address).unwrap();
                (client, listener.accept().unwrap().0)
            })
            .collect();
        let mut of_port = 0;
        let mut states = std::collections::BTreeSet::new();
        dump(AF_INET, |header| {
            states.insert(header.state);
            of_port += u32::from(header.socket_id.source_port == address.port());
        })
        .unwrap();
        // include/net/tcp_states.h: TCP_LISTEN.
        assert_eq!(states, [10].into());
        assert_eq!(of_port, 1, "beside {} connections", connections.len());
    }
}
