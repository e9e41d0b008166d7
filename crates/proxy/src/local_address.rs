//! Asks the kernel's routing table whether an address is this machine's (rtnetlink(7), RTM_GETROUTE). Addresses of
//! interfaces do not tell: a route of type local makes a whole prefix this machine's.

use std::io::{self, ErrorKind};
use std::net::IpAddr;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

/// `struct nlmsghdr`.
const HEADER: usize = 16;
/// Where `rtm_type` stands in a message: `struct rtmsg` follows the header.
const ROUTE_TYPE: usize = HEADER + 7;
/// `RTM_GETROUTE`.
const GET_ROUTE: u16 = 26;
/// `RTM_NEWROUTE`.
const NEW_ROUTE: u16 = 24;
/// `NLMSG_ERROR`.
const ERROR: u16 = 2;
/// `NLM_F_REQUEST`.
const REQUEST: u16 = 1;
/// `RTA_DST`.
const DESTINATION: u16 = 1;
/// `RTN_LOCAL`.
const LOCAL: u8 = 2;

/// Whether the kernel delivers to this machine what is sent to `ip`; false also if it has no route there. It takes some
/// µs, and never waits.
///
/// # Errors
/// The kernel gives no netlink socket, or its answer is not one.
pub fn is_local(ip: IpAddr) -> io::Result<bool> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // Protocol 0: NETLINK_ROUTE.
    let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    send(&fd, &question(ip), SendFlags::empty())?;
    let mut answer = [0; 1024];
    // The kernel has answered before send() returns.
    let (length, _) = recv(&fd, &mut answer, RecvFlags::empty())?;
    match answer.get(..length) {
        Some([_, _, _, _, low, high, ..]) => match u16::from_ne_bytes([*low, *high]) {
            NEW_ROUTE if length > ROUTE_TYPE => Ok(answer[ROUTE_TYPE] == LOCAL),
            // No route there.
            ERROR => Ok(false),
            _ => Err(ErrorKind::InvalidData.into()),
        },
        _ => Err(ErrorKind::InvalidData.into()),
    }
}

/// RTM_GETROUTE for one address.
fn question(ip: IpAddr) -> Vec<u8> {
    let (family, address) = match ip {
        IpAddr::V4(ip) => (AddressFamily::INET, ip.octets().to_vec()),
        IpAddr::V6(ip) => (AddressFamily::INET6, ip.octets().to_vec()),
    };
    let mut message = Vec::with_capacity(HEADER + 12 + 4 + address.len());
    let length = message.capacity() as u32;
    message.extend(length.to_ne_bytes());
    message.extend(GET_ROUTE.to_ne_bytes());
    message.extend(REQUEST.to_ne_bytes());
    // Sequence number and sender: one question, one answer.
    message.extend([0; 8]);
    let bits = 8 * address.len() as u8;
    // `struct rtmsg`: family, length of the destination, and the rest for the kernel to fill in.
    message.extend([family.as_raw() as u8, bits]);
    message.extend([0; 10]);
    // `struct rtattr`.
    message.extend((4 + address.len() as u16).to_ne_bytes());
    message.extend(DESTINATION.to_ne_bytes());
    message.extend(address);
    message
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
