//! What is asked of and done to sockets of the server.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::errno::Errno;

/// The accept queue of a listening socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backlog {
    /// Connections in it.
    pub length: u32,
    /// The backlog in force.
    pub limit: u32,
}

/// What a descriptor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A listening TCP or MPTCP socket.
    Listening,
    /// A TCP or MPTCP socket that is connected, or was.
    Connected,
    /// Anything else.
    Other,
}

fn number(fd: BorrowedFd<'_>, name: i32) -> Option<i32> {
    let mut value: i32 = 0;
    let mut len = size_of_val(&value) as libc::socklen_t;
    let to = (&raw mut value).cast();
    // SAFETY: at most `len` bytes are written to it.
    let failed = unsafe { libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, name, to, &mut len) };
    (failed == 0).then_some(value)
}

/// What this descriptor is.
pub fn kind(fd: BorrowedFd<'_>) -> Kind {
    let family = number(fd, libc::SO_DOMAIN);
    let protocol = number(fd, libc::SO_PROTOCOL);
    let tcp = [libc::AF_INET, libc::AF_INET6].map(Some).contains(&family)
        && [libc::IPPROTO_TCP, libc::IPPROTO_MPTCP]
            .map(Some)
            .contains(&protocol);
    match (tcp, number(fd, libc::SO_ACCEPTCONN)) {
        (true, Some(1)) => Kind::Listening,
        (true, Some(0)) => Kind::Connected,
        _ => Kind::Other,
    }
}

/// The accept queue of a listening TCP socket.
///
/// # Errors
/// It is none.
pub fn backlog(fd: BorrowedFd<'_>) -> Result<Backlog, Errno> {
    let info = tcp_info(fd)?;
    // Of a listening socket these two mean something else than their names say (tcp_get_info()).
    Ok(Backlog {
        length: info.unacked,
        limit: info.sacked,
    })
}

/// Whether anybody has sent data on this connection.
pub fn has_sent(fd: BorrowedFd<'_>) -> bool {
    tcp_info(fd).is_ok_and(|info| info.data_segs_out > 0)
}

/// SO_RCVTIMEO of a listening socket: after so long a blocking accept() fails with EAGAIN.
pub fn receive_timeout(fd: BorrowedFd<'_>) -> Option<std::time::Duration> {
    use nix::sys::time::TimeValLike;
    let timeout = nix::sys::socket::getsockopt(&fd, nix::sys::socket::sockopt::ReceiveTimeout);
    let us = timeout.ok()?.num_microseconds();
    (us > 0).then(|| std::time::Duration::from_micros(us as u64))
}

/// Has this connection reset, and not closed in order, when nobody has it open any more.
pub fn reset_on_close(fd: BorrowedFd<'_>) {
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    // Without it the connection is closed in order.
    let _ = nix::sys::socket::setsockopt(&fd, nix::sys::socket::sockopt::Linger, &linger);
}

/// The start of `struct tcp_info` of <linux/tcp.h>, as of Linux 4.6.
#[repr(C)]
#[derive(Default)]
struct TcpInfo {
    bytes: [u8; 8],
    /// rto, ato, snd_mss, rcv_mss.
    first: [u32; 4],
    unacked: u32,
    sacked: u32,
    /// lost to total_retrans.
    then: [u32; 18],
    /// pacing_rate to bytes_received.
    rates: [u64; 4],
    /// segs_out to data_segs_in.
    segments: [u32; 5],
    data_segs_out: u32,
}

const _: () = assert!(std::mem::offset_of!(TcpInfo, data_segs_out) == 156);

fn tcp_info(fd: BorrowedFd<'_>) -> Result<TcpInfo, Errno> {
    let mut info = TcpInfo::default();
    let mut len = size_of_val(&info) as libc::socklen_t;
    let to = (&raw mut info).cast();
    // SAFETY: at most `len` bytes are written to it.
    Errno::result(unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            to,
            &mut len,
        )
    })?;
    Ok(info)
}

/// The address as accept() writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketAddress {
    bytes: [u8; 28],
    len: usize,
}

impl SocketAddress {
    /// Its bytes: a `struct sockaddr_in` or `sockaddr_in6`.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl From<SocketAddr> for SocketAddress {
    fn from(address: SocketAddr) -> SocketAddress {
        let mut bytes = [0; 28];
        bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
        let (family, len) = match address {
            SocketAddr::V4(v4) => {
                bytes[4..8].copy_from_slice(&v4.ip().octets());
                (libc::AF_INET, 16)
            }
            SocketAddr::V6(v6) => {
                // std keeps the flow label as the kernel has it.
                bytes[4..8].copy_from_slice(&v6.flowinfo().to_ne_bytes());
                bytes[8..24].copy_from_slice(&v6.ip().octets());
                bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
                (libc::AF_INET6, 28)
            }
        };
        bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
        SocketAddress { bytes, len }
    }
}
