//! Whether a handshake with a port is under way (sock_diag(7)).
//!
//! Such connections are in no queue that accept(2) empties, but for their clients they stand once the
//! SYN/ACK has come. No option of a listening socket tells how many there are.

use std::io;
use std::os::fd::AsFd;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

/// linux/sock_diag.h: the one request there is.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// linux/netlink.h: NLM_F_REQUEST, NLM_F_ROOT and NLM_F_MATCH.
const DUMP: u16 = 0x301;
/// linux/netlink.h.
const NLMSG_ERROR: u16 = 2;
const HEADER_BYTES: usize = 16;
/// include/net/tcp_states.h: TCPF_SYN_RECV, with which requests are meant too.
const SYN_RECV: u32 = 1 << 3;

/// Whether there is one on this port, of any address.
///
/// # Errors
/// The kernel has no tcp_diag, or refuses a socket.
pub fn is_in_handshake(family: AddressFamily, port: u16) -> io::Result<bool> {
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )?;
    rustix::net::send(&socket, &request(family, port), SendFlags::empty())?;
    answer(socket.as_fd())
}

/// `struct nlmsghdr` and `struct inet_diag_req_v2` (linux/inet_diag.h).
fn request(family: AddressFamily, port: u16) -> Vec<u8> {
    let mut request = Vec::with_capacity(72);
    request.extend(72u32.to_ne_bytes());
    request.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request.extend(DUMP.to_ne_bytes());
    // Sequence number and sender: one question, one answer.
    request.extend([0; 8]);
    request.extend([family.as_raw() as u8, libc::IPPROTO_TCP as u8, 0, 0]);
    request.extend(SYN_RECV.to_ne_bytes());
    request.extend(port.to_be_bytes());
    // Any peer, any address, any interface; INET_DIAG_NOCOOKIE.
    request.extend([0; 2 + 16 + 16 + 4]);
    request.extend([0xff; 8]);
    request
}

/// The first message says it: a connection, or the end of the list.
fn answer(socket: impl AsFd) -> io::Result<bool> {
    let mut buffer = [0; 8192];
    let (_, bytes) = rustix::net::recv(socket, &mut buffer[..], RecvFlags::empty())?;
    let kind = buffer.get(4..6).filter(|_| bytes >= HEADER_BYTES);
    match kind.map(|kind| u16::from_ne_bytes([kind[0], kind[1]])) {
        Some(SOCK_DIAG_BY_FAMILY) => Ok(true),
        Some(NLMSG_ERROR) | None => Err(io::ErrorKind::Unsupported.into()),
        Some(_) => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::time::Duration;

    fn opens(address: &str, to: &str, family: AddressFamily) {
        let listener = TcpListener::bind(address).unwrap();
        let port = listener.local_addr().unwrap().port();
        crate::sys::set_defer_accept(&listener, Some(Duration::from_secs(10))).unwrap();
        assert!(!is_in_handshake(family, port).unwrap(), "{address}");
        let to: SocketAddr = format!("{to}:{port}").parse().unwrap();
        let _client = TcpStream::connect(to).unwrap();
        assert!(is_in_handshake(family, port).unwrap(), "{address}");
        let other = TcpListener::bind(address).unwrap();
        let port = other.local_addr().unwrap().port();
        assert!(!is_in_handshake(family, port).unwrap(), "{address}");
    }

    #[test]
    fn a_connection_whose_handshake_is_not_over_is_seen_on_its_port_alone() {
        opens("127.0.0.1:0", "127.0.0.1", AddressFamily::INET);
        opens("[::1]:0", "[::1]", AddressFamily::INET6);
        // IPv4 clients of an IPv6 socket.
        opens("[::]:0", "127.0.0.1", AddressFamily::INET6);
    }
}
