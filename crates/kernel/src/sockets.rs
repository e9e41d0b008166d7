//! The listening TCP sockets of a network namespace and their users, and the UDP sockets that anybody may send to, by
//! sock_diag(7).
//!
//! The kernel walks its table of listeners alone, as the request names no other state. /proc/net/tcp has every
//! connection too: it is long when the server is overloaded. Only [`unaccepted`] walks the connections, for a command that
//! asks once.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;

use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_sock_diag::SockDiagMessage;
use netlink_packet_sock_diag::constants::{
    AF_INET, AF_INET6, IPPROTO_TCP, IPPROTO_UDP, TCP_CLOSE_WAIT,
};
use netlink_packet_sock_diag::inet::{
    ExtensionFlags, InetRequest, InetResponse, InetResponseHeader, SocketId, StateFlags, nlas::Nla,
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
    /// The index of the interface that it is bound to (SO_BINDTODEVICE); 0: it is bound to none.
    pub ifindex: u32,
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

/// The listen queue of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListenQueue {
    /// The socket's local address; `0.0.0.0` or `::` for any.
    pub local: SocketAddr,
    /// Its inode number, by which /proc/PID/fd names it.
    pub inode: u64,
    /// Connections that wait for accept().
    pub length: u32,
    /// The backlog in force. The kernel takes one more.
    pub limit: u32,
    /// SYNs and final ACKs that it has dropped since it listens, nearly all because its queue was full; wraps.
    pub drops: u32,
}

/// The listen queues of the calling thread's network namespace, IPv4 before IPv6. No program is loaded for it.
///
/// # Errors
/// As of [`owned_sockets`].
pub fn listen_queues() -> io::Result<Vec<ListenQueue>> {
    let mut queues = Vec::new();
    for family in [AF_INET, AF_INET6] {
        ask(
            (family, IPPROTO_TCP),
            StateFlags::LISTEN,
            ExtensionFlags::SKMEMINFO,
            |response| {
                let header = &response.header;
                let drops = response.nlas.iter().find_map(|nla| match nla {
                    Nla::MemInfo(memory) => Some(memory.drops),
                    _ => None,
                });
                let of = of_header(header);
                queues.push(ListenQueue {
                    local: of.local,
                    inode: of.inode,
                    length: header.recv_queue,
                    limit: header.send_queue,
                    drops: drops.unwrap_or(0),
                });
            },
        )?;
    }
    Ok(queues)
}

/// A UDP socket that has an address and no peer: anybody may send to it, as to that of a QUIC server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BoundUdp {
    /// Its local address; `0.0.0.0` or `::` for any.
    pub local: SocketAddr,
    /// An IPv6 socket that takes no IPv4 (IPV6_V6ONLY).
    pub v6only: bool,
    /// Its inode number, by which /proc/PID/fd names it; 0: it is the kernel's own.
    pub inode: u64,
    /// Bytes that its receive buffer takes (`sk_rcvbuf`): twice what was asked for with SO_RCVBUF. `None`: the kernel does
    /// not say.
    pub receive_buffer: Option<u32>,
    /// Datagrams that it has dropped, nearly all because that buffer was full; wraps. `None` likewise.
    pub drops: Option<u32>,
}

/// The UDP sockets without a peer of the calling thread's network namespace, IPv4 before IPv6.
///
/// # Errors
/// The kernel has no udp_diag (CONFIG_INET_UDP_DIAG), or answers in a form that is not known.
pub fn bound_udp() -> io::Result<Vec<BoundUdp>> {
    let mut sockets = Vec::new();
    for family in [AF_INET, AF_INET6] {
        // UDP has two states, and this is that of sockets without a peer.
        let (states, memory) = (StateFlags::CLOSE, ExtensionFlags::SKMEMINFO);
        ask((family, IPPROTO_UDP), states, memory, |response| {
            let of = of_header(&response.header);
            let mut found = BoundUdp {
                local: of.local,
                v6only: false,
                inode: of.inode,
                receive_buffer: None,
                drops: None,
            };
            for nla in &response.nlas {
                match nla {
                    Nla::SkV6Only(only) => found.v6only = *only,
                    Nla::MemInfo(memory) => {
                        found.receive_buffer = Some(memory.receive_queue_max);
                        found.drops = Some(memory.drops);
                    }
                    _ => {}
                }
            }
            sockets.push(found);
        })?;
    }
    Ok(sockets)
}

/// A connection that no process has accepted yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unaccepted {
    /// The server's address and port, as the client named them.
    pub local: SocketAddr,
    /// A number that no other socket has, until the machine stops.
    pub cookie: [u8; 8],
    /// Its client has closed: nobody may be there to read a reply.
    pub closed: bool,
}

/// The connections that wait for accept() in the calling thread's network namespace. Those whose client has reset them are in the
/// [length](ListenQueue::length) of the queue, and not here.
///
/// The kernel walks all connections for it.
///
/// # Errors
/// As of [`owned_sockets`].
pub fn unaccepted() -> io::Result<Vec<Unaccepted>> {
    let mut waiting = Vec::new();
    for family in [AF_INET, AF_INET6] {
        let states = StateFlags::ESTABLISHED | StateFlags::CLOSE_WAIT;
        let sockets = (family, IPPROTO_TCP);
        ask(sockets, states, ExtensionFlags::empty(), |response| {
            let header = &response.header;
            // accept() gives a connection its file, and with it the inode.
            if header.inode == 0 {
                waiting.push(Unaccepted {
                    local: of_header(header).local,
                    cookie: header.socket_id.cookie,
                    closed: header.state == TCP_CLOSE_WAIT,
                });
            }
        })?;
    }
    Ok(waiting)
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
        ifindex: id.interface_id,
    }
}

