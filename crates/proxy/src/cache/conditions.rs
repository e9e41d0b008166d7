//! Conditions and ranges (RFC 9110 Sections 13 and 14), on both sides of the cache: what clients ask
//! of it, and what it asks of servers (RFC 9111 Section 4.3).

use std::ops::Range;

use super::fields::{date, fields, members, only_value, start_line, values};

/// What ends at the cache: it asks servers for whole replies, and answers these itself.
const ANSWERED_HERE: [&str; 2] = ["if-none-match", "if-modified-since"];
/// Conditions that only the server can answer (Section 4.3.2).
const SERVERS_OWN: [&str; 2] = ["if-match", "if-unmodified-since"];
/// What frames a reply or belongs to one connection: written anew for each client.
const FRAMING: [&str; 3] = ["connection", "content-length", "transfer-encoding"];
/// Fields of a 304 that say nothing of the kept reply (Section 3.2), or would make what one client
/// got part of what all get.
const NOT_UPDATED: [&str; 5] = [
    "content-encoding",
    "content-type",
    "content-range",
    "age",
    "set-cookie",
];
/// The fields of a kept reply that a 304 repeats (RFC 9110 Section 15.4.5).
const REPEATED: [&str; 8] = [
    "cache-control",
    "content-location",
    "date",
    "etag",
    "expires",
    "last-modified",
    "vary",
    "via",
];

/// What a client's request depends on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Conditions {
    /// `If-None-Match`, all lines as one list.
    none_match: Option<Vec<u8>>,
    /// `If-Modified-Since`, in seconds since 1970.
    modified_since: Option<u64>,
    /// `Range`
    range: Option<Vec<u8>>,
    /// `If-Range`
    if_range: Option<Vec<u8>>,
}

impl Conditions {
    /// Reads them from a request's head.
    pub fn of(head: &[u8]) -> Conditions {
        let lines = values(head, "if-none-match").collect::<Vec<_>>();
        let none_match = (!lines.is_empty()).then(|| lines.join(&b","[..]));
        Conditions {
            // Section 13.1.3: it is ignored beside If-None-Match.
            modified_since: match none_match {
                None => only_value(head, "if-modified-since").and_then(date),
                Some(_) => None,
            },
            none_match,
            range: only_value(head, "range").map(<[u8]>::to_vec),
            if_range: only_value(head, "if-range").map(<[u8]>::to_vec),
        }
    }

    /// Whether only part of the reply is wanted.
    pub fn wants_part(&self) -> bool {
        self.range.is_some()
    }

    /// Whether the client has the kept reply already and wants to hear that.
    pub fn met_by(&self, reply: &[u8]) -> bool {
        if let Some(list) = &self.none_match {
            let etag = only_value(reply, "etag");
            return members(list).any(|member| {
                member == b"*" || etag.is_some_and(|etag| opaque(etag) == opaque(member))
            });
        }
        self.modified_since.is_some_and(|since| {
            let changed = only_value(reply, "last-modified").or(only_value(reply, "date"));
            changed
                .and_then(date)
                .is_some_and(|changed| changed <= since)
        })
    }

    /// The part that is wanted of a kept reply of this length.
    pub fn part(&self, reply: &[u8], length: u64) -> Part {
        match &self.range {
            Some(range) if self.if_range_holds(reply) => Part::of(range, length),
            _ => Part::Whole,
        }
    }

    /// Section 13.1.5: strong validators only.
    fn if_range_holds(&self, reply: &[u8]) -> bool {
        let Some(validator) = &self.if_range else {
            return true;
        };
        if validator.ends_with(b"\"") {
            return only_value(reply, "etag") == Some(validator) && !validator.starts_with(b"W/");
        }
        let modified = only_value(reply, "last-modified");
        let moment = |value: Option<&[u8]>| value.and_then(date);
        let strong = match (moment(modified), moment(only_value(reply, "date"))) {
            // Section 8.8.2.2: it may have changed twice within the second.
            (Some(modified), Some(date)) => date > modified,
            _ => false,
        };
        strong && modified == Some(validator)
    }
}

/// An entity tag without its weakness: what the weak comparison compares (Section 8.8.3.2).
fn opaque(etag: &[u8]) -> &[u8] {
    etag.strip_prefix(b"W/").unwrap_or(etag)
}

/// Which part of a body is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// All of it: also for several ranges and other units, which a server may ignore.
    Whole,
    /// These bytes.
    Bytes(Range<u64>),
    /// None that it has.
    Outside,
}

