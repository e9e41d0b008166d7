//! A public corpus: the requests that gunicorn must take or refuse, from its source distribution
//! (`import_gunicorn.py` says how).
//!
//! gunicorn does not ask for `Host`; weir does (RFC 9112 Section 3.2), so a request that is refused
//! for that alone gets one. What then differs stands in [`DIFFERENCES`], each with its reason.

use weir_proxy::http::{BodyKind, FieldSlots, Limits, Refusal, read_request};
use weir_proxy::proxy_protocol;

use crate::corpus::{data_of, give_host, rows, unescape};
use crate::reader::{self, by};

/// Cases whose expectation is not weir's, and why.
const DIFFERENCES: [(&str, &str); 16] = [
    ("invalid/003c", "`-bl` is a token, so it may be a method"),
    (
        "invalid/006",
        "the limit of a target is higher here: RFC 9112 Section 3 wants 8000 bytes",
    ),
    ("invalid/007", "one field may be as long as the head here"),
    ("invalid/008", "one field may be as long as the head here"),
    ("invalid/017", "one field may be as long as the head here"),
    (
        "invalid/041",
        "a second Content-Type is the server's business",
    ),
    (
        "valid/005",
        "a fragment is no part of a target; parsers disagree on what it is",
    ),
    ("valid/025", "codings other than chunked are not taken"),
    ("valid/025_line", "codings other than chunked are not taken"),
    ("valid/029", "codings other than chunked are not taken"),
    ("valid/030", "codings other than chunked are not taken"),
    (
        "valid/099",
        "a body that is shorter than its length is not complete",
    ),
    (
        "valid/pp_03",
        "where a PROXY header is configured, it must be there",
    ),
    (
        "valid/rfc9112_smuggle_gzip_chunked_01",
        "codings other than chunked are not taken",
    ),
    (
        "valid/rfc9112_smuggle_te_identity_chunked_01",
        "codings other than chunked are not taken",
    ),
    (
        "valid/rfc9112_target_absolute_userinfo_01",
        "RFC 9110 Section 4.2.4: an error",
    ),
];

/// Cases that need a setting of gunicorn's for what weir has no setting for.
fn is_for_gunicorn_alone(settings: &str) -> bool {
    settings != "-" && settings != "proxy_protocol=True"
}

/// Takes all requests off the input, up to one that closes: the method, target and length of each body, as the corpus
/// writes them, or why one is refused.
fn read_all(mut input: Vec<u8>) -> Result<String, String> {
    let mut requests = Vec::new();
    while !input.is_empty() {
        let message = match reader::request(&input, &mut by(usize::MAX, input.len())) {
            Ok(Some(message)) => message,
            Ok(None) => return Err("more".to_owned()),
            Err(Refusal::HostMissing) => {
                give_host(&mut input);
                continue;
            }
            Err(reason) => return Err(reason.name().to_owned()),
        };
        let mut slots = FieldSlots::new();
        let head = read_request(&input, 0, &Limits::default(), &mut slots);
        let head = head.expect("as before").expect("as before");
        let start_line = String::from_utf8_lossy(&input);
        let target = start_line.trim_start().split(' ').nth(1).expect("a target");
        let body = &input[message.facts.len..message.len];
        let body_bytes = match message.facts.body {
            BodyKind::Chunked => data_of(body).len(),
            _ => body.len(),
        };
        requests.push(format!("{} {target} {body_bytes}", head.method));
        if !message.facts.keep_alive {
            break;
        }
        input.drain(..message.len);
    }
    Ok(requests.join(";"))
}

fn verdict(settings: &str, mut input: Vec<u8>) -> Result<String, String> {
    if settings == "proxy_protocol=True" {
        match proxy_protocol::read(&input) {
            Ok(Some(header)) => drop(input.drain(..header.len)),
            Ok(None) => return Err("more".to_owned()),
            Err(error) => return Err(error.to_string()),
        }
    }
    read_all(input)
}

#[test]
fn gunicorns_requests_are_taken_or_refused_as_there() {
    let mut cases = 0;
    let mut differences = Vec::new();
    for [name, settings, wanted, bytes] in rows::<4>(include_str!("gunicorn.txt")) {
        if is_for_gunicorn_alone(settings) {
            continue;
        }
        cases += 1;
        let got = verdict(settings, unescape(bytes));
        let same = match name.starts_with("valid/") {
            true => got.as_deref() == Ok(wanted),
            false => got.is_err(),
        };
        let is_known = DIFFERENCES.iter().any(|(known, _)| *known == name);
        if same == is_known {
            differences.push(format!(
                "{name}: wanted {wanted}, got {got:?}, known: {is_known}"
            ));
        }
    }
    assert!(cases >= 120, "cases are missing");
    assert!(differences.is_empty(), "\n{}\n", differences.join("\n"));
}
