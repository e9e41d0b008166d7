//! The server that is loaded, and whether it may be.

use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};
use std::str::FromStr;

use crate::error::{Error, Result};

/// `http://HOST[:PORT][/PATH]`, or `HOST:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    /// For the `Host` field: a name or an address, with the port if one was given.
    pub authority: String,
    host: String,
    port: u16,
    /// With its query; begins with `/`.
    pub path: String,
}

impl FromStr for Url {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Url, String> {
        let rest = match text.split_once("://") {
            Some(("http", rest)) => rest,
            Some(("https", _)) => {
                return Err("TLS is not spoken: name a port that speaks plain HTTP".to_owned());
            }
            Some((scheme, _)) => return Err(format!("`{scheme}` is not http")),
            None => text,
        };
        let rest = rest.split('#').next().unwrap_or_default();
        let (authority, path) = match rest.find(['/', '?']) {
            Some(at) if rest[at..].starts_with('?') => (&rest[..at], format!("/{}", &rest[at..])),
            Some(at) => (&rest[..at], rest[at..].to_owned()),
            None => (rest, "/".to_owned()),
        };
        if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err("it has a space or a control character".to_owned());
        }
        let (host, port) = parted(authority)?;
        Ok(Url {
            authority: authority.to_owned(),
            host,
            port,
            path,
        })
    }
}

/// Host and port; brackets around an IPv6 address.
fn parted(authority: &str) -> std::result::Result<(String, u16), String> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or("a `]` is missing")?;
            (host, rest.strip_prefix(':'))
        }
        None => match authority.rsplit_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    if host.is_empty() || host.contains('@') {
        return Err("it has no host".to_owned());
    }
    let port = match port {
        None => 80,
        Some(port) => port
            .parse()
            .ok()
            .filter(|port| *port > 0)
            .ok_or("the port is no port")?,
    };
    Ok((host.to_owned(), port))
}

impl Url {
    /// Its first address. It is asked for once: the load does not follow a name that moves.
    pub fn resolve(&self) -> Result<SocketAddr> {
        let what = || format!("cannot find {}", self.host);
        let found = (self.host.as_str(), self.port).to_socket_addrs();
        let mut found = found.map_err(|cause| Error::failed(what(), cause))?;
        found
            .next()
            .ok_or_else(|| Error::failed(what(), "the name has no address"))
    }
}

/// Whether an address is one of this machine: only such an address can be bound.
pub fn is_of_this_machine(address: SocketAddr) -> bool {
    let ip = address.ip();
    // Some machines let anybody bind any address (net.ipv4.ip_nonlocal_bind): one that no host has tells.
    let nobody: SocketAddr = match ip.is_ipv6() {
        true => ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], 0).into(),
        false => ([192, 0, 2, 1], 0).into(),
    };
    ip.is_loopback() || (UdpSocket::bind((ip, 0)).is_ok() && UdpSocket::bind(nobody).is_err())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_have_a_host_a_port_and_a_path() {
        let parts = |text: &str| {
            let url: Url = text.parse().unwrap();
            (url.host, url.port, url.path)
        };
        let of = |host: &str, port, path: &str| (host.to_owned(), port, path.to_owned());
        assert_eq!(parts("http://a.test/x?y=1#z"), of("a.test", 80, "/x?y=1"));
        assert_eq!(parts("a.test:8080"), of("a.test", 8080, "/"));
        assert_eq!(parts("http://[::1]:81?q"), of("::1", 81, "/?q"));
    }

    #[test]
    fn what_is_no_url_is_said_why() {
        let why = |text: &str| text.parse::<Url>().unwrap_err();
        assert!(why("https://a.test/").contains("TLS"));
        assert!(why("ftp://a.test/").contains("`ftp`"));
        assert!(why("http:///x").contains("no host"));
        assert!(why("http://user@a.test/").contains("no host"));
        assert!(why("a.test:0").contains("no port"));
        assert!(why("http://a.test/ x").contains("space"));
        assert!(why("http://a.test/\r\nX:y").contains("space"));
    }

    #[test]
    fn only_addresses_that_can_be_bound_are_of_this_machine() {
        assert!(is_of_this_machine(([127, 0, 0, 1], 80).into()));
        assert!(is_of_this_machine(([0, 0, 0, 0, 0, 0, 0, 1], 80).into()));
        // TEST-NET-3: of nobody.
        assert!(!is_of_this_machine(([203, 0, 113, 7], 80).into()));
    }
}