impl Part {
    /// Section 14.1.2.
    fn of(range: &[u8], length: u64) -> Part {
        let Some((unit, set)) = split(range, b'=') else {
            return Part::Whole;
        };
        if !unit.trim_ascii().eq_ignore_ascii_case(b"bytes") || set.contains(&b',') {
            return Part::Whole;
        }
        let Some((first, last)) = split(set.trim_ascii(), b'-') else {
            return Part::Whole;
        };
        let range = match (number(first), number(last)) {
            (None, Some(last)) if first.is_empty() => length.saturating_sub(last)..length,
            (Some(first), None) if last.is_empty() => first..length,
            (Some(first), Some(last)) if first <= last => first..length.min(last.saturating_add(1)),
            _ => return Part::Whole,
        };
        match range.is_empty() {
            true => Part::Outside,
            false => Part::Bytes(range),
        }
    }
}

fn split(text: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let at = memchr::memchr(at, text)?;
    Some((&text[..at], &text[at + 1..]))
}

fn number(digits: &[u8]) -> Option<u64> {
    let plain = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(digits).ok().filter(|_| plain)?;
    Some(text.parse().unwrap_or(u64::MAX))
}

/// Whether a request has a condition that only the server can answer.
pub fn is_for_the_server(request: &[u8]) -> bool {
    fields(request).any(|field| field.is_any(&SERVERS_OWN))
}

/// The request without the client's conditions: what it gets may be for others too.
pub fn unconditional(request: &[u8]) -> Vec<u8> {
    without(request, &ANSWERED_HERE)
}

/// The request that asks whether a kept reply still holds (Section 4.3.1); `None` if it has nothing
/// to be recognised by.
pub fn validating(request: &[u8], kept: &[u8]) -> Option<Vec<u8>> {
    let etag = only_value(kept, "etag");
    let modified = only_value(kept, "last-modified");
    etag.or(modified)?;
    let mut head = unconditional(request);
    head.truncate(head.len() - "\r\n".len());
    for (name, validator) in [("If-None-Match: ", etag), ("If-Modified-Since: ", modified)] {
        if let Some(validator) = validator {
            head.extend_from_slice(&[name.as_bytes(), validator, b"\r\n"].concat());
        }
    }
    head.extend_from_slice(b"\r\n");
    Some(head)
}

/// The head as it is kept: without its framing, its age and its empty line.
pub fn kept(reply: &[u8]) -> Vec<u8> {
    let mut head = start_line(reply).to_vec();
    head.extend_from_slice(b"\r\n");
    for field in fields(reply) {
        if !field.is_any(&FRAMING) && !field.is("age") {
            head.extend_from_slice(field.line);
        }
    }
    head
}

/// The kept head with the fields of a 304 in place of its own (Sections 3.2 and 4.3.4); `None` if the
/// 304 is about another reply.
pub fn freshened(kept: &[u8], not_modified: &[u8]) -> Option<Vec<u8>> {
    if let Some(etag) = only_value(not_modified, "etag") {
        let same = only_value(kept, "etag").is_some_and(|own| opaque(own) == opaque(etag));
        if !same {
            return None;
        }
    }
    let updates = |name: &str| {
        let update = !FRAMING
            .iter()
            .chain(&NOT_UPDATED)
            .any(|not| not.eq_ignore_ascii_case(name));
        update && fields(not_modified).any(|field| field.is(name))
    };
    let mut head = start_line(kept).to_vec();
    head.extend_from_slice(b"\r\n");
    let stay = fields(kept).filter(|field| !updates(field.name));
    let come = fields(not_modified).filter(|field| updates(field.name));
    stay.chain(come)
        .for_each(|field| head.extend_from_slice(field.line));
    Some(head)
}

/// The fields of a kept reply that a 304 made of it has, each with its line's end.
pub fn not_modified_fields(kept: &[u8], out: &mut Vec<u8>) {
    for field in fields(kept).filter(|field| field.is_any(&REPEATED)) {
        out.extend_from_slice(field.line);
    }
}

