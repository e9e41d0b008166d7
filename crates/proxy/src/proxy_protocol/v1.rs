//! Version 1, one line of text (Section 2.1 of the specification):
//!
//! ```text
//! line    = "PROXY UNKNOWN" [ " " *any ] CRLF
//!         / "PROXY TCP4 " v4 " " v4 " " port " " port CRLF
//!         / "PROXY TCP6 " v6 " " v6 " " port " " port CRLF
//! port    = "0" / ( "1" to "9" ) *digit              ; at most 65535
//! ```
//!
//! `v4` and `v6` are addresses as the standard library reads them: four numbers without zeros in front, and RFC 4291 Section
//! 2.2 without a zone. The specification has no IPv6 address that ends in an IPv4 one. HAProxy writes such (inet_ntop(3)), so
//! it is taken.

use std::io::Write;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use super::header::{Endpoints, ProxyHeader, ProxyHeaderError};

pub(super) const START: &[u8] = b"PROXY ";
/// The longest line, CRLF included.
const MAX_BYTES: usize = 107;

/// `buf` begins with [`START`], as far as it goes.
pub(super) fn read(buf: &[u8]) -> Result<Option<ProxyHeader>, ProxyHeaderError> {
    let line = &buf[..buf.len().min(MAX_BYTES)];
    let Some(lf) = memchr::memchr(b'\n', line) else {
        return match line.len() < MAX_BYTES {
            true => Ok(None),
            false => Err(ProxyHeaderError::TooLong),
        };
    };
    let text = line[..lf].strip_suffix(b"\r");
    let text = text.and_then(|text| text.strip_prefix(START));
    let endpoints = text.and_then(endpoints);
    Ok(Some(ProxyHeader {
        len: lf + 1,
        endpoints: endpoints.ok_or(ProxyHeaderError::Malformed)?,
    }))
}

/// What the line says behind [`START`]: `Some(None)` for UNKNOWN, `None` if it is malformed.
fn endpoints(text: &[u8]) -> Option<Option<Endpoints>> {
    if let Some(rest) = text.strip_prefix(b"UNKNOWN") {
        return matches!(rest, [] | [b' ', ..]).then_some(None);
    }
    let mut words = std::str::from_utf8(text).ok()?.split(' ');
    let endpoints = match words.next()? {
        "TCP4" => tcp::<Ipv4Addr>(&mut words),
        "TCP6" => tcp::<Ipv6Addr>(&mut words),
        _ => None,
    }?;
    words.next().is_none().then_some(Some(endpoints))
}

fn tcp<'a, Ip: FromStr>(words: &mut impl Iterator<Item = &'a str>) -> Option<Endpoints>
where
    SocketAddr: From<(Ip, u16)>,
{
    let mut ip = || words.next()?.parse::<Ip>().ok();
    let (source, destination) = (ip()?, ip()?);
    let mut port = || port(words.next()?);
    Some(Endpoints {
        source: (source, port()?).into(),
        destination: (destination, port()?).into(),
    })
}

fn port(word: &str) -> Option<u16> {
    let is_canonical = match word.as_bytes() {
        [b'0'] => true,
        [b'1'..=b'9', rest @ ..] => rest.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    is_canonical.then(|| word.parse().ok())?
}

/// Appends the line for both ends of one family, or for none.
pub(super) fn write(endpoints: Option<Endpoints>, out: &mut Vec<u8>) {
    let Some(Endpoints {
        source,
        destination,
    }) = endpoints
    else {
        out.extend_from_slice(b"PROXY UNKNOWN\r\n");
        return;
    };
    let family = if source.is_ipv4() { "TCP4" } else { "TCP6" };
    let (from, to) = (source.ip(), destination.ip());
    let (from_port, to_port) = (source.port(), destination.port());
    let written = write!(out, "PROXY {family} {from} {to} {from_port} {to_port}\r\n");
    written.expect("a vector takes every write");
}
