//! The network of an address.

use std::net::IpAddr;

use ipnet::IpNet;

/// Bits of an IPv4 network that usually has one owner: the longest prefix that the Internet's routing carries.
const V4_BITS: u8 = 24;
/// Bits of an IPv6 network that a provider gives a home (RFC 6177, section 2; BCP 157).
const V6_BITS: u8 = 56;

/// The network in which an address is: /24 of IPv4, /56 of IPv6.
pub fn network_of(address: IpAddr) -> IpNet {
    let address = address.to_canonical();
    let bits = match address {
        IpAddr::V4(_) => V4_BITS,
        IpAddr::V6(_) => V6_BITS,
    };
    IpNet::new(address, bits)
        .expect("the length fits the family")
        .trunc()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_a_24_or_a_56() {
        let of = |address: &str| network_of(address.parse().unwrap()).to_string();
        assert_eq!(of("203.0.113.77"), "203.0.113.0/24");
        assert_eq!(of("::ffff:203.0.113.77"), "203.0.113.0/24");
        assert_eq!(of("2001:db8:1:2ff::7"), "2001:db8:1:200::/56");
    }
}
