//! The PROXY protocol, versions 1 and 2: the first bytes of a connection tell the addresses of the
//! client for whom a proxy made it (<https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt>).
//!
//! The grammar is `ppp`'s. Here it is bounded and made strict: a header is looked for only in
//! the first bytes, a malformed one ends the connection, and only addresses of TCP are believed.

use std::net::SocketAddr;

use ppp::{v1, v2};

/// The longest line of version 1, as its specification has it.
const MAX_V1_BYTES: usize = 107;
/// Longer than any version 2 header with the extensions in use (TLS certificates are the longest).
const MAX_V2_BYTES: usize = 4096;

const V1_START: &[u8] = b"PROXY ";
const V2_START: &[u8] = v2::PROTOCOL_PREFIX;

/// Which form of the header is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyProtocol {
    /// One line of text.
    V1,
    /// Binary.
    V2,
}

/// A client's address and the address that it connected to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoints {
    /// The client.
    pub source: SocketAddr,
    /// What the client connected to.
    pub destination: SocketAddr,
}

/// A header at the start of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProxyHeader {
    /// Its bytes; the connection's own begin there.
    pub len: usize,
    /// For whom the connection is; `None` when the proxy speaks for itself (a health check) or of
    /// something other than TCP: then the connection's own addresses hold.
    pub endpoints: Option<Endpoints>,
}

/// The connection does not begin with a PROXY header; it must be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyHeaderError {
    /// It begins with something else.
    Missing,
    /// It begins with a header that is malformed.
    Malformed,
    /// It begins with a header that is longer than any in use.
    TooLong,
}

impl std::fmt::Display for ProxyHeaderError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Missing => "the connection does not begin with a PROXY header",
            Self::Malformed => "the PROXY header is malformed",
            Self::TooLong => "the PROXY header is too long",
        })
    }
}

impl std::error::Error for ProxyHeaderError {}

/// Reads the header at the start of `buf`, of either version; `None` when more bytes are needed.
///
/// # Errors
/// There is no header that can be read; a connection that may have none must not be given here, for
/// then each client could claim any address.
pub fn read(buf: &[u8]) -> Result<Option<ProxyHeader>, ProxyHeaderError> {
    if begins_with(buf, V2_START) {
        read_v2(buf)
    } else if begins_with(buf, V1_START) {
        read_v1(buf)
    } else {
        Err(ProxyHeaderError::Missing)
    }
}

/// Appends the header for a connection made for `endpoints`, or made by the proxy for itself.
pub fn write(version: ProxyProtocol, endpoints: Option<Endpoints>, out: &mut Vec<u8>) {
    let endpoints = endpoints.map(
        |Endpoints {
             source,
             destination,
         }| { (canonical(source), canonical(destination)) },
    );
    match version {
        ProxyProtocol::V1 => {
            let addresses = endpoints.map_or(v1::Addresses::Unknown, Into::into);
            out.extend_from_slice(addresses.to_string().as_bytes());
        }
        ProxyProtocol::V2 => {
            let (command, protocol) = match endpoints {
                Some(_) => (v2::Command::Proxy, v2::Protocol::Stream),
                None => (v2::Command::Local, v2::Protocol::Unspecified),
            };
            let addresses = endpoints.map_or(v2::Addresses::Unspecified, Into::into);
            let header =
                v2::Builder::with_addresses(v2::Version::Two | command, protocol, addresses);
            let header = header
                .build()
                .expect("a header without extensions is short");
            out.extend_from_slice(&header);
        }
    }
}

/// Whether `buf` begins with `start`, or may when more bytes have come.
fn begins_with(buf: &[u8], start: &[u8]) -> bool {
    let len = buf.len().min(start.len());
    buf[..len] == start[..len]
}

