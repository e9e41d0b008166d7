//! UDP sockets that may be those of QUIC servers: they have an address and no peer.
//!
//! Nobody can tell such a socket from that of another service of datagrams. What weir does at its port is harmless to others:
//! it judges nothing but the first packet of a QUIC connection.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;

use weir_core::listener::ListenAddress;
use weir_kernel::{BoundUdp, bound_udp};

use crate::host::ports;
use crate::host::processes::{Process, owners};
use crate::host::published::keeps_ports;

/// Ports of services that never speak QUIC, and whose servers listen by TCP and UDP: what a server has there by UDP is not
/// HTTP/3. They are those that IANA has assigned; DNS over QUIC must not use port 53 (RFC 9250, Section 4.1.1).
const NEVER_QUIC: [(u16, &str); 9] = [
    (53, "DNS"),
    (88, "Kerberos"),
    (111, "rpcbind"),
    (389, "LDAP"),
    (464, "Kerberos"),
    (2049, "NFS"),
    (3478, "STUN"),
    (5060, "SIP"),
    (11_211, "memcached"),
];

/// Whether a server may speak QUIC at this port.
pub fn may_be_quic(port: u16) -> bool {
    NEVER_QUIC.iter().all(|(never, _)| *never != port)
}

/// Those of the calling thread's network namespace that may speak QUIC.
///
/// # Errors
/// Neither sock_diag(7) nor /proc says which there are.
pub fn sockets() -> io::Result<Vec<BoundUdp>> {
    let mut all = bound_udp().or_else(|_| by_proc())?;
    all.retain(|socket| may_be_quic(socket.local.port()));
    Ok(all)
}

/// A UDP socket and who has it.
#[derive(Debug, Clone, PartialEq)]
pub struct UdpServer {
    /// The socket.
    pub socket: BoundUdp,
    /// Its process; `None` while not known.
    pub process: Option<Process>,
}

/// The sockets with their processes, and the ports of those that a container engine has only to keep the port from others:
/// packets from outside go to a container, and never to that socket. This reads the descriptors of every process, if there is
/// a socket.
pub fn servers(sockets: Vec<BoundUdp>) -> (Vec<UdpServer>, BTreeSet<u16>) {
    let inodes: BTreeSet<u64> = sockets.iter().map(|socket| socket.inode).collect();
    let owners = match inodes.is_empty() {
        true => BTreeMap::new(),
        false => owners(&inodes),
    };
    let server = |socket: BoundUdp| UdpServer {
        socket,
        process: owners.get(&socket.inode).cloned(),
    };
    let all = sockets.into_iter().map(server);
    let keeps = |server: &UdpServer| {
        let process = server.process.as_ref();
        process.is_some_and(|process| keeps_ports(process.pid))
    };
    let (published, servers): (Vec<_>, Vec<_>) = all.partition(keeps);
    let ports = published.iter().map(|one| one.socket.local.port());
    (servers, ports.collect())
}

