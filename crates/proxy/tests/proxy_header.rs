//! Properties of the PROXY protocol: whatever arrives, in whatever pieces, a header is read in one way only, and no
//! damage to it names another client.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use weir_proxy::proxy_protocol::{
    Endpoints, ProxyHeader, ProxyHeaderError, ProxyProtocol, read, write,
};

const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

fn written(version: ProxyProtocol, endpoints: Option<Endpoints>) -> Vec<u8> {
    let mut out = Vec::new();
    write(version, endpoints, &mut out);
    out
}

fn version() -> impl Strategy<Value = ProxyProtocol> {
    select(vec![ProxyProtocol::V1, ProxyProtocol::V2])
}

/// Two ends of one family. No IPv6 address is one of IPv4 in other clothes.
fn endpoints() -> impl Strategy<Value = Endpoints> {
    let ips = prop_oneof![
        any::<[Ipv4Addr; 2]>().prop_map(|ips| ips.map(IpAddr::V4)),
        any::<[Ipv6Addr; 2]>().prop_map(|ips| ips.map(|ip| IpAddr::V6(ip).to_canonical())),
    ];
    let ips = ips.prop_filter("one family", |[a, b]| a.is_ipv4() == b.is_ipv4());
    (ips, any::<[u16; 2]>()).prop_map(|(ips, ports)| Endpoints {
        source: SocketAddr::new(ips[0], ports[0]),
        destination: SocketAddr::new(ips[1], ports[1]),
    })
}

/// Extensions of a header: type and value.
fn extensions() -> impl Strategy<Value = Vec<(u8, Vec<u8>)>> {
    let kind = prop_oneof![Just(4), Just(0x20), 4..=255_u8];
    vec((kind, vec(any::<u8>(), 0..40)), 0..6)
}

/// A header of version 2 with these extensions, and a checksum as the last if asked for.
fn extended(endpoints: Endpoints, extensions: &[(u8, Vec<u8>)], checksum: bool) -> Vec<u8> {
    let mut header = written(ProxyProtocol::V2, Some(endpoints));
    for (kind, value) in extensions {
        header.push(*kind);
        header.extend_from_slice(&(value.len() as u16).to_be_bytes());
        header.extend_from_slice(value);
    }
    if checksum {
        header.extend_from_slice(b"\x03\0\x04\0\0\0\0");
    }
    let len = (header.len() - 16) as u16;
    header[14..16].copy_from_slice(&len.to_be_bytes());
    if checksum {
        let at = header.len() - 4;
        let sum = crc32c(&header).to_be_bytes();
        header[at..].copy_from_slice(&sum);
    }
    header
}

/// Bit by bit, as the polynomial is defined.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |sum: u32, bit: u32| match (sum ^ bit) & 1 {
        1 => sum >> 1 ^ 0x82f6_3b78,
        _ => sum >> 1,
    };
    let bits = bytes
        .iter()
        .flat_map(|byte| (0..8).map(move |at| u32::from(byte >> at & 1)));
    !bits.fold(u32::MAX, step)
}

/// Lines that are nearly headers.
fn line() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        "PROXY|TCP4|TCP6|UNKNOWN|proxy",
        "[0-9]{1,3}\\.[0-9]{1,3}\\.[0-9]{1,3}\\.[0-9]{1,3}",
        "[0-9a-fA-F]{0,4}(:[0-9a-f]{0,5}){1,8}",
        "[+-]?[0-9]{1,6}",
    ];
    let like = "PROXY (TCP4 ([0-9]{1,2}\\.){3}[0-9]{1,2} ([0-9]{1,2}\\.){3}[0-9]{1,2}|TCP6 [1-9a-f]::[0-9a-f]{1,5} ::1) [+0-9][0-9]{0,5} [0-9]{1,2}";
    let soup = vec(word, 1..8).prop_map(|words| words.join(" "));
    let end = select(vec!["\r\n", "\n", "\r", " \r\n", "\r\r\n", ""]);
    let end = prop_oneof![4 => Just("\r\n"), 1 => end];
    (prop_oneof![3 => like.prop_map(|line| line), 1 => soup], end)
        .prop_map(|(line, end)| format!("{line}{end}"))
}