fn read_v1(buf: &[u8]) -> Result<Option<ProxyHeader>, ProxyHeaderError> {
    let line = &buf[..buf.len().min(MAX_V1_BYTES)];
    let Some(lf) = memchr::memchr(b'\n', line) else {
        return match line.len() < MAX_V1_BYTES {
            true => Ok(None),
            false => Err(ProxyHeaderError::TooLong),
        };
    };
    let line = &line[..=lf];
    // `ppp` takes the ports as Rust writes numbers.
    let header = v1::Header::try_from(line)
        .ok()
        .filter(|_| !line.contains(&b'+'));
    let header = header.ok_or(ProxyHeaderError::Malformed)?;
    let endpoints = match header.addresses {
        v1::Addresses::Tcp4(tcp) => Some(Endpoints {
            source: (tcp.source_address, tcp.source_port).into(),
            destination: (tcp.destination_address, tcp.destination_port).into(),
        }),
        v1::Addresses::Tcp6(tcp) => Some(Endpoints {
            source: (tcp.source_address, tcp.source_port).into(),
            destination: (tcp.destination_address, tcp.destination_port).into(),
        }),
        v1::Addresses::Unknown => None,
    };
    Ok(Some(ProxyHeader {
        len: line.len(),
        endpoints,
    }))
}

fn read_v2(buf: &[u8]) -> Result<Option<ProxyHeader>, ProxyHeaderError> {
    let header = match v2::Header::try_from(buf) {
        Ok(header) => header,
        Err(v2::ParseError::Incomplete(_)) => return Ok(None),
        Err(v2::ParseError::Partial(_, wanted)) if wanted <= MAX_V2_BYTES => return Ok(None),
        Err(v2::ParseError::Partial(..)) => return Err(ProxyHeaderError::TooLong),
        Err(_) => return Err(ProxyHeaderError::Malformed),
    };
    if header.length() > MAX_V2_BYTES {
        return Err(ProxyHeaderError::TooLong);
    }
    let is_tcp = header.command == v2::Command::Proxy && header.protocol == v2::Protocol::Stream;
    let endpoints = match header.addresses {
        v2::Addresses::IPv4(tcp) if is_tcp => Some(Endpoints {
            source: (tcp.source_address, tcp.source_port).into(),
            destination: (tcp.destination_address, tcp.destination_port).into(),
        }),
        v2::Addresses::IPv6(tcp) if is_tcp => Some(Endpoints {
            source: (tcp.source_address, tcp.source_port).into(),
            destination: (tcp.destination_address, tcp.destination_port).into(),
        }),
        _ => None,
    };
    Ok(Some(ProxyHeader {
        len: header.len(),
        endpoints,
    }))
}

