//! How large a head may be, whole or not.

use weir_proxy::http::rewrite::{self, RequestEdit};
use weir_proxy::http::{FieldSlots, Limits, Refusal, read_reply, read_request};

use crate::reader::request_of;

const LIMITS: Limits = Limits {
    head_bytes: 1000,
    target_bytes: 500,
    fields: 10,
};

/// `Ok(true)` when the head was read, `Ok(false)` when more bytes are wanted.
fn outcome(input: &[u8]) -> Result<bool, Refusal> {
    outcome_within(&LIMITS, input, 0)
}

fn outcome_within(limits: &Limits, input: &[u8], seen: usize) -> Result<bool, Refusal> {
    let mut slots = FieldSlots::new();
    read_request(input, seen, limits, &mut slots).map(|head| head.is_some())
}

fn head_of(bytes: usize) -> Vec<u8> {
    let (start, end) = ("GET / HTTP/1.1\r\nHost: a\r\nX: ", "\r\n\r\n");
    let filling = "x".repeat(bytes - start.len() - end.len());
    format!("{start}{filling}{end}").into_bytes()
}

#[test]
fn a_head_may_be_as_long_as_the_limit() {
    assert_eq!(outcome(&head_of(1000)), Ok(true));
    assert_eq!(outcome(&head_of(1001)), Err(Refusal::HeadTooLong));
}

#[test]
fn the_body_does_not_count() {
    let mut input = head_of(1000);
    input.extend_from_slice(&[b'x'; 5000]);
    assert_eq!(outcome(&input), Ok(true));
}

#[test]
fn an_unfinished_head_is_refused_as_soon_as_it_is_too_long() {
    let head = head_of(2000);
    assert_eq!(outcome(&head[..1000]), Ok(false));
    assert_eq!(outcome(&head[..1001]), Err(Refusal::HeadTooLong));
    let seen = outcome_within(&LIMITS, &head[..1001], 1000);
    assert_eq!(seen, Err(Refusal::HeadTooLong));
}

#[test]
fn a_reply_is_held_to_the_same_limits() {
    let reply = |bytes| format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(bytes)).into_bytes();
    let outcome = |input: &[u8]| {
        let mut slots = FieldSlots::new();
        let read = read_reply(input, 0, &request_of("GET"), &LIMITS, &mut slots);
        read.map(|head| head.is_some())
    };
    assert_eq!(outcome(&reply(900)), Ok(true));
    assert_eq!(outcome(&reply(1000)), Err(Refusal::HeadTooLong));
    assert_eq!(outcome(&reply(2000)[..1001]), Err(Refusal::HeadTooLong));
}

#[test]
fn a_target_may_be_as_long_as_the_limit() {
    let request = |bytes: usize| {
        let path = "x".repeat(bytes - 1);
        format!("GET /{path} HTTP/1.1\r\nHost: a\r\n\r\n").into_bytes()
    };
    assert_eq!(outcome(&request(500)), Ok(true));
    assert_eq!(outcome(&request(501)), Err(Refusal::TargetTooLong));
}

#[test]
fn a_first_line_without_end_is_refused_before_the_head_is_too_long() {
    let line = [&b"GET /"[..], &[b'x'; 2000]].concat();
    assert_eq!(outcome(&line[..700]), Ok(false));
    assert_eq!(outcome(&line[..800]), Err(Refusal::TargetTooLong));
}

#[test]
fn there_may_be_as_many_fields_as_the_limit() {
    let request = |fields: usize| {
        let fields = "X: y\r\n".repeat(fields - 1);
        format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n").into_bytes()
    };
    assert_eq!(outcome(&request(10)), Ok(true));
    assert_eq!(outcome(&request(11)), Err(Refusal::TooManyFields));
    let generous = Limits {
        fields: 10_000,
        ..Limits::default()
    };
    let most = request(FieldSlots::CAPACITY);
    assert_eq!(outcome_within(&generous, &most, 0), Ok(true));
    let too_many = request(FieldSlots::CAPACITY + 1);
    assert_eq!(
        outcome_within(&generous, &too_many, 0),
        Err(Refusal::TooManyFields)
    );
}

#[test]
fn a_request_goes_through_proxies_of_one_name_eight_times() {
    let passed = |times: usize| {
        let via = "Via: 1.0 other, HTTP/1.1 WEIR (a comment)\r\n".repeat(times);
        let input = format!("GET / HTTP/1.1\r\nHost: a\r\n{via}\r\n").into_bytes();
        let mut slots = FieldSlots::new();
        let read = read_request(&input, 0, &Limits::default(), &mut slots);
        let head = read.expect("a valid head").expect("a whole one");
        let edit = RequestEdit {
            via: "weir",
            default_host: "default.example",
            announce: None,
            close: false,
            drop_odd_names: true,
            client_close: false,
        };
        let mut out = Vec::new();
        let result = rewrite::request(&head, &edit, &mut out);
        assert_eq!(
            out.is_empty(),
            result.is_err(),
            "nothing is written of what is refused"
        );
        result
    };
    assert_eq!(passed(7), Ok(()));
    assert_eq!(passed(8), Err(Refusal::Loop));
}
