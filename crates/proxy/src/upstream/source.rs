//! The local addresses that servers are connected from.
//!
//! A local port serves one connection for each local address and server: about 28 000 ports make so
//! many connections to one server, and each further address as many again. The kernel chooses the
//! port at connect(), when the server is known (IP_BIND_ADDRESS_NO_PORT), so servers share them.

use std::cell::Cell;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};

use weir_core::proxy::SideOptions;

use crate::runtime::{Handle, TcpStream};

/// The addresses for one server.
pub struct Sources {
    /// Of the server's family; empty: the route's own.
    addresses: Vec<IpAddr>,
    next: Cell<usize>,
}

impl Sources {
    /// Those of `addresses` that can reach `server`.
    pub fn new(addresses: &[IpAddr], server: SocketAddr) -> Sources {
        let fits = |ip: &&IpAddr| ip.is_ipv4() == server.is_ipv4();
        Sources {
            addresses: addresses.iter().filter(fits).copied().collect(),
            next: Cell::new(0),
        }
    }

    /// Connects from the next address in turn, or from one after it while that has no port left.
    ///
    /// # Errors
    /// As connect(2): `AddrNotAvailable` when no address has a port left.
    pub async fn connect(
        &self,
        handle: &Handle,
        server: SocketAddr,
        options: &SideOptions,
    ) -> io::Result<TcpStream> {
        if self.addresses.is_empty() {
            return TcpStream::connect(handle, server, None, options).await;
        }
        let mut last = io::Error::from(ErrorKind::AddrNotAvailable);
        for _ in &self.addresses {
            match TcpStream::connect(handle, server, Some(self.take()), options).await {
                Err(error) if error.kind() == ErrorKind::AddrNotAvailable => last = error,
                connected => return connected,
            }
        }
        Err(last)
    }

    fn take(&self) -> IpAddr {
        let next = self.next.get();
        self.next.set((next + 1) % self.addresses.len());
        self.addresses[next]
    }
}
