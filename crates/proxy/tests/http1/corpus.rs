//! Our own corpus, written from RFC 9112, RFC 9110 and what is publicly known of request smuggling:
//! rows of a claim, bytes and the verdict.

use weir_proxy::http::rewrite::{self, AddressField, Announcement, ReplyEdit, RequestEdit};
use weir_proxy::http::{
    ChunkScanner, Delivery, FieldSlots, Limits, Piece, Role, Version, read_reply, read_request,
};

use crate::reader::{self, by};

/// `\r`, `\n`, `\t`, `\0`, `\\` and `\xHH` stand for their bytes.
pub fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        let (&escape, after) = rest.split_first().expect("an escape is complete");
        rest = after;
        bytes.push(match escape {
            b'r' => b'\r',
            b'n' => b'\n',
            b't' => b'\t',
            b'0' => 0,
            b'\\' => b'\\',
            b'x' => {
                let (hex, after) = rest.split_at(2);
                rest = after;
                let hex = std::str::from_utf8(hex).expect("ASCII");
                u8::from_str_radix(hex, 16).expect("two hexadecimal digits")
            }
            _ => panic!("no such escape: {text}"),
        });
    }
    bytes
}

/// The rows of a table of so many columns.
pub fn rows<const N: usize>(table: &str) -> Vec<[&str; N]> {
    let lines = table
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let columns: Vec<_> = line.splitn(N, " | ").collect();
            columns
                .try_into()
                .unwrap_or_else(|_| panic!("not {N} columns: {line}"))
        })
        .collect()
}

/// Adds `Host` to a request of another's corpus.
pub fn give_host(input: &mut Vec<u8>) {
    let version = b" HTTP/1.1\r\n";
    let line = input
        .windows(version.len())
        .position(|bytes| bytes == version);
    let end = line.expect("a request line") + version.len();
    input.splice(end..end, *b"Host: corpus\r\n");
}

/// Steps in which each row's bytes arrive. One byte at a time is what a hostile peer sends.
const STEPS: [usize; 4] = [usize::MAX, 1, 2, 7];

/// Fails with all rows whose verdict is another, not only the first.
fn assert_no_differences(differences: &[String]) {
    assert!(differences.is_empty(), "\n{}\n", differences.join("\n"));
}

/// However the bytes arrive, the verdict is the same; only which fault of a refused message is found
/// first may depend on it.
fn difference(wanted: &str, got: &str, step: usize, claim: &str) -> Option<String> {
    let is_refusal = |verdict: &str| verdict.starts_with(['4', '5']);
    let same = match step {
        usize::MAX => wanted == got,
        _ => wanted == got || is_refusal(wanted) && is_refusal(got),
    };
    (!same).then(|| format!("{claim}: wanted {wanted}, got {got} in steps of {step}"))
}

#[test]
fn requests_are_read_as_the_corpus_says() {
    let rows = rows::<3>(include_str!("requests.txt"));
    assert!(rows.len() >= 240, "rows are missing");
    let mut differences = Vec::new();
    for [wanted, claim, bytes] in rows {
        let input = unescape(bytes);
        for step in STEPS {
            let outcome = reader::request(&input, &mut by(step, input.len()));
            let got = reader::describe_request(outcome, &input);
            differences.extend(difference(wanted, &got, step, claim));
        }
    }
    assert_no_differences(&differences);
}

#[test]
fn replies_are_read_as_the_corpus_says() {
    let rows = rows::<4>(include_str!("replies.txt"));
    assert!(rows.len() >= 70, "rows are missing");
    let mut differences = Vec::new();
    for [wanted, request, claim, bytes] in rows {
        let input = unescape(bytes);
        let request = reader::request_of(request);
        for step in STEPS {
            let outcome = reader::reply(&input, &request, &mut by(step, input.len()));
            let got = reader::describe_reply(outcome, &input);
            differences.extend(difference(wanted, &got, step, claim));
        }
    }
    assert_no_differences(&differences);
}