fn without(head: &[u8], names: &[&str]) -> Vec<u8> {
    let mut out = start_line(head).to_vec();
    out.extend_from_slice(b"\r\n");
    for field in fields(head).filter(|field| !field.is_any(names)) {
        out.extend_from_slice(field.line);
    }
    out.extend_from_slice(b"\r\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conditions(fields: &str) -> Conditions {
        Conditions::of(format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n").as_bytes())
    }

    const KEPT: &[u8] = b"HTTP/1.1 200 OK\r\n\
        Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
        ETag: \"a\"\r\n\
        Last-Modified: Sun, 06 Nov 1994 07:00:00 GMT\r\n\
        Content-Type: text/plain\r\n\
        Cache-Control: max-age=5\r\n";

    #[test]
    fn section_4_3_2_which_client_has_the_reply_already() {
        for (fields, met) in [
            ("If-None-Match: \"a\"", true),
            ("If-None-Match: W/\"a\"", true),
            ("If-None-Match: \"b\", \"a\"", true),
            ("If-None-Match: \"b\"\r\nIf-None-Match: \"a\"", true),
            ("If-None-Match: *", true),
            ("If-None-Match: a", false),
            ("If-None-Match: \"b\"", false),
            ("If-Modified-Since: Sun, 06 Nov 1994 07:00:00 GMT", true),
            ("If-Modified-Since: Sun, 06 Nov 1994 06:59:59 GMT", false),
            ("If-Modified-Since: yesterday", false),
            (
                "If-None-Match: \"b\"\r\nIf-Modified-Since: Sun, 06 Nov 1994 07:00:00 GMT",
                false,
            ),
            ("", false),
        ] {
            assert_eq!(conditions(fields).met_by(KEPT), met, "{fields}");
        }
    }

    #[test]
    fn rfc_9110_section_14_1_2_which_bytes_are_wanted() {
        for (range, expected) in [
            ("bytes=0-4", Part::Bytes(0..5)),
            ("bytes=5-", Part::Bytes(5..10)),
            ("bytes=-3", Part::Bytes(7..10)),
            ("bytes=-30", Part::Bytes(0..10)),
            ("bytes=8-99999999999999999999", Part::Bytes(8..10)),
            ("bytes=10-", Part::Outside),
            ("bytes=-0", Part::Outside),
            ("bytes=4-2", Part::Whole),
            ("bytes=a-b", Part::Whole),
            ("bytes=0-1,3-4", Part::Whole),
            ("lines=0-1", Part::Whole),
            ("bytes", Part::Whole),
        ] {
            let asked = conditions(&format!("Range: {range}"));
            assert_eq!(asked.part(KEPT, 10), expected, "{range}");
        }
    }

    #[test]
    fn rfc_9110_section_13_1_5_a_range_of_another_version_is_not_served() {
        for (if_range, holds) in [
            ("\"a\"", true),
            ("W/\"a\"", false),
            ("\"b\"", false),
            ("Sun, 06 Nov 1994 07:00:00 GMT", true),
            ("Sun, 06 Nov 1994 07:00:01 GMT", false),
        ] {
            let asked = conditions(&format!("Range: bytes=0-1\r\nIf-Range: {if_range}"));
            let expected = match holds {
                true => Part::Bytes(0..2),
                false => Part::Whole,
            };
            assert_eq!(asked.part(KEPT, 10), expected, "{if_range}");
        }
    }

    #[test]
    fn section_4_3_1_a_kept_reply_is_asked_for_by_its_own_validators() {
        let request = b"GET / HTTP/1.1\r\nHost: a\r\nIf-None-Match: \"mine\"\r\nA: b\r\n\r\n";
        let head = String::from_utf8(validating(request, KEPT).unwrap()).unwrap();
        assert_eq!(
            head,
            "GET / HTTP/1.1\r\nHost: a\r\nA: b\r\nIf-None-Match: \"a\"\r\n\
             If-Modified-Since: Sun, 06 Nov 1994 07:00:00 GMT\r\n\r\n"
        );
        assert_eq!(validating(request, b"HTTP/1.1 200 OK\r\nA: b\r\n"), None);
    }

    #[test]
    fn section_4_3_4_a_304_renews_the_fields_that_it_has() {
        let not_modified =
            b"HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\nCache-Control: max-age=9\r\n\
            Content-Type: x\r\nContent-Length: 0\r\nSet-Cookie: b\r\nNew: c\r\n\r\n";
        let head = String::from_utf8(freshened(KEPT, not_modified).unwrap()).unwrap();
        assert_eq!(
            head,
            "HTTP/1.1 200 OK\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
             Last-Modified: Sun, 06 Nov 1994 07:00:00 GMT\r\nContent-Type: text/plain\r\n\
             ETag: \"a\"\r\nCache-Control: max-age=9\r\nNew: c\r\n"
        );
        let other = b"HTTP/1.1 304 Not Modified\r\nETag: \"b\"\r\n\r\n";
        assert_eq!(freshened(KEPT, other), None);
    }

    #[test]
    fn what_frames_a_reply_is_not_kept() {
        let reply = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nAge: 5\r\nA: b\r\n\
            Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(kept(reply), b"HTTP/1.1 200 OK\r\nA: b\r\n");
    }
}
