//! Which clients may use a proxy, and which servers a forward proxy may connect to.
//!
//! The longest prefix that covers an address decides; of two equally long, the denial. Where no prefix covers it, a
//! forward proxy serves clients of networks that are not the Internet, and connects no client to a server that only the
//! proxy itself could reach. The rules always judge the address that the proxy connects to, never a name: a name could
//! mean one address here and another a moment later.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::mode::ProxyMode;
use crate::prefix::Prefix;

/// Prefixes that are open and prefixes that are closed.
#[derive(Debug, Clone, Copy)]
pub struct Rules<'a> {
    /// Open.
    pub allow: &'a [Prefix],
    /// Closed.
    pub deny: &'a [Prefix],
}

/// From where an address can be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Scope {
    /// This machine alone.
    Loopback,
    /// Private networks, shared address space and unique local addresses.
    Private,
    /// The link, where clouds answer with their machines' secrets; also addresses that belong to no machine.
    Link,
    /// Addresses that are not on the Internet by the registries of IANA (RFC 6890), and addresses in which a gateway
    /// finds an IPv4 address that the proxy cannot read.
    Reserved,
    /// The Internet.
    Global,
}

/// Where clouds tell machines their secrets, though the address looks like any other: Alibaba, Oracle
/// and Azure, then AWS and Google by IPv6. (169.254.169.254 is of the link.)
const METADATA: [IpAddr; 5] = [
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
];

impl Scope {
    /// Every scope.
    pub const ALL: [Scope; 5] = [
        Scope::Loopback,
        Scope::Private,
        Scope::Link,
        Scope::Reserved,
        Scope::Global,
    ];

    /// The scope of an address.
    pub fn of(ip: IpAddr) -> Scope {
        match ip.to_canonical() {
            ip if METADATA.contains(&ip) => Scope::Link,
            IpAddr::V4(ip) => of_v4(ip),
            IpAddr::V6(ip) => of_v6(ip),
        }
    }

    /// Whether a client of this scope is in the proxy's own network. A reserved address may be a client's on the Internet,
    /// behind a gateway.
    fn is_near(self) -> bool {
        match self {
            Scope::Loopback | Scope::Private | Scope::Link => true,
            Scope::Reserved | Scope::Global => false,
        }
    }
}

impl Rules<'_> {
    /// Whether the address is open; `None` if no prefix says.
    fn verdict(&self, ip: IpAddr) -> Option<bool> {
        let longest = |prefixes: &[Prefix]| {
            let covering = prefixes.iter().filter(|prefix| prefix.contains(&ip));
            covering.map(Prefix::prefix_len).max()
        };
        match (longest(self.allow), longest(self.deny)) {
            (None, None) => None,
            (allow, deny) => Some(allow > deny),
        }
    }
}

/// Whether a client may use a proxy. A list of allowed prefixes closes it to all other clients. Without one, a forward
/// proxy serves all clients but those of the Internet, and the other modes serve all.
pub fn may_use(mode: ProxyMode, rules: Rules<'_>, client: IpAddr) -> bool {
    rules.verdict(client.to_canonical()).unwrap_or_else(|| {
        let is_near = || Scope::of(client).is_near();
        rules.allow.is_empty() && (mode != ProxyMode::Forward || is_near())
    })
}

/// Whether a forward proxy may connect a client of this scope to this server. By default, only clients on this machine
/// reach this machine, only clients of private networks reach private networks, and none reach the link or reserved
/// addresses.
pub fn may_reach(rules: Rules<'_>, client: Scope, server: IpAddr) -> bool {
    rules
        .verdict(server.to_canonical())
        .unwrap_or_else(|| match Scope::of(server) {
            Scope::Global => true,
            Scope::Private => client.is_near(),
            Scope::Loopback => client == Scope::Loopback,
            Scope::Link | Scope::Reserved => false,
        })
}

