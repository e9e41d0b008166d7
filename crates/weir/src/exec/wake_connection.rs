//! A connection of weir to the server's own listening socket, which keeps it readable.
//!
//! A server that waits with epoll or poll comes to accept() only while the kernel's queue is not empty. What
//! waits is with the orderer; so one connection stays behind in the kernel's queue, and if none may, this one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use weir_kernel::exec::reset_on_close;

/// Loopback answers within microseconds, if at all.
const PATIENCE: Duration = Duration::from_millis(20);

/// One that waits to be accepted. Reset when dropped, so that neither side is left in TIME_WAIT.
#[derive(Debug)]
pub struct WakeConnection {
    stream: TcpStream,
    address: SocketAddr,
}

impl WakeConnection {
    /// Connects to a listening socket with this address.
    pub fn open(listener: SocketAddr) -> std::io::Result<WakeConnection> {
        let stream = TcpStream::connect_timeout(&reachable(listener), PATIENCE)?;
        let connection = WakeConnection::of(stream)?;
        // For servers with TCP_DEFER_ACCEPT; nobody reads it.
        let _ = std::io::Write::write(&mut &connection.stream, b"\n");
        Ok(connection)
    }

    /// The one whose client's end this is.
    pub fn of(stream: TcpStream) -> std::io::Result<WakeConnection> {
        reset_on_close(stream.as_fd());
        let address = canonical(stream.local_addr()?);
        Ok(WakeConnection { stream, address })
    }

    /// Whether this is the client's end of one to a listening socket with this address.
    pub fn leads_to(stream: &TcpStream, listener: SocketAddr) -> bool {
        stream.peer_addr().map(canonical).ok() == Some(reachable(listener))
    }

    /// Whether this is the server's side of it.
    pub fn is(&self, peer: SocketAddr) -> bool {
        canonical(peer) == self.address
    }
}

impl Drop for WakeConnection {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

fn reachable(listener: SocketAddr) -> SocketAddr {
    let mut address = canonical(listener);
    if address.ip().is_unspecified() {
        address.set_ip(match address.is_ipv4() {
            true => IpAddr::V4(Ipv4Addr::LOCALHOST),
            false => IpAddr::V6(Ipv6Addr::LOCALHOST),
        });
    }
    address
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
