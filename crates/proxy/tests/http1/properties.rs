//! What must hold for any bytes: proptest prints the seed of a failure.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::ValueTree;
use proptest::test_runner::{RngSeed, TestRunner};

use weir_proxy::http::rewrite::{self, AddressField, Announcement, ReplyEdit, RequestEdit};
use weir_proxy::http::{
    BodyKind, Delivery, FieldSlots, Limits, RequestFacts, Role, read_reply, read_request,
};
use weir_testbed::seed::seed;

use crate::corpus::data_of;
use crate::reader::{self, Message, Outcome, by};

/// Pieces of heads: what is valid, what nearly is, and what smuggles.
const PIECES: [&[u8]; 64] = [
    b"GET",
    b"POST",
    b"CONNECT",
    b"OPTIONS",
    b"HEAD",
    b" ",
    b"/",
    b"*",
    b"http://b",
    b"b:443",
    b"?q",
    b"#",
    b" HTTP/1.1",
    b" HTTP/1.0",
    b" HTTP/2.0",
    b"\r\n",
    b"\r\n",
    b"\r\n",
    b"\n",
    b"\r",
    b"\r\n\r\n",
    b"\r\n\r\n",
    b"\n\n",
    b"Host: a",
    b"Host: b",
    b"Host:",
    b"Content-Length: 5",
    b"Content-Length: 05",
    b"Content-Length: ",
    b"Content-Length : 5",
    b"5, 5",
    b"5",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding:",
    b"chunked",
    b"gzip, ",
    b"\x0b",
    b"\t",
    b"Connection: ",
    b"close",
    b"keep-alive",
    b"Upgrade",
    b", ",
    b"Upgrade: websocket",
    b"TE: trailers",
    b"Expect: 100-continue",
    b"X: y",
    b"X-Forwarded-For: c",
    b"Via: 1.0 d",
    b"Max-Forwards: 1",
    b":",
    b"\0",
    b"\xff",
    b"\"",
    b";a=b",
    b"0\r\n\r\n",
    b"5\r\nhello\r\n",
    b"a",
    b"f",
    b"hello",
    b"HTTP/1.1 200 OK",
    b"HTTP/1.1 204 No",
    b"HTTP/1.0 304 ",
    b"Date: e",
];

/// Bytes that a failure shows as text.
#[derive(Clone)]
struct Input(Vec<u8>);

