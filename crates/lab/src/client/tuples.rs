//! Which connection has which source address and port, by arithmetic alone.
//!
//! Connections are numbered from 0 without end. Number n comes from one of 4096 addresses of the
//! clients' prefix, by the reversed bits of n mod 4096, and from port 1024 + (n / 4096) mod 64 512; so 264
//! million connections pass before a four-tuple comes again, longer than anything the server could remember of
//! the first. Reversed, because a class of clients is a prefix: of any few connections in a row each
//! prefix has its share.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::packet::Endpoint;

const ADDRESS_BITS: u32 = 12;
const ADDRESSES: u32 = 1 << ADDRESS_BITS;
const FIRST_PORT: u32 = 1024;
const PORTS: u32 = 65_536 - FIRST_PORT;
/// Connection numbers are used modulo this.
pub const NUMBERS: u32 = ADDRESSES * PORTS;

const BASE_V4: u32 = u32::from_be_bytes([10, 128, 0, 1]);
const BASE_V6: u128 = 0xfd66_0001_0000_0000_0000_0000_0000_0001;

/// The client's end of connection `number` (below [`NUMBERS`]).
pub fn endpoint(number: u32, ipv6: bool) -> Endpoint {
    let address = reversed(number % ADDRESSES);
    let ip: IpAddr = if ipv6 {
        Ipv6Addr::from(BASE_V6 + u128::from(address)).into()
    } else {
        Ipv4Addr::from(BASE_V4 + address).into()
    };
    Endpoint {
        ip,
        port: (FIRST_PORT + number / ADDRESSES % PORTS) as u16,
    }
}

/// The connection that has this end; `None` for an address or port that no connection has.
pub fn number(end: Endpoint) -> Option<u32> {
    let address = match end.ip {
        IpAddr::V4(ip) => u32::from(ip).checked_sub(BASE_V4)?,
        IpAddr::V6(ip) => u32::try_from(u128::from(ip).checked_sub(BASE_V6)?).ok()?,
    };
    let port = u32::from(end.port).checked_sub(FIRST_PORT)?;
    (address < ADDRESSES).then(|| port * ADDRESSES + reversed(address))
}

/// The bits of an address's index in reverse order; its own inverse.
fn reversed(address: u32) -> u32 {
    address.reverse_bits() >> (u32::BITS - ADDRESS_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_comes_back_from_its_endpoint() {
        for n in (0..NUMBERS)
            .step_by(99_991)
            .chain([0, 4095, 4096, NUMBERS - 1])
        {
            assert_eq!(number(endpoint(n, false)), Some(n));
            assert_eq!(number(endpoint(n, true)), Some(n));
        }
    }

    #[test]
    fn a_prefix_has_its_share_of_any_connections_in_a_row() {
        for first in [0, 700, NUMBERS - 400] {
            let in_first_quarter = (first..first + 400).filter(|&number| {
                let IpAddr::V4(ip) = endpoint(number, false).ip else {
                    unreachable!("asked for IPv4")
                };
                u32::from(ip) - BASE_V4 < ADDRESSES / 4
            });
            assert!(in_first_quarter.count().abs_diff(100) <= 1, "{first}");
        }
    }

    #[test]
    fn foreign_endpoints_have_no_number() {
        for (ip, port) in [
            ("10.128.0.0", 2000),
            ("10.128.16.1", 2000),
            ("10.128.0.1", 80),
            ("fd66::1", 2000),
        ] {
            assert_eq!(
                number(Endpoint {
                    ip: ip.parse().unwrap(),
                    port
                }),
                None,
                "{ip}:{port}"
            );
        }
    }
}
