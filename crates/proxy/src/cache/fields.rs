//! The fields of heads that [`rewrite`](crate::http::rewrite) wrote: every line ends in CRLF, no field
//! belongs to one connection only. The cache reads what goes out, never what came in: whatever it
//! concludes holds for the very bytes that the next reader gets.

/// One line of a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field<'a> {
    /// As written.
    pub name: &'a str,
    /// Without whitespace around it.
    pub value: &'a [u8],
    /// The whole line with its CRLF.
    pub line: &'a [u8],
}

impl Field<'_> {
    /// Whether it has this name, in any case.
    pub fn is(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name)
    }

    /// Whether it has one of these names.
    pub fn is_any(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.is(name))
    }
}

/// The first line without its CRLF.
pub fn start_line(head: &[u8]) -> &[u8] {
    let end = memchr::memchr(b'\r', head).unwrap_or(head.len());
    &head[..end]
}

/// The lines after the first, up to the empty one.
pub fn fields(head: &[u8]) -> impl Iterator<Item = Field<'_>> + Clone {
    let after = |from: &[u8]| memchr::memchr(b'\n', from).map_or(from.len(), |at| at + 1);
    let mut rest = &head[after(head)..];
    std::iter::from_fn(move || {
        let (line, following) = rest.split_at(after(rest));
        rest = following;
        let colon = memchr::memchr(b':', line)?;
        Some(Field {
            name: std::str::from_utf8(&line[..colon]).unwrap_or_default(),
            value: line[colon + 1..].trim_ascii(),
            line,
        })
    })
}

/// The values of all lines with this name, in order.
pub fn values<'a>(head: &'a [u8], name: &'a str) -> impl Iterator<Item = &'a [u8]> + Clone {
    fields(head)
        .filter(move |field| field.is(name))
        .map(|field| field.value)
}

/// The value of the only line with this name; `None` when there are several, which have no one value.
pub fn only_value<'a>(head: &'a [u8], name: &'a str) -> Option<&'a [u8]> {
    let mut values = values(head, name);
    values.next().filter(|_| values.next().is_none())
}

/// The members of a comma-separated list in which quoted strings may stand: trimmed, without the
/// empty ones.
pub fn members(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = value;
    std::iter::from_fn(move || {
        while !rest.is_empty() {
            let (member, following) = rest.split_at(member_length(rest));
            rest = following.get(1..).unwrap_or_default();
            let member = member.trim_ascii();
            if !member.is_empty() {
                return Some(member);
            }
        }
        None
    })
}

/// Up to the first comma outside quotes.
fn member_length(list: &[u8]) -> usize {
    let (mut quoted, mut escaped) = (false, false);
    for (at, &byte) in list.iter().enumerate() {
        match byte {
            _ if std::mem::take(&mut escaped) => {}
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b',' if !quoted => return at,
            _ => {}
        }
    }
    list.len()
}

/// An HTTP date in any of its three forms (RFC 9110 Section 5.6.7), in seconds since 1970.
pub fn date(value: &[u8]) -> Option<u64> {
    let time = httpdate::parse_http_date(std::str::from_utf8(value).ok()?).ok()?;
    let since = time.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nA: 1\r\nb:  two \r\nA: 3\r\nEmpty:\r\n\r\n";

    #[test]
    fn fields_are_the_lines_between_the_first_and_the_empty_one() {
        let read: Vec<_> = fields(HEAD).map(|f| (f.name, f.value)).collect();
        assert_eq!(
            read,
            [("A", &b"1"[..]), ("b", b"two"), ("A", b"3"), ("Empty", b"")]
        );
        let lines: Vec<_> = fields(HEAD).map(|field| field.line).collect();
        assert_eq!(lines[1], b"b:  two \r\n");
        assert_eq!(start_line(HEAD), b"HTTP/1.1 200 OK");
    }

    #[test]
    fn a_name_that_stands_twice_has_no_only_value() {
        assert_eq!(only_value(HEAD, "B"), Some(&b"two"[..]));
        assert_eq!(only_value(HEAD, "a"), None);
        assert_eq!(only_value(HEAD, "c"), None);
    }

    #[test]
    fn commas_in_quotes_do_not_end_a_member() {
        let list = b"a, private=\"b, \\\"c\", ,d";
        let read: Vec<_> = members(list).collect();
        assert_eq!(read, [&b"a"[..], b"private=\"b, \\\"c\"", b"d"]);
    }

    #[test]
    fn dates_are_read_in_all_three_forms() {
        for text in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
        ] {
            assert_eq!(date(text.as_bytes()), Some(784_111_777), "{text}");
        }
        assert_eq!(date(b"0"), None);
    }
}