/// Asks for the listeners of one address family.
fn dump(family: u8, mut found: impl FnMut(InetResponseHeader)) -> io::Result<()> {
    ask(
        (family, IPPROTO_TCP),
        StateFlags::LISTEN,
        ExtensionFlags::empty(),
        |response| found(response.header),
    )
}

/// Asks for the sockets of an address family and a protocol, with what there is to say beside the header.
fn ask(
    (family, protocol): (u8, u8),
    states: StateFlags,
    extensions: ExtensionFlags,
    mut found: impl FnMut(InetResponse),
) -> io::Result<()> {
    let mut socket = Socket::new(NETLINK_SOCK_DIAG)?;
    socket.bind_auto()?;
    socket.connect(&NetlinkAddr::new(0, 0))?;
    socket.send(&request(family, protocol, states, extensions), 0)?;
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
                    found(*response);
                }
                _ => {}
            }
        }
    }
}

fn request(family: u8, protocol: u8, states: StateFlags, extensions: ExtensionFlags) -> Vec<u8> {
    let request = SockDiagMessage::InetRequest(InetRequest {
        family,
        protocol,
        extensions,
        states,
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
    use std::net::{TcpListener, TcpStream, UdpSocket};
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
                ifindex: 0,
            };
            let found = owned_sockets().unwrap();
            let same = |socket: &&OwnedSocket| socket.inode == expected.inode;
            let found: Vec<&OwnedSocket> = found.iter().filter(same).collect();
            assert_eq!(found, [&expected], "{address}");
        }
    }

    #[test]
    fn a_full_queue_is_seen_with_its_length_and_its_drops() {
        let listener = nix::sys::socket::socket(
            nix::sys::socket::AddressFamily::Inet,
            nix::sys::socket::SockType::Stream,
            nix::sys::socket::SockFlag::empty(),
            None,
        )
        .unwrap();
        let any = nix::sys::socket::SockaddrIn::new(127, 0, 0, 1, 0);
        nix::sys::socket::bind(listener.as_raw_fd(), &any).unwrap();
        nix::sys::socket::listen(&listener, nix::sys::socket::Backlog::new(2).unwrap()).unwrap();
        let listener = TcpListener::from(listener);
        let queue = || {
            let inode = inode_of(&listener);
            let mut all = listen_queues().unwrap().into_iter();
            all.find(|queue| queue.inode == inode).unwrap()
        };
        assert_eq!((queue().length, queue().limit, queue().drops), (0, 2, 0));
        let address = listener.local_addr().unwrap();
        let patience = std::time::Duration::from_millis(100);
        let connect = || TcpStream::connect_timeout(&address, patience);
        let clients: Vec<_> = (0..4).map(|_| connect()).collect();
        assert!(clients[3].is_err());
        assert_eq!((queue().length, queue().local), (3, address));
        assert!(queue().drops > 0, "{:?}", queue());
    }

    #[test]
    fn a_connection_is_unaccepted_until_it_is_accepted_and_says_that_its_client_has_closed() {
        let listener = TcpListener::bind("[::]:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let waiting = || {
            let mut here = unaccepted().unwrap();
            here.retain(|one| one.local.port() == port);
            here
        };
        assert_eq!(waiting(), []);
        let connect = || TcpStream::connect(("127.0.0.1", port)).unwrap();
        let (first, second) = (connect(), connect());
        let before = waiting();
        assert_eq!(before.iter().filter(|one| one.closed).count(), 0);
        assert_eq!(before.len(), 2);
        // The loopback interface delivers the FIN before close() returns.
        drop(first);
        assert_eq!(waiting().iter().filter(|one| one.closed).count(), 1);
        let accepted = listener.accept().unwrap();
        let left = waiting();
        assert!(left.len() == 1 && before.contains(&left[0]), "{left:?}");
        drop((accepted, second));
    }

    #[test]
    fn udp_sockets_without_a_peer_are_found_with_the_size_of_their_receive_buffer() {
        use nix::sys::socket::{getsockopt, setsockopt, sockopt};

        for address in ["127.0.0.1:0", "[::1]:0", "0.0.0.0:0", "[::]:0"] {
            let socket = UdpSocket::bind(address).unwrap();
            setsockopt(&socket, sockopt::RcvBuf, &50_000).unwrap();
            let buffer = getsockopt(&socket, sockopt::RcvBuf).unwrap();
            let expected = BoundUdp {
                local: socket.local_addr().unwrap(),
                // bind() makes it so, as no IPv4 address is meant.
                v6only: address == "[::1]:0",
                inode: inode_of(&socket),
                receive_buffer: Some(buffer as u32),
                drops: Some(0),
            };
            let found = || {
                let mut all = bound_udp().unwrap().into_iter();
                all.find(|one| one.inode == expected.inode)
            };
            assert_eq!(found(), Some(expected), "{address}");
            let peer = UdpSocket::bind((expected.local.ip(), 0)).unwrap();
            let to = peer.local_addr().unwrap().port();
            let loopback = match expected.local.is_ipv4() {
                true => SocketAddr::from(([127, 0, 0, 1], to)),
                false => SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], to)),
            };
            socket.connect(loopback).unwrap();
            assert_eq!(found(), None, "{address} has a peer");
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
