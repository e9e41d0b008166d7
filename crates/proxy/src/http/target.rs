//! The target of a request (RFC 9112 Section 3.2) and the authority in it or in `Host`.

use super::Refusal;
use super::field::{self, ByteSet};
use super::framing::Method;

/// What a request asks for, as one of the four forms of RFC 9112 Section 3.2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target<'a> {
    /// `/path?query`: the authority is in `Host`.
    Origin(&'a str),
    /// `http://authority/path?query`, as clients send it to a forward proxy.
    Absolute {
        /// `http` or `https`.
        scheme: Scheme,
        /// Host and port.
        authority: Authority<'a>,
        /// Path and query as written: may be empty, or begin with `?`.
        path: &'a str,
    },
    /// `host:port` of CONNECT.
    Authority(Authority<'a>),
    /// `*` of OPTIONS and CLIENT_CLOSE.
    Asterisk,
}

/// The scheme of an absolute target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// Port 80 unless said otherwise.
    Http,
    /// Port 443 unless said otherwise.
    Https,
}

impl Scheme {
    /// The port of an authority that names none.
    pub fn default_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

/// A host with an optional port (RFC 3986 Section 3.2), without user information.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Authority<'a> {
    /// As written: what `Host` is to say.
    pub text: &'a str,
    /// A name, an IPv4 address, or an IPv6 address without its brackets. Never empty.
    pub host: &'a str,
    /// 1 to 65535; `None` when absent or empty.
    pub port: Option<u16>,
}

impl<'a> Target<'a> {
    pub(super) fn parse(text: &'a str, method: Method) -> Result<Self, Refusal> {
        // A fragment is never sent; what follows `#` is where parsers disagree.
        if !text.is_ascii() || memchr::memchr(b'#', text.as_bytes()).is_some() {
            return Err(Refusal::Target);
        }
        if method == Method::Connect {
            let authority = Authority::parse(text).ok_or(Refusal::Target)?;
            return match authority.port {
                Some(_) => Ok(Self::Authority(authority)),
                None => Err(Refusal::Target),
            };
        }
        if text.starts_with('/') {
            return Ok(Self::Origin(text));
        }
        if text == "*" {
            return match method {
                Method::Options | Method::ClientClose => Ok(Self::Asterisk),
                _ => Err(Refusal::Target),
            };
        }
        Self::absolute(text)
    }

    fn absolute(text: &'a str) -> Result<Self, Refusal> {
        let (scheme, rest) = text.split_once("://").ok_or(Refusal::Target)?;
        let scheme = if scheme.eq_ignore_ascii_case("http") {
            Scheme::Http
        } else if scheme.eq_ignore_ascii_case("https") {
            Scheme::Https
        } else if is_scheme(scheme) {
            return Err(Refusal::Scheme);
        } else {
            return Err(Refusal::Target);
        };
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        Ok(Self::Absolute {
            scheme,
            authority: Authority::parse(authority).ok_or(Refusal::Target)?,
            path,
        })
    }
}

impl<'a> Authority<'a> {
    /// `None` unless it is `host`, `host:` or `host:port` with a non-empty host.
    pub fn parse(text: &'a str) -> Option<Self> {
        let (host, rest) = match text.strip_prefix('[') {
            Some(literal) => {
                let (host, rest) = literal.split_once(']')?;
                host.parse::<std::net::Ipv6Addr>().ok()?;
                (host, rest)
            }
            None => {
                let end = text.bytes().position(|byte| byte == b':');
                let (host, rest) = text.split_at(end.unwrap_or(text.len()));
                is_reg_name(host).then_some((host, rest))?
            }
        };
        let port = match rest.strip_prefix(':') {
            None if rest.is_empty() => None,
            None => return None,
            Some("") => None,
            Some(port) => Some(parse_port(port)?),
        };
        Some(Self { text, host, port })
    }
}

fn parse_port(text: &str) -> Option<u16> {
    let port = field::decimal(text.as_bytes())?;
    u16::try_from(port).ok().filter(|&port| port > 0)
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
}

/// RFC 3986 reg-name, not empty, with every `%` followed by two hexadecimal digits.
fn is_reg_name(name: &str) -> bool {
    static ALLOWED: ByteSet = ByteSet::alphanumeric_and(b"-._~!$&'()*+,;=%");
    let bytes = name.as_bytes();
    !bytes.is_empty()
        && bytes.iter().all(|&byte| ALLOWED.contains(byte))
        && memchr::memchr_iter(b'%', bytes).all(|at| {
            let hex = bytes.get(at + 1..at + 3);
            hex.is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authorities_are_hosts_with_optional_ports() {
        let parts = |text| Authority::parse(text).map(|found| (found.host, found.port));
        assert_eq!(parts("a.example"), Some(("a.example", None)));
        assert_eq!(parts("a.example:"), Some(("a.example", None)));
        assert_eq!(parts("10.0.0.1:8080"), Some(("10.0.0.1", Some(8080))));
        assert_eq!(parts("[::1]:443"), Some(("::1", Some(443))));
        assert_eq!(parts("a%2eb"), Some(("a%2eb", None)));
        for not in [
            "", ":80", "a:0", "a:65536", "a:+80", "a:80:80", "user@a", "[::1", "[::1]x", "[a]",
            "a b", "a/b", "a\\b", "a%2", "a?b", "::1",
        ] {
            assert_eq!(parts(not), None, "{not:?}");
        }
    }
}
