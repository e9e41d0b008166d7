//! Prefixes of IP addresses, as rules name them.

use std::net::IpAddr;

pub use ipnet::IpNet as Prefix;

/// A text that is not a prefix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PrefixError {
    /// Neither a prefix nor an address.
    #[error("{0:?} is not a prefix")]
    Unreadable(String),
    /// Bits are set behind the prefix: either they or the length are a slip.
    #[error("{text:?} has bits behind its prefix")]
    BitsBehind {
        /// As it was given.
        text: String,
        /// The prefix without these bits.
        prefix: Prefix,
    },
}

impl PrefixError {
    /// What to write instead.
    pub fn hint(&self) -> String {
        match self {
            PrefixError::Unreadable(_) => {
                "write a prefix, \"10.1.0.0/16\" or \"2001:db8::/32\", or one address".into()
            }
            PrefixError::BitsBehind { prefix, .. } => format!("did you mean \"{prefix}\"?"),
        }
    }
}

/// Reads a prefix, `10.1.0.0/16`, or one address.
///
/// # Errors
/// Neither, or bits are set behind the prefix.
pub fn parse_prefix(text: &str) -> Result<Prefix, PrefixError> {
    let address = || text.parse::<IpAddr>().map(Prefix::from);
    let prefix = text.parse::<Prefix>().or_else(|_| address());
    let prefix = prefix.map_err(|_| PrefixError::Unreadable(text.into()))?;
    match prefix.trunc() {
        trunc if trunc == prefix => Ok(prefix),
        prefix => Err(PrefixError::BitsBehind {
            text: text.into(),
            prefix,
        }),
    }
}

/// Whether one of the prefixes covers the address. An IPv4 address as IPv6 sockets have it
/// (`::ffff:192.0.2.1`) is the IPv4 address.
pub fn covers(prefixes: &[Prefix], ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    prefixes.iter().any(|prefix| prefix.contains(&ip))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_an_address_with_or_without_a_length() {
        let read = |text| parse_prefix(text).map(|prefix| prefix.to_string());
        assert_eq!(read("10.1.0.0/16").unwrap(), "10.1.0.0/16");
        assert_eq!(read("10.1.2.3").unwrap(), "10.1.2.3/32");
        assert_eq!(read("2001:db8::/32").unwrap(), "2001:db8::/32");
        assert_eq!(read("::1").unwrap(), "::1/128");
        for text in ["", "10.1.0.0/33", "10.1/16", "localhost", "10.1.0.0:80"] {
            assert!(read(text).is_err(), "{text:?}");
        }
        let slip = read("10.1.2.3/16").unwrap_err();
        assert_eq!(slip.hint(), "did you mean \"10.1.0.0/16\"?");
    }

    #[test]
    fn an_ipv4_address_of_an_ipv6_socket_is_covered_as_ipv4() {
        let prefixes = [parse_prefix("192.0.2.0/24").unwrap()];
        for (ip, is_covered) in [
            ("192.0.2.9", true),
            ("::ffff:192.0.2.9", true),
            ("192.0.3.9", false),
            ("2001:db8::1", false),
        ] {
            assert_eq!(covers(&prefixes, ip.parse().unwrap()), is_covered, "{ip}");
        }
    }
}