/// The specification's grammar once more, word by word, with sums instead of parsers.
fn is_a_line_of_tcp4(line: &str) -> bool {
    let number = |word: &str, most: u64, digits: usize| {
        let value = word
            .bytes()
            .fold(0, |sum, byte| sum * 10 + u64::from(byte.wrapping_sub(b'0')));
        (1..=digits).contains(&word.len())
            && word.bytes().all(|byte| byte.is_ascii_digit())
            && (word == "0" || !word.starts_with('0'))
            && value <= most
    };
    let ip = |word: &str| {
        word.split('.').count() == 4 && word.split('.').all(|part| number(part, 255, 3))
    };
    let Some(text) = line.strip_suffix("\r\n") else {
        return false;
    };
    match text.split(' ').collect::<Vec<_>>()[..] {
        ["PROXY", "TCP4", from, to, from_port, to_port] => {
            ip(from) && ip(to) && number(from_port, 65535, 5) && number(to_port, 65535, 5)
        }
        _ => false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2048, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read_whatever_follows(
        version in version(), endpoints in proptest::option::of(endpoints()), rest in vec(any::<u8>(), 0..200)
    ) {
        let mut bytes = written(version, endpoints);
        let len = bytes.len();
        for cut in 0..len {
            prop_assert_eq!(read(&bytes[..cut]), Ok(None));
        }
        bytes.extend(rest);
        prop_assert_eq!(read(&bytes), Ok(Some(ProxyHeader { len, endpoints })));
    }

    #[test]
    fn any_bytes_are_read_the_same_in_any_pieces(
        start in select(vec![&b""[..], b"PROXY ", b"PROXY TCP4 ", SIGNATURE, b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x20"]),
        rest in vec(any::<u8>(), 0..120)
    ) {
        let bytes = [start, &rest[..]].concat();
        let whole = read(&bytes);
        if let Ok(Some(header)) = whole {
            prop_assert!(header.len <= bytes.len());
        }
        for cut in 0..bytes.len() {
            let part = read(&bytes[..cut]);
            match part {
                Ok(None) => {}
                // Once there is a header, or can be none, more bytes change nothing.
                part => prop_assert_eq!(part, whole, "{} bytes", cut),
            }
        }
    }

    #[test]
    fn a_line_is_taken_exactly_if_the_grammar_has_it(line in line()) {
        let header = read(line.as_bytes());
        let read = header.ok().flatten();
        let endpoints = read.and_then(|header| header.endpoints);
        let is_ipv4 = endpoints.is_some_and(|endpoints| endpoints.source.is_ipv4());
        prop_assert_eq!(is_ipv4, is_a_line_of_tcp4(&line), "{:?}", line);
        if let Some(header) = read {
            prop_assert_eq!(header.len, line.len());
            prop_assert!(line.ends_with("\r\n"));
        }
        // An IPv4 line has one spelling only. An IPv6 address has several.
        if is_ipv4 {
            prop_assert_eq!(written(ProxyProtocol::V1, endpoints), line.as_bytes());
        }
    }

    #[test]
    fn extensions_do_not_change_who_the_client_is(
        endpoints in endpoints(), extensions in extensions(), checksum in any::<bool>()
    ) {
        let header = extended(endpoints, &extensions, checksum);
        let (len, endpoints) = (header.len(), Some(endpoints));
        prop_assert_eq!(read(&header), Ok(Some(ProxyHeader { len, endpoints })));
    }

    #[test]
    fn a_length_that_the_extensions_do_not_fill_is_refused(
        endpoints in endpoints(), extensions in extensions(), by in 1..3_u16
    ) {
        // One or two bytes are less than the shortest extension.
        let mut header = extended(endpoints, &extensions, false);
        let len = u16::from_be_bytes([header[14], header[15]]) + by;
        header[14..16].copy_from_slice(&len.to_be_bytes());
        header.extend_from_slice(&[0; 100]);
        prop_assert_eq!(read(&header), Err(ProxyHeaderError::Malformed));
    }

    #[test]
    fn a_damaged_header_with_a_checksum_names_no_other_client(
        endpoints in endpoints(), extensions in extensions(), at in any::<Index>(), xor in 1..=255_u8
    ) {
        let mut header = extended(endpoints, &extensions, true);
        let at = at.index(header.len());
        header[at] ^= xor;
        header.extend_from_slice(&[0; 70_000]);
        // A shorter length may leave out whole extensions, the checksum among them.
        if let Ok(Some(ProxyHeader { endpoints: Some(read), .. })) = read(&header) {
            prop_assert_eq!(read, endpoints, "byte {} changed by {:#x}", at, xor);
        }
    }
}
