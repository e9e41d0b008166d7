//! Addresses in one form.

use std::net::SocketAddr;

/// An IPv4 address that a socket of `[::]` shows as `[::ffff:192.0.2.1]` as the IPv4 address that it is; every other address
/// as it is.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