impl std::ops::Deref for Input {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Debug for Input {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

/// Soups of pieces: mostly refused.
fn soup() -> impl Strategy<Value = Input> {
    vec(select(&PIECES[..]), 0..40).prop_map(|pieces| Input(pieces.concat()))
}

fn field_line() -> impl Strategy<Value = Vec<u8>> {
    let known = select(vec![
        "Content-Length: 5",
        "Content-Length: +5",
        "content-length: 0005",
        "Content-Length:5\t ",
        "Content-Length:\t \t00",
        "Content_Length: 7",
        "Transfer-Encoding: chunked",
        "Transfer-Encoding:\tCHUNKED \t",
        "Transfer_Encoding: chunked",
        "X.Y: z",
        "Transfer-Encoding: gzip, chunked",
        "Connection: close",
        "Connection: x-hop, keep-alive",
        "Connection: upgrade",
        "Connection: client-ends",
        "Upgrade: websocket",
        "Upgrade:websocket\t",
        "Expect: 100-continue",
        "Expect:  100-Continue ",
        "TE: trailers",
        "X-Hop: 1",
        "X-Forwarded-For: 10.0.0.1",
        "Forwarded: for=10.0.0.1",
        "Via: 1.1 other",
        "Max-Forwards: 7",
        "Proxy-Authorization: Basic eDp5",
        "Host: second",
        "Keep-Alive: timeout=5",
    ]);
    let other = "[A-Za-z-]{1,12}:[ \t]{0,2}[ -~\t]{0,20}";
    prop_oneof![
        known.prop_map(|line: &str| line.as_bytes().to_vec()),
        other.prop_map(String::into_bytes),
    ]
}

/// Heads that are well-formed line by line: mostly taken. What follows them looks like a request.
fn request() -> impl Strategy<Value = Input> {
    let start = select(vec![
        "GET / HTTP/1.1",
        "GET http://b/c HTTP/1.1",
        "GET http://b?c HTTP/1.0",
        "POST /a?b HTTP/1.1",
        "POST /a HTTP/1.0",
        "CONNECT b:443 HTTP/1.1",
        "OPTIONS * HTTP/1.1",
        "OPTIONS http://b HTTP/1.1",
        "HEAD / HTTP/1.1",
        "BREW / HTTP/1.1",
        "CLIENT_CLOSE * HTTP/1.1",
    ]);
    (start, vec(field_line(), 0..8), any::<bool>()).prop_map(|(start, fields, empty_line)| {
        let mut head = Vec::new();
        if empty_line {
            head.extend_from_slice(b"\r\n");
        }
        head.extend_from_slice(start.as_bytes());
        head.extend_from_slice(b"\r\nHost: a\r\n");
        for field in fields {
            head.extend_from_slice(&field);
            head.extend_from_slice(b"\r\n");
        }
        head.extend_from_slice(b"\r\n");
        Input(head)
    })
}

fn reply() -> impl Strategy<Value = Input> {
    let start = select(vec![
        "HTTP/1.1 200 OK",
        "HTTP/1.0 200 OK",
        "HTTP/1.1 204",
        "HTTP/1.1 304 Not Modified",
        "HTTP/1.1 100 Continue",
        "HTTP/1.1 101 Switching Protocols",
        "HTTP/1.1 404 ",
    ]);
    (start, vec(field_line(), 0..8)).prop_map(|(start, fields)| {
        let mut head = start.as_bytes().to_vec();
        head.extend_from_slice(b"\r\n");
        for field in fields {
            head.extend_from_slice(&field);
            head.extend_from_slice(b"\r\n");
        }
        head.extend_from_slice(b"\r\n");
        Input(head)
    })
}

/// A valid chunked body, with the data that it carries.
fn chunked() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    let extension = select(vec!["", ";a", ";a=b", " ; a=\"b\\\";\" ;c"]);
    let chunk = (vec(any::<u8>(), 1..50), extension, 0..3_usize);
    let trailers = select(vec!["", "A: b\r\n", "A: b\r\nC:\r\n"]);
    (vec(chunk, 0..6), trailers).prop_map(|(chunks, trailers)| {
        let (mut body, mut all) = (Vec::new(), Vec::new());
        for (data, extension, zeros) in chunks {
            let size = format!("{}{:x}{extension}\r\n", "0".repeat(zeros), data.len());
            body.extend_from_slice(size.as_bytes());
            body.extend_from_slice(&data);
            body.extend_from_slice(b"\r\n");
            all.extend_from_slice(&data);
        }
        body.extend_from_slice(format!("0\r\n{trailers}\r\n").as_bytes());
        (body, all)
    })
}

/// Any ascending steps through so many bytes.
fn steps(cuts: &[prop::sample::Index], len: usize) -> impl Iterator<Item = usize> {
    let mut at: Vec<_> = cuts.iter().map(|cut| cut.index(len + 1)).collect();
    at.sort_unstable();
    at.into_iter().chain([len])
}

/// What may not depend on how the bytes arrive. Which fault of a refused message is found first may.
fn meaning<F: Copy>(outcome: Outcome<Message<F>>) -> Result<Option<(F, usize)>, ()> {
    match outcome {
        Ok(message) => Ok(message.map(|message| (message.facts, message.len))),
        Err(_) => Err(()),
    }
}

/// Refused now or with the bytes that are missing: the same to a peer that has sent all it has.
fn is_taken<F>(meaning: &Result<Option<F>, ()>) -> bool {
    matches!(meaning, Ok(Some(_)))
}

fn cuts() -> impl Strategy<Value = Vec<prop::sample::Index>> {
    vec(any::<prop::sample::Index>(), 0..12)
}

/// `WEIR_SEED` runs a failure again.
fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 2048,
        rng_seed: RngSeed::Fixed(seed()),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// The properties say nothing about heads that are never generated.
#[test]
fn generated_heads_are_often_taken_and_often_refused() {
    let mut runner = TestRunner::new(config());
    let to = reader::request_of("GET upgrade");
    let (mut requests, mut replies) = (0, 0);
    for _ in 0..1000 {
        let input = request().new_tree(&mut runner).expect("a tree").current();
        let head = read_request(&input, 0, &Limits::default(), &mut FieldSlots::new()).is_ok();
        requests += usize::from(head);
        let input = reply().new_tree(&mut runner).expect("a tree").current();
        let head = read_reply(&input, 0, &to, &Limits::default(), &mut FieldSlots::new()).is_ok();
        replies += usize::from(head);
    }
    assert!((200..900).contains(&requests), "{requests} of 1000 taken");
    assert!((200..900).contains(&replies), "{replies} of 1000 taken");
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_request_means_the_same_however_it_arrives(
        input in prop_oneof![soup(), request()], cuts in cuts()
    ) {
        let whole = meaning(reader::request(&input, &mut by(usize::MAX, input.len())));
        let split = meaning(reader::request(&input, &mut steps(&cuts, input.len())));
        prop_assert_eq!(is_taken(&whole), is_taken(&split));
        if is_taken(&whole) {
            prop_assert_eq!(whole, split);
        }
    }

    #[test]
    fn a_reply_means_the_same_however_it_arrives(
        input in prop_oneof![soup(), reply()], cuts in cuts()
    ) {
        let to = reader::request_of("GET upgrade");
        let whole = meaning(reader::reply(&input, &to, &mut by(usize::MAX, input.len())));
        let split = meaning(reader::reply(&input, &to, &mut steps(&cuts, input.len())));
        prop_assert_eq!(is_taken(&whole), is_taken(&split));
        if is_taken(&whole) {
            prop_assert_eq!(whole, split);
        }
    }

    #[test]
    fn what_goes_out_is_one_request_of_the_same_meaning(
        input in prop_oneof![1 => soup(), 4 => request()], trusted in any::<bool>(),
        drop_odd_names in any::<bool>(), client_close in any::<bool>()
    ) {
        let mut slots = FieldSlots::new();
        let Ok(Some(head)) = read_request(&input, 0, &Limits::default(), &mut slots) else {
            return Ok(());
        };
        let mut out = Vec::new();
        let announcement = Announcement {
            field: AddressField::XForwardedFor,
            client: "192.0.2.1",
            trusted,
        };
        let edit = RequestEdit {
            via: "weir",
            default_host: "default.example",
            announce: Some(announcement),
            close: false,
            drop_odd_names,
            client_close,
        };
        rewrite::request(&head, &edit, &mut out).expect("no loop");
        assert_is_canonical(&out);
        prop_assert!(!drop_odd_names || names(&out).all(|name| is_restricted(&name)));
        let sent = head.facts;
        let head_len = out.len();
        // A body that looks like a request must not be one to the next reader.
        out.extend_from_slice(b"GET /hidden HTTP/1.1\r\nHost: victim\r\n\r\n");
        assert_is_one_request(&out, &sent);
        let mut slots = FieldSlots::new();
        let again = read_request(&out, 0, &Limits::default(), &mut slots);
        let received = again.expect("valid again").expect("whole again").facts;
        prop_assert_eq!(
            RequestFacts {
                len: head_len,
                version: received.version,
                keep_alive: true,
                client_close,
                ..sent
            },
            received
        );
    }

    #[test]
    fn what_goes_out_is_one_reply_of_the_same_meaning(
        input in prop_oneof![1 => soup(), 4 => reply()], upgrade in any::<bool>()
    ) {
        let to = reader::request_of(if upgrade { "GET upgrade" } else { "GET" });
        let mut slots = FieldSlots::new();
        let Ok(Some(head)) = read_reply(&input, 0, &to, &Limits::default(), &mut slots) else {
            return Ok(());
        };
        let delivery = Delivery::of(&to, &head.facts, Role::Reverse, false);
        let edit = ReplyEdit { via: "weir", date: Some("D"), delivery, client: to.version };
        let mut out = Vec::new();
        rewrite::reply(&head, &edit, &mut out);
        assert_is_canonical(&out);
        let sent = head.facts;
        let mut slots = FieldSlots::new();
        let again = read_reply(&out, 0, &to, &Limits::default(), &mut slots);
        let received = again.expect("valid again").expect("whole again").facts;
        prop_assert_eq!(received.len, out.len());
        prop_assert_eq!((received.status, received.body), (sent.status, sent.body));
        if !sent.is_interim() && sent.body != BodyKind::Tunnel {
            prop_assert_eq!(received.keep_alive, delivery.keep_alive);
        }
    }

    #[test]
    fn a_chunked_body_ends_where_it_ends_and_carries_its_data(
        (body, data) in chunked(), rest in "[ -~]{0,20}", cuts in cuts()
    ) {
        let input = [&body[..], rest.as_bytes()].concat();
        let end = reader::chunks(&input, 0, &mut steps(&cuts, input.len()));
        prop_assert_eq!(end, Ok(Some(body.len())));
        prop_assert_eq!(data_of(&body), data);
        for cut in cuts {
            let len = cut.index(body.len());
            let end = reader::chunks(&body[..len], 0, &mut by(usize::MAX, len));
            prop_assert_eq!(end, Ok(None), "a body that is cut off has no end");
        }
    }

    #[test]
    fn a_damaged_chunked_body_ends_the_same_however_it_arrives(
        (mut body, _) in chunked(), at in any::<prop::sample::Index>(), byte in any::<u8>(),
        cuts in cuts()
    ) {
        let at = at.index(body.len());
        body[at] = byte;
        let whole = reader::chunks(&body, 0, &mut by(usize::MAX, body.len()));
        let split = reader::chunks(&body, 0, &mut steps(&cuts, body.len()));
        prop_assert_eq!(whole, split);
        prop_assert_eq!(whole, model::chunks(&body));
    }
}

/// The lines between the first and the empty one. Only the first and values may have bytes beyond ASCII (RFC 9110,
/// obs-text).
fn lines(head: &[u8]) -> Vec<String> {
    let head = String::from_utf8_lossy(head);
    let lines = head.split("\r\n").skip(1);
    let lines = lines.filter(|line| !line.is_empty());
    lines.map(str::to_owned).collect()
}

fn names(head: &[u8]) -> impl Iterator<Item = String> {
    let name = |line: String| line.split(':').next().unwrap_or_default().to_owned();
    lines(head).into_iter().map(name)
}

fn is_restricted(name: &str) -> bool {
    name.bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// Fields by which the next reader finds the message's end, its server and what becomes of its connection have one space
/// in front of their value and nothing behind it, and the value in one form.
fn assert_is_canonical(head: &[u8]) {
    for line in lines(head) {
        let (name, rest) = line.split_once(':').expect("a field");
        let name = name.to_ascii_lowercase();
        let value = rest.trim_matches([' ', '\t']);
        let is_canonical = match name.as_str() {
            "content-length" => value.parse::<u64>().is_ok_and(|n| n.to_string() == value),
            "transfer-encoding" => value == "chunked",
            "host" | "upgrade" | "connection" => true,
            "expect" => !value.eq_ignore_ascii_case("100-continue") || value == "100-continue",
            _ => continue,
        };
        assert!(is_canonical && rest == format!(" {value}"), "{line:?}");
    }
}

/// By httparse alone, and by the fewest assumptions: one end of the head, one frame.
fn assert_is_one_request(out: &[u8], sent: &RequestFacts) {
    let mut fields = [httparse::EMPTY_HEADER; 128];
    let mut request = httparse::Request::new(&mut fields);
    let len = request.parse(out).expect("valid to httparse").unwrap();
    let head = &out[..len];
    let line_ends = head.windows(2).filter(|bytes| bytes == b"\r\n").count();
    let feeds = head.iter().filter(|&&byte| byte == b'\n').count();
    let returns = head.iter().filter(|&&byte| byte == b'\r').count();
    assert_eq!(
        (feeds, returns),
        (line_ends, line_ends),
        "only CRLF ends lines"
    );
    assert!(head.ends_with(b"\r\n\r\n"));
    let values = |name: &str| -> Vec<&[u8]> {
        let fields = request.headers.iter();
        let same = fields.filter(|field| field.name.eq_ignore_ascii_case(name));
        same.map(|field| field.value).collect()
    };
    let lengths = values("content-length");
    let codings = values("transfer-encoding");
    match sent.body {
        BodyKind::Length(length) => {
            assert_eq!(
                (lengths, codings.len()),
                (vec![length.to_string().as_bytes()], 0)
            );
        }
        BodyKind::Chunked => assert!(lengths.is_empty() && codings.len() == 1),
        _ => assert!(lengths.iter().all(|&length| length == b"0") && codings.is_empty()),
    }
    assert_eq!(values("host").len(), 1);
    assert_eq!(values("x-forwarded-for").len(), 1);
}

/// A second reader of chunked bodies: simple, on whole buffers, by the grammar of RFC 9112 Section 7.1.
mod model {
    use weir_proxy::http::Refusal;

    type Outcome = Result<Option<usize>, Refusal>;

    /// Where the body at the start of `input` ends.
    pub fn chunks(input: &[u8]) -> Outcome {
        let mut at = 0;
        loop {
            let Some((size, line_end)) = size(input, at)? else {
                return Ok(None);
            };
            at = line_end;
            if size == 0 {
                return trailers(input, at);
            }
            let Some(data_end) = usize::try_from(size)
                .ok()
                .and_then(|size| at.checked_add(size))
            else {
                return Ok(None);
            };
            if data_end > input.len() {
                return Ok(None);
            }
            match &input[data_end..] {
                [b'\r', b'\n', ..] => at = data_end + 2,
                [] | [b'\r'] => return Ok(None),
                _ => return Err(Refusal::ChunkEnd),
            }
        }
    }

    fn size(input: &[u8], at: usize) -> Result<Option<(u64, usize)>, Refusal> {
        let rest = &input[at..];
        let digits = rest
            .iter()
            .take_while(|byte| byte.is_ascii_hexdigit())
            .count();
        if digits > 16 {
            return Err(Refusal::ChunkSize);
        }
        let Some(&after) = rest.get(digits) else {
            return Ok(None);
        };
        if digits == 0 || !b"\r; \t".contains(&after) {
            return Err(Refusal::ChunkSize);
        }
        let text = std::str::from_utf8(&rest[..digits]).expect("ASCII");
        let size = u64::from_str_radix(text, 16).expect("16 digits fit");
        let Some(end) = extensions(&rest[digits..])? else {
            return Ok(None);
        };
        match &rest[digits + end..] {
            [b'\r', b'\n', ..] => Ok(Some((size, at + digits + end + 2))),
            [b'\r'] => Ok(None),
            _ => Err(Refusal::ChunkSize),
        }
    }

    /// Where the extensions end at the start of `rest`: at a CR.
    fn extensions(rest: &[u8]) -> Outcome {
        let mut at = 0;
        loop {
            let start = at;
            at = skip(rest, at, is_space);
            match rest.get(at) {
                None => return Ok(None),
                Some(b'\r') if at == start => return Ok(Some(at)),
                Some(b';') => at = skip(rest, at + 1, is_space),
                Some(_) => return Err(Refusal::ChunkExtension),
            }
            let name = at;
            at = skip(rest, at, is_token);
            match rest.get(at) {
                None => return Ok(None),
                Some(_) if at == name => return Err(Refusal::ChunkExtension),
                Some(_) => {}
            }
            let equals = skip(rest, at, is_space);
            match rest.get(equals) {
                None => return Ok(None),
                Some(b'=') => at = skip(rest, equals + 1, is_space),
                Some(_) => continue,
            }
            at = match rest.get(at) {
                None => return Ok(None),
                Some(b'"') => match quoted(rest, at + 1)? {
                    None => return Ok(None),
                    Some(end) => end,
                },
                Some(&byte) if is_token(byte) => skip(rest, at, is_token),
                Some(_) => return Err(Refusal::ChunkExtension),
            };
        }
    }

    fn quoted(rest: &[u8], mut at: usize) -> Outcome {
        loop {
            match &rest[at..] {
                [] | [b'\\'] => return Ok(None),
                [b'"', ..] => return Ok(Some(at + 1)),
                [b'\\', byte, ..] if is_value(*byte) => at += 2,
                [b'\\', ..] => return Err(Refusal::ChunkExtension),
                [byte, ..] if is_value(*byte) => at += 1,
                _ => return Err(Refusal::ChunkExtension),
            }
        }
    }

    fn trailers(input: &[u8], mut at: usize) -> Outcome {
        loop {
            match &input[at..] {
                [] | [b'\r'] => return Ok(None),
                [b'\r', b'\n', ..] => return Ok(Some(at + 2)),
                _ => {}
            }
            let name_end = skip(input, at, is_token);
            let name = input[at..name_end].to_ascii_lowercase();
            match input.get(name_end) {
                None => return Ok(None),
                Some(b':') if name_end > at => {}
                Some(_) => return Err(Refusal::Trailer),
            }
            if [&b"host"[..], b"content-length", b"transfer-encoding"].contains(&&name[..]) {
                return Err(Refusal::Trailer);
            }
            let value_end = skip(input, name_end + 1, is_value);
            match &input[value_end..] {
                [] | [b'\r'] => return Ok(None),
                [b'\r', b'\n', ..] => at = value_end + 2,
                _ => return Err(Refusal::Trailer),
            }
        }
    }

    fn skip(bytes: &[u8], from: usize, is_part: fn(u8) -> bool) -> usize {
        let rest = bytes[from..].iter();
        from + rest.take_while(|&&byte| is_part(byte)).count()
    }

    fn is_space(byte: u8) -> bool {
        byte == b' ' || byte == b'\t'
    }

    fn is_token(byte: u8) -> bool {
        byte.is_ascii_graphic() && !b"\"(),/:;<=>?@[\\]{}".contains(&byte)
    }

    fn is_value(byte: u8) -> bool {
        byte == b'\t' || byte >= 0x20 && byte != 0x7f
    }
}
