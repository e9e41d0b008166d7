//! The PROXY protocol, versions 1 and 2: the first bytes of a connection tell the addresses of the
//! client for whom a proxy made it (<https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt>).
//!
//! Each version has its grammar in its file. Both are strict: a header is looked for only in the first bytes, a malformed one
//! ends the connection, and only addresses of TCP are believed.

mod crc32c;
mod header;
mod v1;
mod v2;

use std::net::{IpAddr, SocketAddr};

pub use header::{Endpoints, ProxyHeader, ProxyHeaderError};

use crate::address::canonical;

/// Which form of the header is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyProtocol {
    /// One line of text.
    V1,
    /// Binary.
    V2,
}

/// Reads the header at the start of `buf`, of either version; `None` when more bytes are needed.
///
/// # Errors
/// There is no header that can be read; a connection that may have none must not be given here, for
/// then each client could claim any address.
pub fn read(buf: &[u8]) -> Result<Option<ProxyHeader>, ProxyHeaderError> {
    if begins_with(buf, v2::SIGNATURE) {
        v2::read(buf)
    } else if begins_with(buf, v1::START) {
        v1::read(buf)
    } else {
        Err(ProxyHeaderError::Missing)
    }
}

/// Appends the header for a connection made for `endpoints`, or made by the proxy for itself.
pub fn write(version: ProxyProtocol, endpoints: Option<Endpoints>, out: &mut Vec<u8>) {
    let endpoints = endpoints.map(of_one_family);
    match version {
        ProxyProtocol::V1 => v1::write(endpoints, out),
        ProxyProtocol::V2 => v2::write(endpoints, out),
    }
}

/// Whether `buf` begins with `start`, or may when more bytes have come.
fn begins_with(buf: &[u8], start: &[u8]) -> bool {
    let len = buf.len().min(start.len());
    buf[..len] == start[..len]
}

