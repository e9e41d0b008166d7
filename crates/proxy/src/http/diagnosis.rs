//! Names what httparse refused. httparse says only which part of the grammar failed; to find the sender of a broken
//! request one needs to know how.

use httparse::Error;

use super::Refusal;
use super::field::{TOKEN, is_value_byte};

#[cold]
pub(super) fn of_request(head: &[u8], error: Error) -> Refusal {
    // A handshake record of TLS, and nothing else begins so.
    if let [0x16, ..] = head {
        return Refusal::Tls;
    }
    let words = words(head);
    match (error, &words[..]) {
        // Its preface (RFC 9113 Section 3.4).
        (Error::Version, [b"PRI", b"*", b"HTTP/2.0"]) => Refusal::Http2,
        (Error::Version, [_, _, version]) if is_version(version) => Refusal::Version,
        (Error::Token, [method, target, version])
            if is_token(method) && !target.is_empty() && version.starts_with(b"HTTP/") =>
        {
            Refusal::Target
        }
        _ => of_fields(head, error, Refusal::RequestLine),
    }
}

#[cold]
pub(super) fn of_reply(head: &[u8], error: Error) -> Refusal {
    match (error, &words(head)[..]) {
        (Error::Version, [version, ..]) if is_version(version) => Refusal::Version,
        _ => of_fields(head, error, Refusal::StatusLine),
    }
}

fn of_fields(head: &[u8], error: Error, start_line: Refusal) -> Refusal {
    match error {
        Error::TooManyHeaders => Refusal::TooManyFields,
        Error::HeaderName => field_lines(head)
            .find_map(fault_in_name)
            .unwrap_or(Refusal::FieldName),
        Error::HeaderValue => field_lines(head)
            .find_map(fault_in_value)
            .unwrap_or(Refusal::BareCr),
        Error::NewLine if start_line_is_sound(head) => Refusal::BareCr,
        Error::NewLine if first_line(head).contains(&b'\r') => Refusal::BareCr,
        _ => start_line,
    }
}

/// The first line without its end.
fn first_line(head: &[u8]) -> &[u8] {
    let line = head.split(|&byte| byte == b'\n').next().unwrap_or_default();
    line.strip_suffix(b"\r").unwrap_or(line)
}

fn words(head: &[u8]) -> Vec<&[u8]> {
    first_line(head)
        .split(|&byte| byte == b' ')
        .take(4)
        .collect()
}

fn start_line_is_sound(head: &[u8]) -> bool {
    matches!(
        words(head)[..],
        [_, _, b"HTTP/1.0" | b"HTTP/1.1"] | [b"HTTP/1.0" | b"HTTP/1.1", ..]
    )
}

/// The lines after the first, without their ends.
fn field_lines(head: &[u8]) -> impl Iterator<Item = &[u8]> {
    let lines = head.split(|&byte| byte == b'\n').skip(1);
    lines.map(|line| line.strip_suffix(b"\r").unwrap_or(line))
}

/// A version of the right form; one that is spoken here is no error.
fn is_version(word: &[u8]) -> bool {
    matches!(word, [b'H', b'T', b'T', b'P', b'/', major, b'.', minor]
        if major.is_ascii_digit() && minor.is_ascii_digit())
}

fn is_token(word: &[u8]) -> bool {
    !word.is_empty() && word.iter().all(|&byte| TOKEN.contains(byte))
}

fn fault_in_name(line: &[u8]) -> Option<Refusal> {
    if let [b' ' | b'\t', ..] = line {
        return Some(Refusal::Folded);
    }
    let name = line.split(|&byte| byte == b':').next().unwrap_or_default();
    let has_colon = name.len() < line.len();
    if line.is_empty() || has_colon && is_token(name) {
        None
    } else if has_colon && is_token(name.trim_ascii_end()) {
        Some(Refusal::FieldNameSpace)
    } else {
        Some(Refusal::FieldName)
    }
}

fn fault_in_value(line: &[u8]) -> Option<Refusal> {
    let colon = line.iter().position(|&byte| byte == b':')?;
    let fault = line[colon + 1..]
        .iter()
        .find(|&&byte| !is_value_byte(byte))?;
    Some(match fault {
        b'\r' => Refusal::BareCr,
        _ => Refusal::FieldValue,
    })
}
