//! What tells one kept reply from another: the URI, and the request fields that the reply depends on.

use std::borrow::Cow;

use super::fields::{Field, fields, start_line, values};
use crate::http::is_odd_name;

/// Fields by which servers and frameworks are known to choose what they reply, without saying so in
/// `Vary`. A reply to a request that has one is only for requests that have the same: a client could
/// otherwise make the cache hand its own host, path or scheme to all clients.
///
/// From the frameworks' own code, and from the headers that Param Miner tries
/// (<https://github.com/PortSwigger/param-miner>). Fields that name only the client are not here.
const UNDECLARED: [&str; 13] = [
    "forwarded",
    "base-url",
    "cf-visitor",
    "cloudfront-forwarded-proto",
    "disguised-host",
    "forwarded-proto",
    "front-end-https",
    "https",
    "path-info",
    "proxy-host",
    "request-uri",
    "script-name",
    "ssl-offloaded",
];

/// As [`UNDECLARED`]: those whose names begin with `x-`, in which they stand without it.
const UNDECLARED_X: [&str; 31] = [
    "accel-mapping",
    "amz-website-redirect-location",
    "amzn-remapped-host",
    "appservice-proto",
    "arr-ssl",
    "backend-host",
    "cf-url",
    "envoy-original-host",
    "envoy-original-path",
    "forward-proto",
    "forwarded",
    "gateway-host",
    "host",
    "host-override",
    "http-destinationurl",
    "http-host-override",
    "http-path-override",
    "https",
    "originally-forwarded-proto",
    "proto",
    "protocol",
    "proxy-url",
    "remote-protocol",
    "request-uri",
    "scheme",
    "script-name",
    "sendfile-type",
    "server-name",
    "ssl",
    "traversal-path",
    "url-scheme",
];

/// Every field is undeclared whose name goes on so after `x-`, such as `X-Forwarded-Uri`.
const UNDECLARED_X_FAMILIES: [&str; 4] = ["forwarded-", "original-", "replaced-", "rewrite-"];

/// Fields of these families that name only the client. They are other ones for each client.
const CLIENTS: [&str; 5] = [
    "forwarded-for",
    "forwarded-for-original",
    "forwarded-client-ip",
    "original-forwarded-for",
    "original-remote-addr",
];

/// Fields that turn a GET into another method at some servers: such requests pass by the cache.
const OVERRIDES: [&str; 3] = [
    "x-http-method-override",
    "x-http-method",
    "x-method-override",
];

/// More fields in `Vary` than any server needs.
const MAX_VARY: usize = 16;

/// The URI that a request's head names: its `Host` in small letters and its target, and the fields of
/// [`UNDECLARED`]. The head is the one that goes to the server, so that an absolute target and `Host`
/// cannot say two things.
pub fn uri(head: &[u8]) -> Vec<u8> {
    let mut uri = own_family(head);
    for field in fields(head).filter(chooses_undeclared) {
        // No target has a line's end in it, so this is the URI of no other request.
        uri.push(b'\n');
        uri.extend(field.name.bytes().map(|byte| byte.to_ascii_lowercase()));
        uri.push(b':');
        uri.extend_from_slice(field.value);
    }
    uri
}

/// The part of a [`uri`] that all requests to one host and target have in common.
pub fn family(uri: &[u8]) -> &[u8] {
    uri.split(|&byte| byte == b'\n').next().unwrap_or_default()
}

/// The family of the request's own URI.
pub fn own_family(head: &[u8]) -> Vec<u8> {
    let line = start_line(head);
    let target = line.split(|&byte| byte == b' ').nth(1).unwrap_or_default();
    on_host(head, target)
}

