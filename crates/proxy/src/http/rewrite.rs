//! Writes the head that goes out on the other side.
//!
//! What passes is copied as it came, several lines at a time. Fields that are for one connection only
//! end here (RFC 9110 Section 7.6.1); the proxy says for itself what holds on its own. Fields on which the
//! next reader's view of the message depends are written anew unless they came in the usual form.

use std::io::Write;

use weir_core::client_close;

use super::Refusal;
use super::field;
use super::framing::{BodyKind, Delivery, Method, Version};
use super::head::{ReplyHead, RequestHead};
use super::lines::Lines;
use super::target::{Authority, Target};

/// As often may a request pass through proxies of one name: chains are short, loops are endless.
const MAX_PASSAGES: usize = 8;

/// What the outgoing head of a request says that the incoming does not.
#[derive(Debug, Clone, Copy)]
pub struct RequestEdit<'a> {
    /// This proxy's name in `Via`: a token, such as `weir`.
    pub via: &'a str,
    /// `Host` for clients that send none (HTTP/1.0).
    pub default_host: &'a str,
    /// Tells the server the client's address.
    pub announce: Option<Announcement<'a>>,
    /// The server's connection is not to be used again.
    pub close: bool,
    /// Fields are left out whose name has another character than letters, digits and `-`.
    pub drop_odd_names: bool,
    /// Tells the server that the proxy knows CLIENT_CLOSE.
    pub client_close: bool,
}

/// Tells the server the client's address.
#[derive(Debug, Clone, Copy)]
pub struct Announcement<'a> {
    /// In which field.
    pub field: AddressField,
    /// The client's IP address as text, without port or brackets.
    pub client: &'a str,
    /// The client is a proxy whose own word on its clients is passed on; otherwise what it says in
    /// either field is left out.
    pub trusted: bool,
}

/// The field that carries a client's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressField {
    /// `X-Forwarded-For: 192.0.2.1`
    XForwardedFor,
    /// `Forwarded: for=192.0.2.1` (RFC 7239)
    Forwarded,
}

/// What the outgoing head of a reply says that the incoming does not.
#[derive(Debug, Clone, Copy)]
pub struct ReplyEdit<'a> {
    /// This proxy's name in `Via`.
    pub via: &'a str,
    /// The time now, for servers that send none (RFC 9110 Section 6.6.1): an HTTP date.
    pub date: Option<&'a str>,
    /// How the reply reaches the client.
    pub delivery: Delivery,
    /// The client's version.
    pub client: Version,
}

/// Appends the head that goes to the server; an absolute target becomes a path, its authority
/// `Host` (RFC 9112 Section 3.2.2).
///
/// # Errors
/// [`Refusal::Loop`]; `out` is as before.
pub fn request(head: &RequestHead, edit: &RequestEdit, out: &mut Vec<u8>) -> Result<(), Refusal> {
    let RequestHead { lines, scan, .. } = head;
    if scan.has_via && passages(lines, edit.via) >= MAX_PASSAGES {
        return Err(Refusal::Loop);
    }
    let mut dropped = scan.dropped;
    if edit.drop_odd_names {
        dropped.insert_all(scan.odd_names);
    }
    match edit.announce {
        Some(Announcement {
            trusted: true,
            field,
            ..
        }) => dropped.insert_all(match field {
            AddressField::XForwardedFor => scan.x_forwarded_for,
            AddressField::Forwarded => scan.forwarded,
        }),
        Some(_) => {
            dropped.insert_all(scan.x_forwarded_for);
            dropped.insert_all(scan.forwarded);
        }
        None => {}
    }
    let authority = match head.target {
        Target::Absolute { authority, .. } | Target::Authority(authority) => Some(authority),
        Target::Origin(_) | Target::Asterisk => None,
    };
    if authority.is_some() {
        dropped.insert_all(scan.host_line);
    }
    let from = match request_line_is_kept(head) {
        true => 0,
        false => {
            write_request_line(head, out);
            lines.after_start_line()
        }
    };
    // Host comes first: some servers choose by it what they make of the rest.
    match (authority, head.host) {
        (Some(Authority { text, .. }), _) => append_field(out, "Host", text.as_bytes()),
        (None, None) => append_field(out, "Host", edit.default_host.as_bytes()),
        (None, Some(_)) => {}
    }
    lines.copy(from, dropped, scan.anew, out);
    if let Some(count) = head.max_forwards {
        append_number(out, "Max-Forwards", count.saturating_sub(1));
    }
    if let Some(announcement) = edit.announce {
        announce(head, announcement, out);
    }
    if scan.te_trailers {
        append_field(out, "TE", b"trailers");
    }
    via(out, head.facts.version, edit.via);
    connection_of_request(head, edit, out);
    out.extend_from_slice(b"\r\n");
    Ok(())
}

/// Appends the head that goes to the client. Interim replies ([`ReplyFacts::is_interim`]) are only
/// for clients of HTTP/1.1.
///
/// [`ReplyFacts::is_interim`]: super::ReplyFacts::is_interim
pub fn reply(head: &ReplyHead, edit: &ReplyEdit, out: &mut Vec<u8>) {
    let ReplyHead { facts, lines, scan } = head;
    let mut dropped = scan.dropped;
    // Also in a reply to HEAD, which has no chunks to take the framing from.
    if edit.client == Version::Http10 && scan.has_coding() {
        dropped.insert_all(scan.framing);
    }
    let from = match status_line_is_kept(lines) {
        true => 0,
        false => {
            write_status_line(lines, out);
            lines.after_start_line()
        }
    };
    lines.copy(from, dropped, scan.anew, out);
    match edit.date {
        Some(date) if !scan.has_date && facts.status >= 200 => {
            append_field(out, "Date", date.as_bytes());
        }
        _ => {}
    }
    via(out, facts.version, edit.via);
    connection_of_reply(head, edit, out);
    out.extend_from_slice(b"\r\n");
}