/// Whether a connection to `server` reaches one of the listeners. A listener on every address is reached by each address
/// of this machine, of which `is_local` knows.
pub fn reaches(
    listeners: &[SocketAddr],
    server: SocketAddr,
    is_local: impl Fn(IpAddr) -> bool,
) -> bool {
    let ip = connected_to(server.ip());
    let has_port = |listener: &&SocketAddr| listener.port() == server.port();
    listeners.iter().filter(has_port).any(|listener| {
        // Unlike an IPv4 socket, one of IPv6 on every address takes both families.
        let takes_family = listener.is_ipv6() || ip.is_ipv4();
        match listener.ip().is_unspecified() {
            true => takes_family && (ip.is_loopback() || is_local(ip)),
            false => listener.ip().to_canonical() == ip,
        }
    })
}

/// The address that a connection to this one ends at, as far as the address says.
fn connected_to(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        // tcp_v4_connect() and tcp_v6_connect() take it for loopback.
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        IpAddr::V6(ip) => translated(ip).map_or(ip.into(), IpAddr::V4),
        ip => ip,
    }
}

fn of_v4(ip: Ipv4Addr) -> Scope {
    let [a, b, c, _] = ip.octets();
    // RFC 6598.
    let is_shared = a == 100 && b & 0xc0 == 64;
    let is_reserved = match (a, b, c) {
        // Protocol assignments (RFC 6890), 6to4 relays (RFC 7526), benchmarks (RFC 2544).
        (192, 0, 0) | (192, 88, 99) | (198, 18 | 19, _) => true,
        _ => ip.is_documentation(),
    };
    if ip.is_loopback() {
        Scope::Loopback
    } else if ip.is_private() || is_shared {
        Scope::Private
    } else if a == 0 || ip.is_link_local() || ip.is_multicast() || a >= 240 {
        Scope::Link
    } else if is_reserved {
        Scope::Reserved
    } else {
        Scope::Global
    }
}

fn of_v6(ip: Ipv6Addr) -> Scope {
    if let Some(ip) = translated(ip) {
        return of_v4(ip);
    }
    // Site-local addresses (RFC 3879) are still what private ones are.
    let is_site_local = ip.segments()[0] & 0xffc0 == 0xfec0;
    if ip.is_loopback() {
        Scope::Loopback
    } else if ip.is_unique_local() || is_site_local {
        Scope::Private
    } else if ip.is_unspecified() || ip.is_unicast_link_local() || ip.is_multicast() {
        Scope::Link
    } else if is_reserved_v6(ip) {
        Scope::Reserved
    } else {
        Scope::Global
    }
}

/// Of the addresses that are none of the others.
fn is_reserved_v6(ip: Ipv6Addr) -> bool {
    match ip.segments() {
        // IPv4-compatible and IPv4-translated (RFC 4291, RFC 2765).
        [0, 0, 0, 0, 0, 0, ..] | [0, 0, 0, 0, 0xffff, 0, ..] => true,
        // Local NAT64 (RFC 8215): where in it the IPv4 address stands is known to the gateway alone.
        [0x64, 0xff9b, 1, ..] => true,
        // Discarded (RFC 6666).
        [0x100, 0, 0, 0, ..] => true,
        // Teredo (RFC 4380), benchmarks (RFC 5180), hashes (RFC 7343).
        [0x2001, 0, ..] | [0x2001, 2, 0, ..] | [0x2001, 0x10..=0x2f, ..] => true,
        // Documentation (RFC 3849, RFC 9637).
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => true,
        // Segment identifiers (RFC 9602).
        [0x5f00, ..] => true,
        // ISATAP (RFC 5214): an IPv4 address is the end of an address of any prefix.
        [_, _, _, _, 0 | 0x200, 0x5efe, ..] => true,
        _ => false,
    }
}