/// The family of another target at the same host, for [`Location` and
/// `Content-Location`](https://www.rfc-editor.org/rfc/rfc9111#section-4.4): a path, or a URI of either
/// scheme, as a TLS proxy in front makes one the other; `None` if that names another host.
pub fn sibling(head: &[u8], target: &[u8]) -> Option<Vec<u8>> {
    let (scheme, rest) = match memchr::memmem::find(target, b"//") {
        Some(at) => (&target[..at], &target[at + 2..]),
        None => (target, target),
    };
    let is = |name: &[u8]| scheme.eq_ignore_ascii_case(name);
    let path = match is(b"http:") || is(b"https:") || scheme.is_empty() && rest.len() < target.len()
    {
        true => {
            let end = rest.iter().position(|byte| b"/?#".contains(byte));
            let (authority, path) = rest.split_at(end.unwrap_or(rest.len()));
            is_same_host(authority, host(head)).then_some(path)?
        }
        false => target,
    };
    let path = path.split(|&byte| byte == b'#').next().unwrap_or_default();
    path.starts_with(b"/").then(|| on_host(head, path))
}

/// Whether two authorities are one, given that either may name the port that its scheme has anyway.
fn is_same_host(one: &[u8], other: &[u8]) -> bool {
    fn bare(authority: &[u8]) -> &[u8] {
        let without = |port| authority.strip_suffix(port);
        without(&b":80"[..])
            .or(without(b":443"))
            .unwrap_or(authority)
    }
    bare(one).eq_ignore_ascii_case(bare(other))
}

fn on_host(head: &[u8], target: &[u8]) -> Vec<u8> {
    let mut uri = host(head).to_ascii_lowercase();
    // Stands in neither, so that none can borrow from the other.
    uri.push(b' ');
    uri.extend_from_slice(target);
    uri
}

fn host(head: &[u8]) -> &[u8] {
    values(head, "host").next().unwrap_or_default()
}

fn chooses_undeclared(field: &Field<'_>) -> bool {
    let name = &*read_by_servers(field.name);
    let field = Field { name, ..*field };
    match name.split_at_checked("x-".len()) {
        Some((start, rest)) if start.eq_ignore_ascii_case("x-") => {
            let of_family = |family: &&str| {
                let start = rest.as_bytes().get(..family.len());
                start.is_some_and(|start| start.eq_ignore_ascii_case(family.as_bytes()))
            };
            let without_x = Field {
                name: rest,
                ..field
            };
            without_x.is_any(&UNDECLARED_X)
                || UNDECLARED_X_FAMILIES.iter().any(of_family) && !without_x.is_any(&CLIENTS)
        }
        _ if field.is("forwarded") => says_where(field.value),
        _ => field.is_any(&UNDECLARED),
    }
}

/// Whether a value of `Forwarded` says more than for whom the request is.
fn says_where(value: &[u8]) -> bool {
    let value = value.to_ascii_lowercase();
    memchr::memmem::find(&value, b"host=").is_some()
        || memchr::memmem::find(&value, b"proto=").is_some()
}

/// A field's name as servers read it that make variables of fields: `X_Host` is `X-Host` there.
fn read_by_servers(name: &str) -> Cow<'_, str> {
    match is_odd_name(name.as_bytes()) {
        false => Cow::Borrowed(name),
        true => Cow::Owned(name.replace(|byte: char| !byte.is_ascii_alphanumeric(), "-")),
    }
}

/// Whether a request may mean another method than the one in its first line.
pub fn overrides_method(head: &[u8]) -> bool {
    fields(head).any(|field| {
        let name = &*read_by_servers(field.name);
        Field { name, ..field }.is_any(&OVERRIDES)
    })
}

/// The fields that a reply depends on (RFC 9110 Section 12.5.5), in small letters and in order.
pub type Vary = Box<[Box<str>]>;

/// Reads `Vary`; `None` if the reply fits no other request: `*`, or a list that is too long.
pub fn vary(reply: &[u8]) -> Option<Vary> {
    let mut names = Vec::new();
    for member in values(reply, "vary").flat_map(super::fields::members) {
        let name = std::str::from_utf8(member).ok()?.to_ascii_lowercase();
        if name == "*" || names.len() == MAX_VARY {
            return None;
        }
        names.push(name.into_boxed_str());
    }
    names.sort_unstable();
    names.dedup();
    Some(names.into_boxed_slice())
}

