//! The listening sockets of a proxy, which may outlive its threads, its settings and its process.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use weir_core::proxy::{Proxy, ProxyMode};

use super::error::Error;
use crate::runtime::{ListenOptions, TcpListener};

/// How long an address that is in use is tried. A proxy that was stopped a moment ago still accepts connections whose
/// handshake is under way, for 1.5 s at most.
const ENDS_WITHIN: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Sockets that listen on one port, one for each thread. Connections that wait in their accept
/// queues wait on as long as a process holds the sockets.
#[derive(Debug)]
pub struct Sockets {
    address: SocketAddr,
    fds: Vec<OwnedFd>,
}

impl Sockets {
    /// Takes listening sockets over, from another process or from other settings.
    ///
    /// # Errors
    /// There is none, one does not listen, or they listen on different addresses.
    pub fn from_fds(fds: Vec<OwnedFd>) -> io::Result<Sockets> {
        let refused = |why| io::Error::new(io::ErrorKind::InvalidInput, why);
        let mut address = None;
        for fd in &fds {
            if !sockopt::socket_acceptconn(fd)? {
                return Err(refused("a socket that does not listen"));
            }
            let own = local_address(fd)?;
            if *address.get_or_insert(own) != own {
                return Err(refused("sockets of different addresses"));
            }
        }
        let address = address.ok_or_else(|| refused("no socket"))?;
        Ok(Sockets { address, fds })
    }

    /// Where they listen.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The sockets.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.fds.iter().map(AsFd::as_fd)
    }

    /// The same sockets once more.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub fn try_clone(&self) -> io::Result<Sockets> {
        let fds = self.fds.iter().map(OwnedFd::try_clone);
        Ok(Sockets {
            address: self.address,
            fds: fds.collect::<io::Result<_>>()?,
        })
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.fds.len()
    }

    /// The socket of a thread, for that thread.
    pub(super) fn of_thread(&self, index: usize) -> io::Result<OwnedFd> {
        self.fds[index].try_clone()
    }

    /// Opens `threads` sockets. No other process may listen there unless the port is shared; this process may, at `beside`.
    pub(super) fn open(
        settings: &Proxy,
        threads: usize,
        beside: &[SocketAddr],
    ) -> Result<Sockets, Error> {
        let mut sockets = Sockets {
            address: settings.listen,
            fds: Vec::new(),
        };
        // One address of a machine and all of them are two proxies that share the port.
        let overlaps = |other: &SocketAddr| {
            other.port() == settings.listen.port() && *other != settings.listen
        };
        if !settings.share_port && !beside.iter().any(overlaps) {
            sockets.open_first(settings)?;
        }
        sockets.grow(settings, threads)?;
        Ok(sockets)
    }

    /// Another process that listens there may be about to end: see [`ENDS_WITHIN`].
    fn open_first(&mut self, settings: &Proxy) -> Result<(), Error> {
        let options = listen_options(settings);
        let until = Instant::now() + ENDS_WITHIN;
        loop {
            let opened = TcpListener::open_first(self.address, &options)
                .and_then(|fd| Ok((local_address(&fd)?, fd)));
            match opened {
                Ok((address, fd)) => {
                    self.address = address;
                    self.fds.push(fd);
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::AddrInUse && Instant::now() < until => {
                    std::thread::sleep(LOOK_AGAIN);
                }
                Err(cause) => return Err(self.failed(cause)),
            }
        }
    }

    /// Gives sockets that were taken over these settings.
    pub(super) fn adopt(&mut self, settings: &Proxy) -> Result<(), Error> {
        let options = listen_options(settings);
        let adopt = |fd| TcpListener::listen(fd, &options);
        let adopted = self.fds.iter().try_for_each(adopt);
        adopted.map_err(|cause| self.failed(cause))
    }

    /// Opens more of them until there are `threads`. Never fewer: a socket that is closed resets the
    /// connections that wait in its queue.
    pub(super) fn grow(&mut self, settings: &Proxy, threads: usize) -> Result<(), Error> {
        let options = listen_options(settings);
        while self.fds.len() < threads {
            let open = || {
                let fd = TcpListener::open(self.address, &options)?;
                Ok((local_address(&fd)?, fd))
            };
            let (address, fd) = open().map_err(|cause| self.failed(cause))?;
            self.address = address;
            self.fds.push(fd);
        }
        Ok(())
    }

    fn failed(&self, cause: io::Error) -> Error {
        Error::Listen {
            address: self.address,
            cause,
        }
    }
}

fn local_address(fd: &OwnedFd) -> io::Result<SocketAddr> {
    Ok(SocketAddr::try_from(rustix::net::getsockname(fd)?)?)
}

fn listen_options(settings: &Proxy) -> ListenOptions {
    ListenOptions {
        backlog: settings.backlog,
        // In tcp mode the server may speak first.
        defer_accept: (settings.mode != ProxyMode::Tcp || settings.accept_proxy)
            .then_some(settings.head_timeout),
        side: settings.client.clone(),
    }
}
