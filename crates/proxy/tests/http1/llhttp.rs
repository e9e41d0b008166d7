//! A second public corpus: the cases of llhttp, the parser of Node.js (`import_llhttp.py` says how).
//!
//! llhttp does not ask for `Host`; weir does, so a request that is refused for that alone gets one.
//! What then differs stands in [`DIFFERENCES`], each with its reason.

use weir_proxy::http::{BodyKind, Method, Refusal};

use crate::corpus::{data_of, give_host, rows, unescape};
use crate::reader::{self, by};

/// Cases whose expectation is not weir's, by why.
const DIFFERENCES: [(&str, &[&str]); 14] = [
    (
        "old servers fill the sizes of chunks up with blanks",
        &["response/transfer-encoding: Trailing space on chunked body"],
    ),
    (
        "one empty line before a request is skipped, two are refused",
        &["request/connection: CRLF between requests, implicit keep-alive"],
    ),
    (
        "a head is judged when it is whole",
        &[
            "request/content-length: Error on Content-Length overflow",
            "request/content-length: Error on duplicate Content-Length",
        ],
    ),
    (
        "any token may be a method",
        &[
            "request/invalid: HTTP protocol and ANNOUNCE method",
            "request/invalid: Invalid method",
        ],
    ),
    (
        "an offer to go over to another HTTP is taken as not made, so HTTP/1 goes on behind it",
        &["request/connection: Upgrade POST request"],
    ),
    (
        "CONNECT with a body is refused: servers differ on where it ends",
        &["request/method: CONNECT with body"],
    ),
    (
        "`*` is a target of OPTIONS alone",
        &["request/method: M-SEARCH request"],
    ),
    (
        "RTSP, ICE and HTTP/0.9 are not HTTP/1",
        &[
            "request/method: SOURCE request with ICE",
            "request/method: OPTIONS request with RTSP",
            "request/method: ANNOUNCE request with RTSP",
            "request/sample: No HTTP version",
            "response/sample: RTSP response",
            "response/sample: ICE response",
            "response/sample: HTTP version 0.9",
        ],
    ),
    (
        "a fragment is no part of a target; parsers disagree on what it is",
        &[
            "request/transfer-encoding: POST with chunked as last transfer-encoding",
            "request/transfer-encoding: POST with chunked as last transfer-encoding (multiple headers)",
            "request/uri: Fragment in URI",
        ],
    ),
    (
        "RFC 9110 Section 4.2.4: userinfo is an error",
        &["request/uri: host:port and basic auth"],
    ),
    (
        "an empty line may be the beginning of the next request",
        &["request/uri: Host terminated by a query string"],
    ),
    (
        "an empty line before a reply is refused: the reply before it was longer than it said",
        &[
            "response/connection: HTTP 304 with Content-Length",
            "response/connection: HTTP 100 first, then 400",
            "response/pipelining: Should parse multiple events",
            "response/sample: Response starting with CRLF",
        ],
    ),
    (
        "codings other than chunked are not taken",
        &[
            "response/transfer-encoding: chunked before other transfer-encoding",
            "response/transfer-encoding: multiple transfer-encoding where chunked is not the last one",
        ],
    ),
    (
        "an unknown coding is refused",
        &[
            "response/transfer-encoding: chunkedchunked transfer-encoding does not enable chunked enconding",
        ],
    ),
];

/// The bytes of each message's body, as the corpus writes them; `+` for one that is not complete, or
/// lasts until the connection's end.
fn bodies(kind: &str, mut input: Vec<u8>) -> Result<String, Refusal> {
    let mut bodies = Vec::new();
    while !input.is_empty() {
        let read = match kind {
            "request" => request(&mut input),
            _ => reply(&input),
        };
        let Some(message) = read? else {
            bodies.push("+".to_owned());
            break;
        };
        bodies.push(message.body);
        if message.is_last {
            break;
        }
        input.drain(..message.bytes);
    }
    Ok(bodies.join(";"))
}

struct Message {
    bytes: usize,
    body: String,
    /// What follows is no message of the connection.
    is_last: bool,
}

fn request(input: &mut Vec<u8>) -> Result<Option<Message>, Refusal> {
    let message = match reader::request(input, &mut by(usize::MAX, input.len())) {
        Err(Refusal::HostMissing) => {
            give_host(input);
            return request(input);
        }
        outcome => outcome?,
    };
    Ok(message.map(|message| {
        let facts = message.facts;
        Message {
            bytes: message.len,
            body: body(facts.body, &input[facts.len..message.len]),
            is_last: !facts.keep_alive || facts.upgrade || facts.method == Method::Connect,
        }
    }))
}

fn reply(input: &[u8]) -> Result<Option<Message>, Refusal> {
    let to = reader::request_of("GET upgrade");
    let message = reader::reply(input, &to, &mut by(usize::MAX, input.len()))?;
    Ok(message.map(|message| {
        let facts = message.facts;
        Message {
            bytes: message.len,
            body: body(facts.body, &input[facts.len..message.len]),
            is_last: !facts.keep_alive || facts.body == BodyKind::Tunnel,
        }
    }))
}

fn body(kind: BodyKind, bytes: &[u8]) -> String {
    match kind {
        BodyKind::UntilClose => "+".to_owned(),
        BodyKind::Chunked => data_of(bytes).len().to_string(),
        _ => bytes.len().to_string(),
    }
}

#[test]
fn llhttps_messages_are_taken_or_refused_as_there() {
    let mut cases = 0;
    let mut differences = Vec::new();
    for [name, kind, wanted, bytes] in rows::<4>(include_str!("llhttp.txt")) {
        cases += 1;
        let got = bodies(kind, unescape(bytes));
        let same = match wanted.starts_with("error ") {
            true => got.is_err(),
            false => got.as_deref() == Ok(wanted),
        };
        let mut known = DIFFERENCES.iter().flat_map(|(_, names)| names.iter());
        let is_known = known.any(|known| *known == name);
        if same == is_known {
            differences.push(format!(
                "{name}: wanted {wanted}, got {got:?}, known: {is_known}"
            ));
        }
    }
    assert!(cases >= 160, "cases are missing");
    assert!(differences.is_empty(), "\n{}\n", differences.join("\n"));
}