/// What a request says in these fields: equal for two requests that match (RFC 9111 Section 4.1).
/// Lines of one name are one list; an absent field is unlike an empty one.
pub fn variant(head: &[u8], vary: &[Box<str>]) -> Vec<u8> {
    let mut variant = Vec::new();
    for name in vary {
        for value in values(head, name) {
            variant.push(b',');
            let words = value.split(u8::is_ascii_whitespace);
            for word in words.filter(|word| !word.is_empty()) {
                variant.push(b' ');
                variant.extend_from_slice(word);
            }
        }
        variant.push(b'\n');
    }
    variant
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(target: &str, fields: &str) -> Vec<u8> {
        format!("GET {target} HTTP/1.1\r\n{fields}\r\n\r\n").into_bytes()
    }

    fn names(vary: &str) -> Vary {
        super::vary(format!("HTTP/1.1 200 OK\r\n{vary}\r\n\r\n").as_bytes()).unwrap()
    }

    #[test]
    fn hosts_differ_in_more_than_case_and_targets_in_anything() {
        let uri = |target, host: &str| super::uri(&request(target, &format!("Host: {host}")));
        assert_eq!(uri("/a", "Example.COM"), uri("/a", "example.com"));
        for (target, host) in [
            ("/A", "example.com"),
            ("/a?", "example.com"),
            ("/%61", "example.com"),
            ("/a", "example.com:81"),
            ("/a", "example.co"),
        ] {
            assert_ne!(
                uri(target, host),
                uri("/a", "example.com"),
                "{host}{target}"
            );
        }
    }

    /// Named here one by one, so that the test does not ask the list about itself.
    #[rustfmt::skip] // A kind of field a paragraph.
    const CHOOSE: [&str; 67] = [
        "X-Forwarded-Host", "X-Forwarded-Server", "X-Host", "X-Original-Host", "X-HTTP-Host-Override",
        "X-Host-Override", "X-Server-Name", "Proxy-Host", "X-Backend-Host", "X-Gateway-Host", "Disguised-Host",
        "X-Envoy-Original-Host", "X-Amzn-Remapped-Host", "X-Forwarded", "Base-Url",

        "X-Forwarded-Proto", "X-Forwarded-Protocol", "X-Forwarded-Scheme", "X-Forwarded-Ssl", "X-Forwarded-Port",
        "X-Forwarded-Https", "X-Forward-Proto", "X-Originally-Forwarded-Proto", "Forwarded-Proto", "X-Url-Scheme",
        "X-Scheme", "X-Proto", "X-Protocol", "X-Remote-Protocol", "X-Https", "X-Ssl", "X-Arr-Ssl", "Front-End-Https",
        "Https", "Ssl-Offloaded", "Cf-Visitor", "CloudFront-Forwarded-Proto", "X-AppService-Proto",

        "X-Forwarded-Uri", "X-Forwarded-Prefix", "X-Forwarded-Path", "X-Forwarded-Base", "X-Forwarded-Script-Name",
        "X-Forwarded-Request-Uri", "X-Forwarded-Method", "X-Original-URL", "X-Original-Uri", "X-Original-Path",
        "X-Original-Method", "X-Original-HTTP-Command", "X-Rewrite-URL", "X-Rewrite-Uri", "X-Replaced-Path",
        "X-HTTP-Path-Override", "X-HTTP-DestinationURL", "X-Envoy-Original-Path", "Request-Uri", "X-Request-Uri",
        "X-Cf-Url", "X-Proxy-Url", "Script-Name", "X-Script-Name", "Path-Info", "X-Traversal-Path",

        "X-Sendfile-Type", "X-Accel-Mapping", "X-Amz-Website-Redirect-Location",
    ];

    #[test]
    fn fields_that_servers_reply_by_unsaid_are_part_of_the_uri() {
        let plain = uri(&request("/", "Host: a"));
        for field in CHOOSE {
            let with =
                |name: &str, value| uri(&request("/", &format!("Host: a\r\n{name}: {value}")));
            assert_ne!(with(field, "evil"), plain, "{field}");
            assert_ne!(with(field, "evil"), with(field, "other"), "{field}");
            assert_eq!(
                with(field, "evil"),
                with(&field.to_uppercase(), "evil"),
                "{field}"
            );
            let as_variable = field.replace('-', "_");
            assert_ne!(with(&as_variable, "evil"), plain, "{as_variable}");
        }
        for client in [
            "User-Agent: x",
            "X-Forwarded-For: 192.0.2.1",
            "X-Forwarded-Client-IP: 192.0.2.1",
            "X-Original-Forwarded-For: 192.0.2.1",
            "X-Original-Remote-Addr: 192.0.2.1",
            "X-Real-IP: 192.0.2.1",
            "X-Request-Id: 1",
            "X-",
            "X",
            "Via: 1.1 other",
        ] {
            let same = uri(&request("/", &format!("Host: a\r\n{client}")));
            assert_eq!(same, plain, "{client}");
        }
        for (value, kept_apart) in [
            ("for=192.0.2.1", false),
            ("for=192.0.2.1;Host=evil", true),
            ("proto=https", true),
        ] {
            let odd = uri(&request("/", &format!("Host: a\r\nForwarded: {value}")));
            assert_eq!(odd != plain, kept_apart, "{value}");
        }
    }

    #[test]
    fn vary_is_a_set_of_names_in_any_case() {
        assert_eq!(
            names("Vary: B, a\r\nvary: b"),
            ["a".into(), "b".into()].into()
        );
        for unusable in ["Vary: a, *", "Vary: *"] {
            let head = format!("HTTP/1.1 200 OK\r\n{unusable}\r\n\r\n");
            assert_eq!(super::vary(head.as_bytes()), None, "{unusable}");
        }
    }

    /// RFC 9111 Section 4.1.
    #[test]
    fn requests_match_if_their_fields_differ_in_whitespace_only() {
        let vary = names("Vary: accept, accept-language");
        let variant = |fields| super::variant(&request("/", fields), &vary);
        let same = variant("Accept: a,  b\r\nUser-Agent: x");
        assert_eq!(variant("User-Agent: y\r\naccept: a, b"), same);
        for other in [
            "Accept: b, a",
            "Accept: a, b\r\nAccept-Language:",
            "Accept-Language: a, b",
            "",
        ] {
            assert_ne!(variant(other), same, "{other}");
        }
        assert_ne!(
            variant("Accept: a\r\nAccept-Language: b"),
            variant("Accept: a\nb")
        );
    }

    #[test]
    fn a_location_names_a_uri_of_the_same_host_only() {
        let head = request("/x", "Host: a:8080");
        let sibling = |target: &str| super::sibling(&head, target.as_bytes());
        assert_eq!(sibling("/y?z#f"), Some(b"a:8080 /y?z".to_vec()));
        assert_eq!(sibling("http://A:8080/y"), Some(b"a:8080 /y".to_vec()));
        for same in ["HTTP://a:8080/y", "https://a:8080/y#f", "//a:8080/y"] {
            assert_eq!(sibling(same), Some(b"a:8080 /y".to_vec()), "{same}");
        }
        for other in [
            "http://b/y",
            "https://a/y",
            "//b/y",
            "ftp://a:8080/y",
            "//a:8080",
        ] {
            assert_eq!(sibling(other), None, "{other}");
        }
        let plain = request("/x", "Host: a");
        for same in ["https://a:443/y", "http://a:80/y", "https://a/y"] {
            let found = super::sibling(&plain, same.as_bytes());
            assert_eq!(found, Some(b"a /y".to_vec()), "{same}");
        }
        assert_eq!(sibling("y"), None);
    }

    #[test]
    fn a_get_that_some_servers_take_for_a_delete_is_seen() {
        assert!(overrides_method(&request(
            "/",
            "X-HTTP-Method-Override: DELETE"
        )));
        assert!(overrides_method(&request("/", "X_METHOD.OVERRIDE: PUT")));
        assert!(!overrides_method(&request("/", "Host: a")));
    }
}
