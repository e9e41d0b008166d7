//! What a parking listener has to be like to stand in for a server's socket.

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, socket};
use nix::unistd::{Uid, fchown};

use super::failure::failed;
use super::options::{Options, set_number};
use crate::error::Result;
use crate::guard::listeners::ListenSocket;

/// The address, the owner, the backlog and the options of a server's socket.
#[derive(PartialEq)]
pub(super) struct Model {
    /// Where the server listens.
    pub address: SocketAddr,
    uid: u32,
    backlog: i32,
    options: Options,
}

impl Model {
    /// That of a server's socket, of which `fd` is a descriptor.
    pub fn of(server: &ListenSocket, fd: BorrowedFd<'_>) -> Result<Model> {
        let stat =
            nix::sys::stat::fstat(fd).map_err(|e| failed("look at the server's socket", e))?;
        let address = SocketAddr::new(server.ip, server.port);
        let fresh = new_socket(&address)?;
        Ok(Model {
            address,
            uid: stat.st_uid,
            backlog: server.queue_limit.clamp(1, i32::MAX as u32) as i32,
            options: Options::of(fd, fresh.as_fd()),
        })
    }

    /// The argument of listen().
    pub fn backlog(&self) -> Backlog {
        Backlog::new(self.backlog).unwrap_or(Backlog::MAXCONN)
    }

    /// A socket bound to the server's address, as the server's own is.
    pub fn make(&self) -> Result<OwnedFd> {
        let fd = new_socket(&self.address)?;
        let what = |what: &str| format!("make a parking listener: {what}");
        let raw = fd.as_raw_fd();
        // Only sockets of one user are of one SO_REUSEPORT group.
        fchown(&fd, Some(Uid::from_raw(self.uid)), None)
            .map_err(|e| failed(&what("give it to the server's user"), e))?;
        self.options
            .apply(fd.as_fd())
            .map_err(|e| failed(&what("set the server's socket options"), e))?;
        for name in [libc::SO_REUSEADDR, libc::SO_REUSEPORT] {
            set_number(raw, libc::SOL_SOCKET, name, 1)
                .map_err(|e| failed(&what("set SO_REUSEPORT"), e))?;
        }
        bind(raw, &SockaddrStorage::from(self.address))
            .map_err(|e| failed(&what(&format!("bind it to {}", self.address)), e))?;
        Ok(fd)
    }
}

fn new_socket(address: &SocketAddr) -> Result<OwnedFd> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::Inet,
        SocketAddr::V6(_) => AddressFamily::Inet6,
    };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socket(family, SockType::Stream, flags, None).map_err(|e| failed("make a socket", e))
}
