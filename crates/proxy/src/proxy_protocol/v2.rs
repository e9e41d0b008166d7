//! Version 2, binary (Section 2.2 of the specification). All numbers are in network byte order:
//!
//! ```text
//!  0  signature, 12 bytes
//! 12  version (2) in the upper four bits, command in the lower: 0 LOCAL, 1 PROXY
//! 13  family in the upper four bits: 0 none, 1 IPv4, 2 IPv6, 3 UNIX; kind in the lower: 0 none, 1 stream, 2 datagram
//! 14  length of what follows, 16 bits
//! 16  source address, destination address, of IP also source port, destination port
//!     extensions: type, length (16 bits), value
//! ```
//!
//! The extensions must fill the length exactly. What follows LOCAL or an address of no family may be anything, because the
//! specification has receivers discard it. A checksum must be right wherever it is.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use super::crc32c::crc32c;
use super::header::{Endpoints, ProxyHeader, ProxyHeaderError};

pub(super) const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Longer than any header with the extensions in use (TLS certificates are the longest).
const MAX_BYTES: usize = 4096;
/// Up to the length.
const FIXED: usize = 16;

const VERSION_2: u8 = 0x20;
const LOCAL: u8 = 0;
const PROXY: u8 = 1;
const STREAM: u8 = 1;
const DATAGRAM: u8 = 2;

const CRC32C: u8 = 3;
const CRC32C_BYTES: usize = 4;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    Unspecified,
    V4,
    V6,
    Unix,
}

impl Family {
    fn of(number: u8) -> Option<Family> {
        [Self::Unspecified, Self::V4, Self::V6, Self::Unix]
            .get(usize::from(number))
            .copied()
    }

    /// Bytes of both addresses and ports.
    fn len(self) -> usize {
        match self {
            Self::Unspecified => 0,
            Self::V4 => 2 * 4 + 2 * 2,
            Self::V6 => 2 * 16 + 2 * 2,
            Self::Unix => 2 * 108,
        }
    }
}

/// `buf` begins with [`SIGNATURE`], as far as it goes. A fault is reported as soon as its byte is there.
pub(super) fn read(buf: &[u8]) -> Result<Option<ProxyHeader>, ProxyHeaderError> {
    use ProxyHeaderError::{Malformed, TooLong};
    let Some(&version_and_command) = buf.get(12) else {
        return Ok(None);
    };
    let command = version_and_command ^ VERSION_2;
    if command != LOCAL && command != PROXY {
        return Err(Malformed);
    }
    let Some(&family_and_kind) = buf.get(13) else {
        return Ok(None);
    };
    let (family, kind) = (Family::of(family_and_kind >> 4), family_and_kind & 0xf);
    if command == PROXY && (family.is_none() || kind > DATAGRAM) {
        return Err(Malformed);
    }
    let family = family.unwrap_or(Family::Unspecified);
    let has_addresses = command == PROXY && family != Family::Unspecified;
    let Some(&[high, low]) = buf.get(14..FIXED) else {
        return Ok(None);
    };
    let len = FIXED + usize::from(u16::from_be_bytes([high, low]));
    if len > MAX_BYTES {
        return Err(TooLong);
    }
    let extensions_at = FIXED + family.len();
    if has_addresses && len < extensions_at {
        return Err(Malformed);
    }
    let Some(header) = buf.get(..len) else {
        return Ok(None);
    };
    match check_extensions(header, extensions_at) {
        Err(Malformed) if !has_addresses => {}
        checked => checked?,
    }
    let addresses = &header[FIXED..];
    let endpoints = match (family, kind) {
        _ if !has_addresses => None,
        (Family::V4, STREAM) => endpoints::<4, Ipv4Addr>(addresses),
        (Family::V6, STREAM) => endpoints::<16, Ipv6Addr>(addresses),
        _ => None,
    };
    Ok(Some(ProxyHeader { len, endpoints }))
}

/// Both ends at the start of `block`, in addresses of `N` bytes each.
fn endpoints<const N: usize, Ip: From<[u8; N]>>(block: &[u8]) -> Option<Endpoints>
where
    SocketAddr: From<(Ip, u16)>,
{
    let (source, rest) = block.split_first_chunk::<N>()?;
    let (destination, ports) = rest.split_first_chunk::<N>()?;
    let (source_port, ports) = ports.split_first_chunk::<2>()?;
    let (destination_port, _) = ports.split_first_chunk::<2>()?;
    let address = |of: &[u8; N], port: &[u8; 2]| (Ip::from(*of), u16::from_be_bytes(*port)).into();
    Some(Endpoints {
        source: address(source, source_port),
        destination: address(destination, destination_port),
    })
}

/// Whether the extensions, from `at` on, end where the header ends, and its checksums are right.
fn check_extensions(header: &[u8], mut at: usize) -> Result<(), ProxyHeaderError> {
    use ProxyHeaderError::{Checksum, Malformed};
    while at < header.len() {
        let Some(([kind, high, low], rest)) = header[at..].split_first_chunk::<3>() else {
            return Err(Malformed);
        };
        let value = rest.get(..usize::from(u16::from_be_bytes([*high, *low])));
        let value = value.ok_or(Malformed)?;
        let value_at = at + 3;
        at = value_at + value.len();
        if *kind == CRC32C {
            let sum: [u8; CRC32C_BYTES] = value.try_into().map_err(|_| Malformed)?;
            // It is made over the header with zeros in its own place.
            let (before, after) = (&header[..value_at], &header[at..]);
            let parts = [before, &[0; CRC32C_BYTES], after];
            if crc32c(parts.into_iter().flatten()) != u32::from_be_bytes(sum) {
                return Err(Checksum);
            }
        }
    }
    Ok(())
}

/// Appends the header for both ends of one family, or for none.
pub(super) fn write(endpoints: Option<Endpoints>, out: &mut Vec<u8>) {
    out.extend_from_slice(SIGNATURE);
    let Some(Endpoints {
        source,
        destination,
    }) = endpoints
    else {
        out.extend_from_slice(&[VERSION_2 | LOCAL, 0, 0, 0]);
        return;
    };
    let family = if source.is_ipv4() {
        Family::V4
    } else {
        Family::V6
    };
    out.push(VERSION_2 | PROXY);
    out.push((family as u8) << 4 | STREAM);
    out.extend_from_slice(&(family.len() as u16).to_be_bytes());
    for end in [source, destination] {
        match end {
            SocketAddr::V4(end) => out.extend_from_slice(&end.ip().octets()),
            SocketAddr::V6(end) => out.extend_from_slice(&end.ip().octets()),
        }
    }
    for end in [source, destination] {
        out.extend_from_slice(&end.port().to_be_bytes());
    }
}
