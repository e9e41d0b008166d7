//! Asks the kernel's routing table whether an address is this machine's (rtnetlink(7), RTM_GETROUTE). Addresses of
//! interfaces do not tell: a route of type local makes a whole prefix this machine's.

use std::io::{self, ErrorKind};
use std::net::IpAddr;

use netlink_packet_core::{NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

/// The index of `lo` in every network namespace. What leaves there comes back: an IPv6 address that was just added has such
/// a route before its local one.
const LOOPBACK: u32 = 1;

/// Whether the kernel delivers to this machine what is sent to `ip`; false also if it has no route there. It takes some
/// µs, and never waits.
///
/// # Errors
/// The kernel gives no netlink socket, or its answer is not one.
pub fn is_local(ip: IpAddr) -> io::Result<bool> {
    let socket = Socket::new(NETLINK_ROUTE)?;
    // The kernel has answered before send() returns.
    socket.set_non_blocking(true)?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.send(&question(ip), 0)?;
    let (answer, _) = socket.recv_from_full()?;
    let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer);
    let answer = answer.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
    match answer.payload {
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(route)) => {
            let by_loopback = route.attributes.contains(&RouteAttribute::Oif(LOOPBACK));
            Ok(route.header.kind == RouteType::Local || by_loopback)
        }
        // No route there.
        NetlinkPayload::Error(_) => Ok(false),
        _ => Err(ErrorKind::InvalidData.into()),
    }
}

/// RTM_GETROUTE for one address.
fn question(ip: IpAddr) -> Vec<u8> {
    let mut route = RouteMessage::default();
    (
        route.header.address_family,
        route.header.destination_prefix_length,
    ) = match ip {
        IpAddr::V4(_) => (AddressFamily::Inet, 32),
        IpAddr::V6(_) => (AddressFamily::Inet6, 128),
    };
    let destination = RouteAttribute::Destination(RouteAddress::from(ip));
    route.attributes.push(destination);
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST;
    let request = RouteNetlinkMessage::GetRoute(route);
    let mut message = NetlinkMessage::new(header, NetlinkPayload::from(request));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_local_and_documentation_is_not() {
        for (ip, expected) in [
            ("127.0.0.1", true),
            ("127.9.9.9", true),
            ("::1", true),
            ("192.0.2.1", false),
            ("2001:db8::1", false),
        ] {
            assert_eq!(is_local(ip.parse().unwrap()).unwrap(), expected, "{ip}");
        }
    }
}