/// What a kernel without udp_diag tells of them.
fn by_proc() -> io::Result<Vec<BoundUdp>> {
    let mut all = Vec::new();
    for file in ["udp", "udp6"] {
        match std::fs::read_to_string(format!("/proc/thread-self/net/{file}")) {
            Ok(table) => all.extend(table.lines().filter_map(of_line)),
            // A kernel without IPv6.
            Err(error) if file == "udp6" && error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

/// A line of /proc/net/udp; `None`: it is the head, or the socket has a peer.
fn of_line(line: &str) -> Option<BoundUdp> {
    let (local, _, state) = ports::connection(line)?;
    let inode = line.split_whitespace().nth(9)?.parse().ok()?;
    (state == CLOSE).then_some(BoundUdp {
        local,
        v6only: false,
        inode,
        receive_buffer: None,
        drops: None,
    })
}

/// include/net/tcp_states.h: of UDP sockets without a peer.
const CLOSE: u8 = 7;

/// Whether packets to some address of `at` may be for the socket.
pub fn is_at(socket: &BoundUdp, at: ListenAddress) -> bool {
    let ip = socket.local.ip().to_canonical();
    let takes_ipv4 = ip.is_ipv4() || ip.is_unspecified() && !socket.v6only;
    let takes = match at.ip {
        None => true,
        Some(asked) if asked == ip => true,
        Some(IpAddr::V4(asked)) if asked.is_unspecified() => takes_ipv4,
        // As a dual-stack socket, it is of every IPv4 address too.
        Some(IpAddr::V6(asked)) if asked.is_unspecified() => true,
        Some(IpAddr::V4(_)) => ip.is_unspecified() && takes_ipv4,
        Some(IpAddr::V6(_)) => ip.is_unspecified() && ip.is_ipv6(),
    };
    socket.local.port() == at.port && takes
}

#[cfg(test)]
pub mod fake {
    use super::*;

    /// One of a process, with Linux's default buffer.
    pub fn udp(ip: &str, port: u16) -> BoundUdp {
        let ip: IpAddr = ip.parse().unwrap();
        BoundUdp {
            local: (ip, port).into(),
            v6only: false,
            inode: 1,
            receive_buffer: Some(212_992),
            drops: Some(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::fake::udp;
    use super::*;

    #[test]
    fn a_socket_is_at_an_address_whose_packets_it_may_get() {
        let is_at = |socket: &BoundUdp, at: &str| {
            super::is_at(socket, weir_config::parse_listen_address(at).unwrap())
        };
        for (ip, there, elsewhere) in [
            (
                "0.0.0.0",
                &["*:443", "0.0.0.0:443", "[::]:443", "10.0.0.1:443"][..],
                &["[2001:db8::1]:443", "*:444"][..],
            ),
            (
                "::",
                &["*:443", "0.0.0.0:443", "10.0.0.1:443", "[2001:db8::1]:443"],
                &["*:444"],
            ),
            (
                "10.0.0.1",
                &["*:443", "0.0.0.0:443", "10.0.0.1:443"],
                &["10.0.0.2:443", "[2001:db8::1]:443"],
            ),
            (
                "::ffff:10.0.0.1",
                &["0.0.0.0:443", "10.0.0.1:443"],
                &["10.0.0.2:443"],
            ),
            (
                "2001:db8::1",
                &["*:443", "[::]:443", "[2001:db8::1]:443"],
                &["0.0.0.0:443", "10.0.0.1:443"],
            ),
        ] {
            let socket = udp(ip, 443);
            for at in there {
                assert!(is_at(&socket, at), "{ip} at {at}");
            }
            for at in elsewhere {
                assert!(!is_at(&socket, at), "{ip} at {at}");
            }
        }
        let v6only = BoundUdp {
            v6only: true,
            ..udp("::", 443)
        };
        assert!(is_at(&v6only, "[2001:db8::1]:443") && is_at(&v6only, "*:443"));
        assert!(!is_at(&v6only, "0.0.0.0:443") && !is_at(&v6only, "10.0.0.1:443"));
    }

    #[test]
    fn proc_and_the_kernel_s_answers_name_the_same_sockets() {
        let sockets = ["127.0.0.1:0", "[::1]:0", "[::]:0"].map(|at| UdpSocket::bind(at).unwrap());
        let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
        peer.connect(sockets[0].local_addr().unwrap()).unwrap();
        let mut locals = sockets.iter().map(|socket| socket.local_addr().unwrap());
        let by_proc = by_proc().unwrap();
        let of_kernel = bound_udp().unwrap();
        let has = |all: &[BoundUdp], local| all.iter().any(|one| one.local == local);
        assert!(locals.all(|local| has(&by_proc, local) && has(&of_kernel, local)));
        let with_peer = peer.local_addr().unwrap();
        assert!(!has(&by_proc, with_peer) && !has(&of_kernel, with_peer));
    }

    #[test]
    fn a_port_of_dns_is_never_that_of_a_quic_server() {
        assert!(!may_be_quic(53));
        assert!(may_be_quic(443) && may_be_quic(853) && may_be_quic(8443));
    }
}
