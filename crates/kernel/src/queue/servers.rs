//! The server's sockets of one group: entered in the tables, steered by the program, and given back.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use libbpf_rs::{MapCore, MapFlags};
use weir_core::abi::MAX_SERVERS;

use super::failure::failed;
use super::options::{self, set_number};
use super::owner;
use super::programs::Programs;
use super::reuseport;
use crate::cookies;
use crate::error::{Result, of_libbpf};
use crate::guard::listeners::ListenSocket;
use crate::object::Plain;

/// The sockets, by their index in the group's table. One that is gone leaves its index free.
pub(super) struct Servers {
    group: u32,
    sockets: BTreeMap<u32, Server>,
}

struct Server {
    inode: u64,
    /// Its kernel address.
    socket: u64,
    /// SO_REUSEPORT was off before.
    lent: bool,
}

impl Servers {
    /// None yet.
    pub fn new(group: u32) -> Servers {
        Servers {
            group,
            sockets: BTreeMap::new(),
        }
    }

    /// Their indices.
    pub fn indices(&self) -> impl Iterator<Item = u32> {
        self.sockets.keys().copied()
    }

    /// Their inodes, sorted.
    pub fn inodes(&self) -> Vec<u64> {
        let mut inodes: Vec<u64> = self.sockets.values().map(|server| server.inode).collect();
        inodes.sort_unstable();
        inodes
    }

    /// Whether one has, or had, this kernel address.
    pub fn has(&self, socket: u64) -> bool {
        self.sockets.values().any(|server| server.socket == socket)
    }

    /// Whether all have SO_REUSEPORT from weir.
    pub fn are_lent(&self) -> bool {
        self.sockets.values().all(|server| server.lent)
    }

    /// Has the programs know a socket as the server's, and sets SO_REUSEPORT on it. It is not steered to before
    /// [`Servers::enter`]. Returns its index.
    ///
    /// # Errors
    /// There is no free index, or what the kernel refused; the socket may have to be given back.
    pub fn take(
        &mut self,
        programs: &mut Programs,
        server: &ListenSocket,
        fd: BorrowedFd<'_>,
    ) -> Result<u32> {
        let mut free = (0..MAX_SERVERS).filter(|i| !self.sockets.contains_key(i));
        let index = free
            .next()
            .ok_or_else(|| failed("serve one more socket", nix::errno::Errno::ENOSPC))?;
        let raw = fd.as_raw_fd();
        let off = options::number(raw, libc::SOL_SOCKET, libc::SO_REUSEPORT) == Some(0);
        let cookie = cookies::of_socket(fd);
        let lent = off || programs.heirs.contains(&cookie) || reuseport::is_lent(cookie);
        let entry = Server {
            inode: server.inode,
            socket: server.socket,
            lent,
        };
        self.sockets.insert(index, entry);
        programs
            .table
            .set_server(self.group, index, server.socket, lent);
        programs
            .skel
            .maps
            .group_of
            .update(server.socket.bytes(), self.group.bytes(), MapFlags::ANY)
            .map_err(of_libbpf("enter the server's socket"))?;
        if off {
            set_number(raw, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)
                .map_err(|e| failed("set SO_REUSEPORT on the server's socket", e))?;
        }
        Ok(index)
    }

    /// Lets the program choose this socket. It must be of the SO_REUSEPORT group by now.
    ///
    /// # Errors
    /// As of [`reuseport::enter`].
    pub fn enter(&self, programs: &Programs, index: u32, fd: BorrowedFd<'_>) -> Result<()> {
        reuseport::enter(&programs.skel.maps.server_socks, key(self.group, index), fd)
    }

    /// Takes out a socket that has ceased to listen.
    pub fn lose(&mut self, programs: &Programs, socket: u64) {
        let mut its = self.sockets.iter().filter(|(_, s)| s.socket == socket);
        if let Some(index) = its.next().map(|(index, _)| *index) {
            self.remove(programs, index, None);
        }
    }

    /// Gives back all whose inodes are not in `kept`, if they listened at the last look.
    pub fn keep(&mut self, programs: &Programs, kept: &[u64]) {
        let others = self.sockets.iter();
        let others = others.filter(|(_, server)| !kept.contains(&server.inode));
        let others: Vec<(u32, u64)> = others.map(|(i, server)| (*i, server.inode)).collect();
        for (index, inode) in others {
            let listens = programs.table.server(self.group, index).listening;
            let fd = listens.then(|| owner::descriptor(inode).ok()).flatten();
            self.remove(programs, index, fd.as_ref());
        }
    }

    fn remove(&mut self, programs: &Programs, index: u32, fd: Option<&OwnedFd>) {
        let Some(server) = self.sockets.remove(&index) else {
            return;
        };
        programs.table.clear_server(self.group, index);
        let maps = &programs.skel.maps;
        let _ = maps.server_socks.delete(key(self.group, index).bytes());
        programs.forget_socket(server.socket, self.group);
        if let Some(fd) = fd {
            reuseport::give_up(fd.as_fd(), server.lent, false);
        }
    }

    /// Takes them out of the table from which the program chooses: another may have them then. The kernel
    /// chooses one of the group from now on, and after the parking listeners are closed that is a server's.
    pub fn leave(&self, programs: &Programs) {
        for &index in self.sockets.keys() {
            let key = key(self.group, index);
            let _ = programs.skel.maps.server_socks.delete(key.bytes());
        }
    }

    /// Leaves each as it was found, the program too if `program` says so.
    pub fn give_up(&self, program: bool) {
        for server in self.sockets.values() {
            if let Ok(fd) = owner::descriptor(server.inode) {
                reuseport::give_up(fd.as_fd(), server.lent, program);
            }
        }
    }

    /// The programs know them no more.
    pub fn forget(&self, programs: &Programs) {
        for server in self.sockets.values() {
            programs.forget_socket(server.socket, self.group);
        }
    }
}

fn key(group: u32, index: u32) -> u32 {
    group * MAX_SERVERS + index
}