fn request_line_is_kept(head: &RequestHead) -> bool {
    let has_host = head.host.is_some();
    let is_path = matches!(head.target, Target::Origin(_) | Target::Asterisk);
    has_host && is_path && head.facts.version == Version::Http11
}

fn write_request_line(head: &RequestHead, out: &mut Vec<u8>) {
    out.extend_from_slice(head.method.as_bytes());
    out.push(b' ');
    match head.target {
        Target::Origin(path) => out.extend_from_slice(path.as_bytes()),
        Target::Authority(authority) => out.extend_from_slice(authority.text.as_bytes()),
        Target::Asterisk => out.push(b'*'),
        Target::Absolute { path: "", .. } if head.facts.method == Method::Options => {
            out.push(b'*');
        }
        Target::Absolute { path, .. } => {
            if !path.starts_with('/') {
                out.push(b'/');
            }
            out.extend_from_slice(path.as_bytes());
        }
    }
    out.extend_from_slice(b" HTTP/1.1\r\n");
}

const STATUS: std::ops::Range<usize> = "HTTP/1.1 ".len().."HTTP/1.1 200".len();

fn status_line_is_kept(lines: &Lines) -> bool {
    lines.raw.starts_with(b"HTTP/1.1 ") && lines.raw[STATUS.end] == b' '
}

fn write_status_line(lines: &Lines, out: &mut Vec<u8>) {
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(&lines.raw[STATUS]);
    out.push(b' ');
    if let Some(reason) = lines.raw.get(STATUS.end + 1..lines.start_line) {
        out.extend_from_slice(reason);
    }
    out.extend_from_slice(b"\r\n");
}

fn connection_of_request(head: &RequestHead, edit: &RequestEdit, out: &mut Vec<u8>) {
    let options = [
        (head.facts.upgrade, "upgrade"),
        (head.scan.te_trailers, "TE"),
        (edit.client_close, client_close::OPTION),
        (edit.close, "close"),
    ];
    let mut separator: &[u8] = b"Connection: ";
    for (_, option) in options.iter().filter(|(is_set, _)| *is_set) {
        out.extend_from_slice(separator);
        out.extend_from_slice(option.as_bytes());
        separator = b", ";
    }
    if options.iter().any(|(is_set, _)| *is_set) {
        out.extend_from_slice(b"\r\n");
    }
}

fn connection_of_reply(head: &ReplyHead, edit: &ReplyEdit, out: &mut Vec<u8>) {
    let option: &[u8] = match (head.facts.status, head.facts.body) {
        (101, _) => b"upgrade",
        (100..200, _) | (_, BodyKind::Tunnel) => return,
        _ if !edit.delivery.keep_alive => b"close",
        _ if edit.delivery.asks => client_close::OPTION.as_bytes(),
        _ if edit.client == Version::Http10 => b"keep-alive",
        _ => return,
    };
    append_field(out, "Connection", option);
}

/// Adds the client to the list of addresses that came with the request. All in one line: some servers read only the
/// first.
fn announce(head: &RequestHead, announcement: Announcement, out: &mut Vec<u8>) {
    let Announcement {
        field,
        client,
        trusted,
    } = announcement;
    let (name, said) = match field {
        AddressField::XForwardedFor => ("X-Forwarded-For", head.scan.x_forwarded_for),
        AddressField::Forwarded => ("Forwarded", head.scan.forwarded),
    };
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    if trusted {
        let said = said.without(head.scan.dropped);
        let values = said.map(|index| head.lines.fields[index].value);
        for value in values.filter(|value| !value.is_empty()) {
            out.extend_from_slice(value);
            out.extend_from_slice(b", ");
        }
    }
    let (before, after): (&[u8], &[u8]) = match field {
        AddressField::XForwardedFor => (b"", b""),
        AddressField::Forwarded if client.contains(':') => (b"for=\"[", b"]\""),
        AddressField::Forwarded => (b"for=", b""),
    };
    for part in [before, client.as_bytes(), after, b"\r\n"] {
        out.extend_from_slice(part);
    }
}

/// How often a proxy of this name stands in `Via`.
fn passages(lines: &Lines, name: &str) -> usize {
    let members = lines.values("via").flat_map(field::members);
    members
        .filter(|member| {
            let received_by = member.split(|byte| matches!(byte, b' ' | b'\t')).nth(1);
            received_by.is_some_and(|by| by.eq_ignore_ascii_case(name.as_bytes()))
        })
        .count()
}

/// RFC 9110 Section 7.6.3. A line of its own: lines of one name are one list.
fn via(out: &mut Vec<u8>, received: Version, name: &str) {
    out.extend_from_slice(match received {
        Version::Http10 => b"Via: 1.0 ",
        Version::Http11 => b"Via: 1.1 ",
    });
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Appends one field line.
pub fn append_field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    for part in [name.as_bytes(), b": ", value, b"\r\n"] {
        out.extend_from_slice(part);
    }
}

/// Appends one field line.
pub fn append_number(out: &mut Vec<u8>, name: &str, value: u64) {
    let written = write!(out, "{name}: {value}\r\n");
    written.expect("a vector takes every write");
}