/// An IPv4 client of a listener on `[::]` is an IPv4 client.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoints(source: &str, destination: &str) -> Endpoints {
        Endpoints {
            source: source.parse().expect("an address"),
            destination: destination.parse().expect("an address"),
        }
    }

    fn written(version: ProxyProtocol, endpoints: Option<Endpoints>) -> Vec<u8> {
        let mut out = Vec::new();
        write(version, endpoints, &mut out);
        out
    }

    #[test]
    fn what_is_written_is_read_whatever_follows() {
        let v4 = endpoints("192.0.2.1:1", "198.51.100.2:65535");
        let v6 = endpoints("[2001:db8::1]:40000", "[2001:db8::2]:443");
        for version in [ProxyProtocol::V1, ProxyProtocol::V2] {
            for endpoints in [None, Some(v4), Some(v6)] {
                let mut bytes = written(version, endpoints);
                let len = bytes.len();
                bytes.extend_from_slice(b"GET / HTTP/1.1\r\n");
                assert_eq!(read(&bytes), Ok(Some(ProxyHeader { len, endpoints })));
            }
        }
    }

    #[test]
    fn a_header_that_arrives_in_pieces_is_waited_for() {
        let v6 = endpoints("[2001:db8::1]:40000", "[2001:db8::2]:443");
        for version in [ProxyProtocol::V1, ProxyProtocol::V2] {
            let bytes = written(version, Some(v6));
            for len in 0..bytes.len() {
                assert_eq!(read(&bytes[..len]), Ok(None), "{version:?}, {len} bytes");
            }
        }
    }

    #[test]
    fn the_bytes_are_those_of_the_specification() {
        let v4 = endpoints("192.0.2.1:258", "198.51.100.2:80");
        let text = b"PROXY TCP4 192.0.2.1 198.51.100.2 258 80\r\n";
        assert_eq!(written(ProxyProtocol::V1, Some(v4)), text);
        assert_eq!(written(ProxyProtocol::V1, None), b"PROXY UNKNOWN\r\n");
        let binary =
            b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x01\xc6\x33\x64\x02\x01\x02\0\x50";
        assert_eq!(written(ProxyProtocol::V2, Some(v4)), binary);
        let local = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";
        assert_eq!(written(ProxyProtocol::V2, None), local);
    }

    #[test]
    fn an_ipv4_client_of_an_ipv6_listener_is_told_as_ipv4() {
        let mapped = endpoints("[::ffff:192.0.2.1]:258", "[::ffff:198.51.100.2]:80");
        let v4 = endpoints("192.0.2.1:258", "198.51.100.2:80");
        for version in [ProxyProtocol::V1, ProxyProtocol::V2] {
            assert_eq!(written(version, Some(mapped)), written(version, Some(v4)));
        }
    }

    #[test]
    fn lines_that_are_not_exactly_the_grammar_are_refused() {
        use ProxyHeaderError::{Malformed, Missing, TooLong};
        let long = format!("PROXY UNKNOWN {}\r\n", "x".repeat(100));
        for (line, error) in [
            ("GET / HTTP/1.1\r\n", Missing),
            ("proxy TCP4 1.2.3.4 5.6.7.8 1 2\r\n", Missing),
            (" PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n", Missing),
            ("PROXY \r\n", Malformed),
            ("PROXY tcp4 1.2.3.4 5.6.7.8 1 2\r\n", Malformed),
            ("PROXY UDP4 1.2.3.4 5.6.7.8 1 2\r\n", Malformed),
            ("PROXY  TCP4 1.2.3.4 5.6.7.8 1 2\r\n", Malformed),
            ("PROXY TCP4 1.2.3.4  5.6.7.8 1 2\r\n", Malformed),
            ("PROXY TCP4 1.2.3.4 5.6.7.8 1\r\n", Malformed),
            ("PROXY TCP4 1.2.3.4 5.6.7.8 1 2 3\r\n", Malformed),
            ("PROXY TCP4 1.2.3.4 5.6.7.8 1 2 \r\n", Malformed),
            ("PROXY TCP4 1.2.3.4 5.6.7.8 1 65536\r\n", Malformed),
            ("PROXY TCP4 1.2.3.4 5.6.7.8 +1 2\r\n", Malformed),
            ("PROXY TCP4 1.2.3.4 5.6.7.8 01 2\r\n", Malformed),
            ("PROXY TCP4 01.2.3.4 5.6.7.8 1 2\r\n", Malformed),
            ("PROXY TCP4 ::1 ::2 1 2\r\n", Malformed),
            ("PROXY TCP6 1.2.3.4 5.6.7.8 1 2\r\n", Malformed),
            ("PROXY TCP4 1.2.3.4 5.6.7.8 1 2\n", Malformed),
            (&long, TooLong),
        ] {
            assert_eq!(read(line.as_bytes()), Err(error), "{line:?}");
        }
    }

    #[test]
    fn binary_headers_that_cannot_be_read_are_refused() {
        use ProxyHeaderError::{Malformed, TooLong};
        let header = |rest: &[u8]| [V2_START, rest].concat();
        for (rest, error) in [
            (&b"\x11\x11\0\x0c"[..], Malformed),
            (b"\x22\x11\0\x0c", Malformed),
            (b"\x21\x41\0\x0c", Malformed),
            (b"\x21\x13\0\x0c", Malformed),
            (b"\x21\x11\0\x0b", Malformed),
            (b"\x21\x21\0\x0c", Malformed),
            (b"\x21\x11\xff\xff", TooLong),
        ] {
            assert_eq!(read(&header(rest)), Err(error), "{rest:x?}");
        }
    }

    #[test]
    fn addresses_of_anything_but_tcp_are_not_believed() {
        let addresses = b"\xc0\0\x02\x01\xc6\x33\x64\x02\x01\x02\0\x50";
        for start in [b"\x20\x11\0\x0c", b"\x21\x12\0\x0c", b"\x21\x10\0\x0c"] {
            let header = [V2_START, start, addresses].concat();
            let read = read(&header).expect("valid").expect("whole");
            assert_eq!(read.endpoints, None, "{start:x?}");
        }
    }

    #[test]
    fn extensions_are_skipped() {
        let addresses = b"\xc0\0\x02\x01\xc6\x33\x64\x02\x01\x02\0\x50";
        let header = [V2_START, b"\x21\x11\0\x10", addresses, b"\x04\0\x01\0"].concat();
        let read = read(&header).expect("valid").expect("whole");
        assert_eq!(read.len, header.len());
        assert_eq!(
            read.endpoints,
            Some(endpoints("192.0.2.1:258", "198.51.100.2:80"))
        );
    }
}
