//! Addresses of listeners and proxies: `0.0.0.0:80`, `[::]:80`, `10.0.0.1:80`, `*:80`.
//!
//! `*` is every address of both families. Names are not looked up: what a config means must not depend on
//! a resolver.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use crate::error::Fault;
use crate::types::{Kind, Type, text};
use weir_core::listener::ListenAddress;

/// The forms, for hints.
const FORMS: &str =
    "write \"*:80\" (every address), \"0.0.0.0:80\", \"10.0.0.1:80\" or \"[::]:80\"";

/// Reads the IP part: an address, or `*` for every address of both families.
///
/// # Errors
/// Neither an address nor `*`.
pub fn parse_ip(text: &str) -> Result<Option<IpAddr>, Fault> {
    if text == "*" {
        return Ok(None);
    }
    let bare = text
        .strip_prefix('[')
        .and_then(|t| t.strip_suffix(']'))
        .unwrap_or(text);
    let ip = IpAddr::from_str(bare).map_err(|_| {
        Fault::new(
            format!("{text:?} is not an IP address"),
            "weir does not look host names up; write the address, or * for every address",
        )
    })?;
    if ip.is_multicast() {
        return Err(Fault::new(format!("{text} is a multicast address"), FORMS));
    }
    Ok(Some(ip.to_canonical()))
}

/// Reads a port, 1..=65535.
///
/// # Errors
/// Not a number in that range.
pub fn parse_port(text: &str) -> Result<u16, Fault> {
    match text.parse() {
        Ok(port) if port != 0 => Ok(port),
        _ => Err(Fault::new(
            format!("{text:?} is not a port"),
            "a port is a number from 1 to 65535",
        )),
    }
}

/// Reads the `ADDRESS:PORT` of a proxy's socket; `*` is every address of both families.
///
/// # Errors
/// The address or the port is missing. A name is not an address: weir connects to servers without a look-up.
pub fn parse_socket_address(text: &str) -> Result<SocketAddr, Fault> {
    let every = text.strip_prefix('*').map(|port| format!("[::]{port}"));
    let address = every.as_deref().unwrap_or(text);
    address.parse().map_err(|_| {
        let hint = "write the IP address and the port: \"10.0.0.1:80\" or \"[2001:db8::1]:80\"";
        Fault::new(format!("{text:?} is not an address with a port"), hint)
    })
}

/// The address of a socket that this process opens.
pub(crate) fn socket_address() -> Type<SocketAddr> {
    let values = "\"*:80\" | \"0.0.0.0:80\" | \"10.0.0.1:80\" | \"[::]:80\"";
    let show = SocketAddr::to_string;
    text(Kind::Address, values, parse_socket_address, show)
}

/// Where a server listens.
pub(crate) fn listen_address() -> Type<ListenAddress> {
    let values = "\"*:80\" | \"0.0.0.0:80\" | \"10.0.0.1:80\" | \"[::]:80\"";
    let show = ListenAddress::to_string;
    text(Kind::Address, values, parse_listen_address, show)
}

/// Reads `ADDRESS:PORT`; an IPv6 address stands in brackets, `*` is every address.
///
/// # Errors
/// What is wrong with which part.
pub fn parse_listen_address(text: &str) -> Result<ListenAddress, Fault> {
    let (ip, port) = text
        .rsplit_once(':')
        .ok_or_else(|| Fault::new(format!("{text:?} has no port"), FORMS))?;
    if ip.contains(':') && !ip.starts_with('[') {
        return Err(Fault::new(
            format!("{text:?} is an IPv6 address without brackets"),
            format!("write \"[{ip}]:{port}\", or \"[{text}]:PORT\" if the port is missing"),
        ));
    }
    if ip.starts_with('[') && !ip.ends_with(']') {
        return Err(Fault::new(format!("{text:?} has no port"), FORMS));
    }
    Ok(ListenAddress {
        ip: parse_ip(ip)?,
        port: parse_port(port)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read_and_written_back() {
        for text in [
            "*:80",
            "0.0.0.0:80",
            "10.0.0.1:65535",
            "[::]:80",
            "[2001:db8::1]:443",
        ] {
            assert_eq!(parse_listen_address(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_mapped_address_is_its_ipv4_address() {
        assert_eq!(
            parse_listen_address("[::ffff:10.0.0.1]:80")
                .unwrap()
                .to_string(),
            "10.0.0.1:80"
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, cause) in [
            ("80", "\"80\" has no port"),
            ("::1:80", "\"::1:80\" is an IPv6 address without brackets"),
            ("[::]", "\"[::]\" has no port"),
            ("localhost:80", "\"localhost\" is not an IP address"),
            ("*:0", "\"0\" is not a port"),
            ("*:65536", "\"65536\" is not a port"),
            ("*:http", "\"http\" is not a port"),
            ("224.0.0.1:80", "224.0.0.1 is a multicast address"),
        ] {
            assert_eq!(parse_listen_address(text).unwrap_err().cause, cause);
        }
    }

    #[test]
    fn a_socket_address_has_an_address_and_a_port() {
        let read = |text| parse_socket_address(text).map(|address| address.to_string());
        assert_eq!(read("10.0.0.1:80").unwrap(), "10.0.0.1:80");
        assert_eq!(read("*:0").unwrap(), "[::]:0");
        for text in ["80", "*", "localhost:80", "::1:80", "[::]", "1.2.3.4:65536"] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn only_addresses_that_nothing_tells_apart_conflict() {
        let conflict = |a, b| {
            let (a, b) = (
                parse_listen_address(a).unwrap(),
                parse_listen_address(b).unwrap(),
            );
            assert_eq!(a.conflicts(&b), b.conflicts(&a));
            a.conflicts(&b)
        };
        assert!(conflict("*:80", "0.0.0.0:80"));
        assert!(conflict("*:80", "[::]:80"));
        assert!(conflict("10.0.0.1:80", "10.0.0.1:80"));
        assert!(!conflict("0.0.0.0:80", "[::]:80"));
        assert!(!conflict("*:80", "10.0.0.1:80"));
        assert!(!conflict("*:80", "*:81"));
    }
}
