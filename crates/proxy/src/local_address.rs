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
/// Where the attributes of a route begin.
const ATTRIBUTES: usize = HEADER + 12;
/// The index of `lo` in every network namespace. What leaves there comes back: an IPv6 address that was just added has such
/// a route before its local one.
const LOOPBACK: u32 = 1;
/// `RTA_OIF`.
const DEVICE: u16 = 4;
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
            NEW_ROUTE if length >= ATTRIBUTES => {
                let device = device(&answer[ATTRIBUTES..length]);
                Ok(answer[ROUTE_TYPE] == LOCAL || device == Some(LOOPBACK))
            }
            // No route there.
            ERROR => Ok(false),
            _ => Err(ErrorKind::InvalidData.into()),
        },
        _ => Err(ErrorKind::InvalidData.into()),
    }
}

/// The index of the device that a route leaves by, among its attributes.
fn device(mut attributes: &[u8]) -> Option<u32> {
    while let [a, b, c, d, rest @ ..] = attributes {
        let length = usize::from(u16::from_ne_bytes([*a, *b]));
        let value = rest.get(..length.checked_sub(4)?)?;
        if u16::from_ne_bytes([*c, *d]) == DEVICE {
            return Some(u32::from_ne_bytes(value.try_into().ok()?));
        }
        // Each begins at a multiple of 4.
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
    None
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

    #[test]
    fn the_device_is_found_among_other_attributes() {
        let attribute = |kind: u16, value: &[u8]| {
            let mut bytes = (4 + value.len() as u16).to_ne_bytes().to_vec();
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(value);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            bytes
        };
        let seven = attribute(DEVICE, &7u32.to_ne_bytes());
        assert_eq!(
            device(&[attribute(15, &[9]), seven.clone()].concat()),
            Some(7)
        );
        assert_eq!(device(&attribute(15, &[9; 6])), None);
        assert_eq!(device(&seven[..6]), None);
        assert_eq!(device(&[0; 8]), None);
    }
}