#[test]
fn chunked_bodies_are_read_as_the_corpus_says() {
    let rows = rows::<3>(include_str!("chunked.txt"));
    assert!(rows.len() >= 85, "rows are missing");
    let mut differences = Vec::new();
    for [wanted, claim, bytes] in rows {
        let input = unescape(bytes);
        for step in STEPS {
            let got = match reader::chunks(&input, 0, &mut by(step, input.len())) {
                Err(reason) => format!("{} {}", reason.status(), reason.name()),
                Ok(None) => "more".to_owned(),
                Ok(Some(len)) => {
                    let mut text = format!("data {}", data_of(&input[..len]).len());
                    reader::describe_rest(&mut text, len, &input);
                    text
                }
            };
            differences.extend(difference(wanted, &got, step, claim));
        }
    }
    assert_no_differences(&differences);
}

/// The data of a whole chunked body.
pub fn data_of(body: &[u8]) -> Vec<u8> {
    let mut scanner = ChunkScanner::of_reply();
    let (mut data, mut at) = (Vec::new(), 0);
    loop {
        match scanner.piece(&body[at..]).expect("a valid body") {
            Piece::Framing(len) => at += len,
            Piece::Data(len) => {
                data.extend_from_slice(&body[at..at + len]);
                at += len;
            }
            Piece::End => return data,
        }
    }
}

#[test]
fn heads_are_rewritten_as_the_corpus_says() {
    let mut lines = include_str!("rewrite.txt").lines();
    let mut differences = Vec::new();
    let mut cases = 0;
    while let Some(line) = lines.next() {
        let Some(came) = line.strip_prefix("< ") else {
            continue;
        };
        let wanted = lines.next().and_then(|line| line.strip_prefix("> "));
        let wanted = unescape(wanted.expect("what goes out follows what came"));
        let claim = claim_before(include_str!("rewrite.txt"), line);
        let (how, claim) = claim
            .split_once(": ")
            .expect("a claim names the message's kind");
        let got = match how.starts_with("request") {
            true => rewritten_request(&unescape(came), how),
            false => rewritten_reply(&unescape(came), how),
        };
        cases += 1;
        if got != wanted {
            let (wanted, got) = (wanted.escape_ascii(), got.escape_ascii());
            differences.push(format!("{claim}:\n  wanted {wanted}\n  got    {got}"));
        }
    }
    assert!(cases >= 70, "cases are missing");
    assert_no_differences(&differences);
}

fn claim_before<'a>(table: &'a str, line: &'a str) -> &'a str {
    let start = line.as_ptr() as usize - table.as_ptr() as usize;
    let before = table[..start].trim_end().lines().next_back();
    before
        .and_then(|line| line.strip_prefix("# "))
        .expect("a claim")
}

fn rewritten_request(came: &[u8], how: &str) -> Vec<u8> {
    let field = match how.contains("forwarded") {
        true => AddressField::Forwarded,
        false => AddressField::XForwardedFor,
    };
    let announces = how.contains("announce") || how.contains("forwarded");
    let announcement = Announcement {
        field,
        client: "192.0.2.1",
        trusted: how.contains("trusted"),
    };
    let edit = RequestEdit {
        via: "weir",
        default_host: "default.example",
        announce: announces.then_some(announcement),
        close: how.contains("close"),
        drop_odd_names: !how.contains("odd"),
        client_close: how.contains("knows"),
    };
    let mut slots = FieldSlots::new();
    let head = read_request(came, 0, &Limits::default(), &mut slots);
    let head = head.expect("a valid head").expect("a whole one");
    let mut out = Vec::new();
    rewrite::request(&head, &edit, &mut out).expect("no loop");
    out
}

fn rewritten_reply(came: &[u8], how: &str) -> Vec<u8> {
    let mut request = reader::request_of(if how.contains("HEAD") { "HEAD" } else { "GET" });
    if how.contains("to 1.0") {
        request.version = Version::Http10;
    }
    let mut slots = FieldSlots::new();
    let head = read_reply(came, 0, &request, &Limits::default(), &mut slots);
    let head = head.expect("a valid head").expect("a whole one");
    let closing = how.contains("close");
    let delivery = Delivery::of(&request, &head.facts, Role::Reverse, closing);
    let edit = ReplyEdit {
        via: "weir",
        date: Some("Sun, 06 Nov 1994 08:49:37 GMT"),
        delivery: match how.contains("asks") {
            true => delivery.and_asks(),
            false => delivery,
        },
        client: request.version,
    };
    let mut out = Vec::new();
    rewrite::reply(&head, &edit, &mut out);
    out
}
