//! What tells one kept reply from another: the URI, and the request fields that the reply depends on.

use super::fields::{Field, fields, start_line, values};

/// Fields by which servers and frameworks are known to choose what they reply, without saying so in
/// `Vary`. A reply to a request that has one is only for requests that have the same: a client could
/// otherwise make the cache hand its own host or path to all clients.
const UNDECLARED: [&str; 12] = [
    "x-forwarded-host",
    "x-forwarded-server",
    "x-forwarded-proto",
    "x-forwarded-scheme",
    "x-forwarded-ssl",
    "x-forwarded-port",
    "x-forwarded-prefix",
    "x-host",
    "x-original-host",
    "x-original-url",
    "x-rewrite-url",
    "forwarded",
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
    // `Forwarded: for=` only names the client.
    let says_where = |value: &[u8]| {
        let value = value.to_ascii_lowercase();
        memchr::memmem::find(&value, b"host=").is_some()
            || memchr::memmem::find(&value, b"proto=").is_some()
    };
    field.is_any(&UNDECLARED) && (!field.is("forwarded") || says_where(field.value))
}

/// Whether a request may mean another method than the one in its first line.
pub fn overrides_method(head: &[u8]) -> bool {
    fields(head).any(|field| field.is_any(&OVERRIDES))
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

    #[test]
    fn fields_that_servers_reply_by_unsaid_are_part_of_the_uri() {
        let plain = uri(&request("/", "Host: a"));
        for field in UNDECLARED.iter().filter(|name| **name != "forwarded") {
            let odd = uri(&request("/", &format!("Host: a\r\n{field}: evil")));
            assert_ne!(odd, plain, "{field}");
        }
        for (value, kept_apart) in [
            ("for=192.0.2.1", false),
            ("for=192.0.2.1;Host=evil", true),
            ("proto=https", true),
        ] {
            let odd = uri(&request("/", &format!("Host: a\r\nForwarded: {value}")));
            assert_eq!(odd != plain, kept_apart, "{value}");
        }
        let agent = uri(&request("/", "Host: a\r\nUser-Agent: x"));
        assert_eq!(agent, plain);
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
        assert!(!overrides_method(&request("/", "Host: a")));
    }
}