/// The IPv4 address that a gateway would make of it: NAT64 (RFC 6052), 6to4 (RFC 3056).
fn translated(ip: Ipv6Addr) -> Option<Ipv4Addr> {
    let v4 = |high: u16, low: u16| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    match ip.segments() {
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => Some(v4(high, low)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prefix::parse_prefix;

    fn prefixes(texts: &[&str]) -> Vec<Prefix> {
        texts
            .iter()
            .map(|text| parse_prefix(text).unwrap())
            .collect()
    }

    fn reaches(allow: &[&str], deny: &[&str], client: &str, server: &str) -> bool {
        let (allow, deny) = (prefixes(allow), prefixes(deny));
        let rules = Rules {
            allow: &allow,
            deny: &deny,
        };
        let client = Scope::of(client.parse().unwrap());
        may_reach(rules, client, server.parse().unwrap())
    }

    #[test]
    fn by_default_nobody_is_taken_to_where_only_the_proxy_gets() {
        for (client, server, expected) in [
            ("10.0.0.1", "93.184.216.34", true),
            ("10.0.0.1", "2606:2800::1", true),
            ("10.0.0.1", "192.168.1.1", true),
            ("10.0.0.1", "127.0.0.1", false),
            ("10.0.0.1", "::1", false),
            ("10.0.0.1", "::ffff:127.0.0.1", false),
            ("127.0.0.1", "127.0.0.1", true),
            ("127.0.0.1", "10.0.0.1", true),
            ("127.0.0.1", "169.254.169.254", false),
            ("127.0.0.1", "fe80::1", false),
            ("127.0.0.1", "0.0.0.0", false),
            ("127.0.0.1", "224.0.0.1", false),
            ("127.0.0.1", "255.255.255.255", false),
            ("93.184.216.34", "10.0.0.1", false),
            ("93.184.216.34", "100.64.0.1", false),
            ("93.184.216.34", "fd00::1", false),
            ("fd00::2", "fd00::1", true),
            ("127.0.0.1", "100.100.100.200", false),
            ("127.0.0.1", "fd00:ec2::254", false),
            ("10.0.0.1", "64:ff9b::7f00:1", false),
            ("10.0.0.1", "64:ff9b::5db8:d822", true),
            ("127.0.0.1", "2002:a9fe:a9fe::1", false),
            ("93.184.216.34", "fec0::1", false),
            ("127.0.0.1", "64:ff9b:1::7f00:1", false),
            ("127.0.0.1", "64:ff9b:1:7f00:0:100::", false),
            ("127.0.0.1", "::127.0.0.1", false),
            ("127.0.0.1", "::93.184.216.34", false),
            ("127.0.0.1", "::ffff:0:127.0.0.1", false),
            ("127.0.0.1", "2001:0:4136:e378:8000:63bf:80ff:fffe", false),
            ("127.0.0.1", "2001:db8::1", false),
            ("127.0.0.1", "2606:2800::5efe:7f00:1", false),
            ("10.0.0.1", "2001:470::1", true),
            ("10.0.0.1", "198.18.0.1", false),
            ("10.0.0.1", "198.19.255.254", false),
            ("10.0.0.1", "198.17.255.254", true),
            ("10.0.0.1", "64:ff9b::198.18.0.1", false),
            ("10.0.0.1", "192.0.0.8", false),
            ("10.0.0.1", "192.88.99.1", false),
            // A client behind a gateway is not near, though no server is taken for its address.
            ("2001:0:4136:e378:8000:63bf:80ff:fffe", "10.0.0.1", false),
            ("::10.0.0.1", "10.0.0.1", false),
        ] {
            assert_eq!(
                reaches(&[], &[], client, server),
                expected,
                "{client} to {server}"
            );
        }
    }

    #[test]
    fn the_longest_prefix_decides_and_of_equal_ones_the_denial() {
        let to = |allow: &[&str], deny: &[&str], server| reaches(allow, deny, "10.0.0.1", server);
        assert!(to(&["127.0.0.0/8"], &[], "127.0.0.1"));
        assert!(!to(&[], &["0.0.0.0/0"], "93.184.216.34"));
        assert!(to(&["93.184.0.0/16"], &["0.0.0.0/0"], "93.184.216.34"));
        assert!(!to(
            &["93.184.0.0/16"],
            &["93.184.216.0/24"],
            "93.184.216.34"
        ));
        assert!(!to(&["93.184.0.0/16"], &["93.184.0.0/16"], "93.184.216.34"));
    }

    #[test]
    fn a_forward_proxy_is_for_near_clients_and_a_list_of_clients_is_for_those_alone() {
        let uses = |mode, allow: &[&str], deny: &[&str], client: &str| {
            let (allow, deny) = (prefixes(allow), prefixes(deny));
            let rules = Rules {
                allow: &allow,
                deny: &deny,
            };
            may_use(mode, rules, client.parse().unwrap())
        };
        for (client, expected) in [
            ("127.0.0.1", true),
            ("192.168.0.1", true),
            ("::ffff:10.0.0.1", true),
            ("fe80::1", true),
            ("93.184.216.34", false),
            ("::ffff:93.184.216.34", false),
            ("2606:2800::1", false),
            ("2001:0:4136:e378:8000:63bf:80ff:fffe", false),
            ("64:ff9b:1::a00:1", false),
        ] {
            assert_eq!(
                uses(ProxyMode::Forward, &[], &[], client),
                expected,
                "{client}"
            );
            assert!(uses(ProxyMode::Reverse, &[], &[], client));
            assert!(!uses(ProxyMode::Tcp, &["192.0.2.0/24"], &[], client));
        }
        assert!(uses(
            ProxyMode::Forward,
            &["0.0.0.0/0"],
            &[],
            "93.184.216.34"
        ));
        assert!(!uses(
            ProxyMode::Tcp,
            &[],
            &["10.0.0.0/8"],
            "::ffff:10.0.0.1"
        ));
        assert!(uses(
            ProxyMode::Tcp,
            &["10.1.0.0/16"],
            &["10.0.0.0/8"],
            "10.1.2.3"
        ));
    }

    #[test]
    fn a_listener_is_reached_by_every_address_that_ends_there() {
        let ends_at = |listener: &str, server: &str| {
            let is_local = |ip: IpAddr| ["10.0.0.1", "fd00::1"].contains(&&*ip.to_string());
            super::reaches(
                &[listener.parse().unwrap()],
                server.parse().unwrap(),
                is_local,
            )
        };
        for (listener, server, expected) in [
            ("127.0.0.1:3128", "127.0.0.1:3128", true),
            ("127.0.0.1:3128", "127.0.0.1:3129", false),
            ("127.0.0.1:3128", "127.0.0.2:3128", false),
            ("127.0.0.1:3128", "[::ffff:127.0.0.1]:3128", true),
            ("127.0.0.1:3128", "0.0.0.0:3128", true),
            ("127.0.0.1:3128", "[64:ff9b::127.0.0.1]:3128", true),
            ("[::1]:3128", "[::]:3128", true),
            ("[::ffff:10.0.0.1]:3128", "10.0.0.1:3128", true),
            ("0.0.0.0:3128", "127.9.9.9:3128", true),
            ("0.0.0.0:3128", "10.0.0.1:3128", true),
            ("0.0.0.0:3128", "[::ffff:10.0.0.1]:3128", true),
            ("0.0.0.0:3128", "[2002:a00:1::1]:3128", true),
            ("0.0.0.0:3128", "10.0.0.2:3128", false),
            ("0.0.0.0:3128", "[fd00::1]:3128", false),
            ("[::]:3128", "[fd00::1]:3128", true),
            ("[::]:3128", "10.0.0.1:3128", true),
            ("[::]:3128", "127.0.0.1:3128", true),
            ("[::]:3128", "[fd00::2]:3128", false),
            ("[::]:3128", "0.0.0.0:3128", true),
        ] {
            assert_eq!(
                ends_at(listener, server),
                expected,
                "{server} at {listener}"
            );
        }
    }
}