/// An IPv4 client of a listener on `[::]` is told as an IPv4 client. A header has one family: beside an IPv6 address an IPv4
/// one is written as `::ffff:192.0.2.1`.
fn of_one_family(endpoints: Endpoints) -> Endpoints {
    let Endpoints {
        source,
        destination,
    } = endpoints;
    let (source, destination) = (canonical(source), canonical(destination));
    let mapped = |address: SocketAddr| match address.ip() {
        IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
        IpAddr::V6(_) => address,
    };
    match source.is_ipv4() == destination.is_ipv4() {
        true => Endpoints {
            source,
            destination,
        },
        false => Endpoints {
            source: mapped(source),
            destination: mapped(destination),
        },
    }
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
            ("PROXY TCP4 1.2.3.4 5.6.7.8 1 99999\r\n", Malformed),
            ("PROXY TCP4 1.2.3.4 5.6.7.8 1 100000\r\n", Malformed),
            ("PROXY TCP4 1.2.3.4 5.6.7.8 +80 2\r\n", Malformed),
            ("PROXY TCP4 1.2.3.4 5.6.7.8 80 +2\r\n", Malformed),
            ("PROXY TCP4 1.2.3.4 5.6.7.8 -1 2\r\n", Malformed),
            ("PROXY TCP4 1.2.3.4 5.6.7.8 01 2\r\n", Malformed),
            ("PROXY TCP4 1.2.3.4 5.6.7.8 1 00\r\n", Malformed),
            ("PROXY TCP4 1.2.3.4 5.6.7.8 1 000080\r\n", Malformed),
            ("PROXY TCP4 1.2.3.4 5.6.7.8 0x1 2\r\n", Malformed),
            ("PROXY TCP4 1.2.3.4 5.6.7.8 1_0 2\r\n", Malformed),
            ("PROXY TCP4 1.2.3.4 5.6.7.8 ١ 2\r\n", Malformed),
            ("PROXY TCP4 1.2.3.4 5.6.7.8  2\r\n", Malformed),
            ("PROXY TCP4 01.2.3.4 5.6.7.8 1 2\r\n", Malformed),
            ("PROXY TCP4 1.2.3 5.6.7.8 1 2\r\n", Malformed),
            ("PROXY TCP4 1.2.3.256 5.6.7.8 1 2\r\n", Malformed),
            ("PROXY TCP4 1.2.3.4:1 5.6.7.8 1 2\r\n", Malformed),
            ("PROXY TCP4\t1.2.3.4 5.6.7.8 1 2\r\n", Malformed),
            ("PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\r\n", Malformed),
            ("PROXY TCP4 1.2.3.4 5.6.7.8 1\r2\n", Malformed),
            ("PROXY TCP4\r\n", Malformed),
            ("PROXY TCP6 :: ::1%lo 1 2\r\n", Malformed),
            ("PROXY TCP6 [::] ::1 1 2\r\n", Malformed),
            ("PROXY TCP6 1::2::3 ::1 1 2\r\n", Malformed),
            ("PROXY TCP6 1:2:3:4:5:6:7 ::1 1 2\r\n", Malformed),
            ("PROXY TCP6 00001:: ::1 1 2\r\n", Malformed),
            ("PROXY UNKNOWN\n", Malformed),
            ("PROXY UNKNOWNS\r\n", Malformed),
            ("PROXY UNKNOWN\t1\r\n", Malformed),
            ("PROXY unknown\r\n", Malformed),
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
        let header = |rest: &[u8]| [v2::SIGNATURE, rest].concat();
        for (rest, error) in [
            (&b"\x11\x11\0\x0c"[..], Malformed),
            (b"\x22\x11\0\x0c", Malformed),
            (b"\x21\x41\0\x0c", Malformed),
            (b"\x21\x13\0\x0c", Malformed),
            (b"\x21\x11\0\x0b", Malformed),
            (b"\x21\x21\0\x0c", Malformed),
            (b"\x21\x31\0\xd7", Malformed),
            (b"\x21\x11\xff\xff", TooLong),
            (b"\x21\x11\x0f\xf1", TooLong),
            (b"\x20\0\xff\xff", TooLong),
            // As soon as the byte is there.
            (b"\x31", Malformed),
            (b"\x21\x14", Malformed),
        ] {
            assert_eq!(read(&header(rest)), Err(error), "{rest:x?}");
        }
        assert_eq!(read(&header(b"\x21\x11\x0f\xf0")), Ok(None));
    }

    #[test]
    fn addresses_of_anything_but_tcp_are_not_believed() {
        let addresses = b"\xc0\0\x02\x01\xc6\x33\x64\x02\x01\x02\0\x50";
        for start in [b"\x20\x11\0\x0c", b"\x21\x12\0\x0c", b"\x21\x10\0\x0c"] {
            let header = [v2::SIGNATURE, start, addresses].concat();
            let read = read(&header).expect("valid").expect("whole");
            assert_eq!(read.endpoints, None, "{start:x?}");
        }
    }

    /// A header of version 2 for TCP over IPv4 with these extensions.
    fn with_extensions(extensions: &[u8]) -> Vec<u8> {
        let addresses = b"\xc0\0\x02\x01\xc6\x33\x64\x02\x01\x02\0\x50";
        let len = (addresses.len() + extensions.len()) as u16;
        let len = &len.to_be_bytes()[..];
        [v2::SIGNATURE, b"\x21\x11", len, addresses, extensions].concat()
    }

    #[test]
    fn extensions_are_skipped() {
        for extensions in [
            &b""[..],
            b"\x04\0\0",
            b"\x04\0\x01\0",
            b"\x02\0\x01a\xea\0\0\x05\0\x02id",
        ] {
            let mut header = with_extensions(extensions);
            let len = header.len();
            header.extend_from_slice(b"GET /");
            let endpoints = Some(endpoints("192.0.2.1:258", "198.51.100.2:80"));
            assert_eq!(read(&header), Ok(Some(ProxyHeader { len, endpoints })));
        }
    }

    #[test]
    fn extensions_that_do_not_end_with_the_header_are_refused() {
        for extensions in [
            &b"\x04"[..],
            b"\x04\0",
            b"\x04\0\x01",
            b"\x04\xff\xff\0",
            b"\x02\0\x01a\x04\0\x02\0",
            // Checksums have four bytes.
            b"\x03\0\0",
            b"\x03\0\x03abc",
            b"\x03\0\x05abcde",
        ] {
            let mut header = with_extensions(extensions);
            // Behind the header the bytes that its last extension lacks.
            header.extend_from_slice(&[0; 70_000]);
            assert_eq!(
                read(&header),
                Err(ProxyHeaderError::Malformed),
                "{extensions:x?}"
            );
        }
    }

    #[test]
    fn a_checksum_is_verified() {
        // As HAProxy's health checks begin with `check-send-proxy` and `proxy-v2-options crc32c`.
        let local = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\x07\x03\0\x04\xa9\xb8\x7e\x8f";
        let sum = crc32c::crc32c(local[..19].iter().chain(&[0; 4]));
        assert_eq!(sum, 0xa9b8_7e8f);
        assert!(read(local).is_ok_and(|header| header.is_some()));
        let mut damaged = *local;
        damaged[22] ^= 1;
        assert_eq!(read(&damaged), Err(ProxyHeaderError::Checksum));

        let mut header = with_extensions(b"\x03\0\x04\0\0\0\0\x04\0\x02ab");
        let sum_at = header.len() - 9;
        assert_eq!(read(&header), Err(ProxyHeaderError::Checksum));
        let sum = crc32c::crc32c(&header).to_be_bytes();
        header[sum_at..sum_at + 4].copy_from_slice(&sum);
        assert!(read(&header).is_ok_and(|header| header.is_some()));
        // What has another type is no checksum.
        let sum_type_at = sum_at - 3;
        for at in (FIRST_ADDRESS_BYTE..header.len()).filter(|at| *at != sum_type_at) {
            for bit in 0..8 {
                let mut damaged = header.clone();
                damaged[at] ^= 1 << bit;
                assert!(read(&damaged).is_err(), "byte {at}, bit {bit}");
            }
        }
    }

    const FIRST_ADDRESS_BYTE: usize = 16;

    #[test]
    fn local_and_other_addresses_leave_the_connections_own() {
        let unix = [&b"\x21\x31\0\xd8"[..], &[b'/'; 216]].concat();
        let unix_datagram = [&b"\x21\x32\0\xdb"[..], &[b'/'; 216], b"\x04\0\0"].concat();
        for rest in [
            &b"\x20\0\0\0"[..],
            // What follows LOCAL is skipped, whatever family it names.
            b"\x20\x11\0\x0c\xc0\0\x02\x01\xc6\x33\x64\x02\x01\x02\0\x50",
            b"\x20\xff\0\x03abc",
            b"\x20\x11\0\x01a",
            // No family: its addresses are of no known length.
            b"\x21\0\0\0",
            b"\x21\x01\0\x02ab",
            &unix,
            &unix_datagram,
        ] {
            let header = [v2::SIGNATURE, rest].concat();
            let (len, endpoints) = (header.len(), None);
            let wanted = Ok(Some(ProxyHeader { len, endpoints }));
            assert_eq!(read(&header), wanted, "{rest:x?}");
            assert_eq!(read(&header[..len - 1]), Ok(None), "{rest:x?}");
        }
    }

    #[test]
    fn ends_of_two_families_are_written_as_ipv6() {
        let mixed = endpoints("192.0.2.1:1", "[2001:db8::2]:2");
        let v1 = written(ProxyProtocol::V1, Some(mixed));
        assert_eq!(v1, b"PROXY TCP6 ::ffff:192.0.2.1 2001:db8::2 1 2\r\n");
        let mapped = endpoints("[::ffff:192.0.2.1]:1", "[2001:db8::2]:2");
        for version in [ProxyProtocol::V1, ProxyProtocol::V2] {
            let bytes = written(version, Some(mixed));
            let read = read(&bytes).expect("valid").expect("whole");
            assert_eq!(read.endpoints, Some(mapped));
        }
    }
}
