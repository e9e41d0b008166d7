//! The addresses on which this process listens: no client of a forward proxy is taken there. A tunnel to the proxy itself
//! could ask for another one, and so on, each with descriptors and memory of its own, until there are none.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Arc, PoisonError, RwLock};

use weir_core::proxy::access;

use crate::local_address;

/// The listening addresses of a process; clones are the same list.
#[derive(Debug, Default, Clone)]
pub struct OwnListeners(Arc<RwLock<Vec<SocketAddr>>>);

/// One of the addresses, listed until this is dropped.
#[derive(Debug)]
pub struct OwnListener {
    address: SocketAddr,
    list: OwnListeners,
}

impl OwnListeners {
    /// Lists an address with the port that it has. One that is listed twice stays until both are dropped.
    #[must_use = "it is listed as long as this lives"]
    pub fn add(&self, address: SocketAddr) -> OwnListener {
        let mut list = self.0.write().unwrap_or_else(PoisonError::into_inner);
        list.push(address);
        drop(list);
        OwnListener {
            address,
            list: self.clone(),
        }
    }

    /// Whether a connection to this address would reach one of them.
    pub(crate) fn reached_by(&self, server: SocketAddr) -> bool {
        let list = self.0.read().unwrap_or_else(PoisonError::into_inner);
        access::reaches(&list, server, is_local)
    }
}

impl Drop for OwnListener {
    fn drop(&mut self) {
        let list = self.list.0.write();
        let mut list = list.unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = list.iter().position(|own| *own == self.address) {
            list.swap_remove(at);
        }
    }
}

/// Whether the kernel delivers to this machine what is sent there. Where it cannot be asked (a service manager may forbid
/// netlink sockets), whether a socket can be bound to it.
fn is_local(ip: IpAddr) -> bool {
    local_address::is_local(ip).unwrap_or_else(|error| {
        tracing::debug!("no route is looked up: {error}");
        UdpSocket::bind((ip, 0)).is_ok()
    })
}
