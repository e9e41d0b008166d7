//! Reads messages as the proxy does, from input that arrives in steps, and says what they are.

use std::fmt::Write;

use weir_proxy::http::{
    BodyKind, ChunkScanner, FieldSlots, Limits, Next, Refusal, ReplyFacts, RequestFacts,
    read_reply, read_request,
};

/// How much of the input has arrived after each step; ends with all of it.
pub type Steps<'a> = &'a mut dyn Iterator<Item = usize>;

/// So many bytes at a time.
pub fn by(step: usize, len: usize) -> impl Iterator<Item = usize> {
    (0..len).step_by(step).skip(1).chain([len])
}

/// What became of a message: `Ok(None)` when the input ended first.
pub type Outcome<T> = Result<Option<T>, Refusal>;

/// A message that was read: its facts, and the bytes that belong to it.
pub struct Message<F> {
    pub facts: F,
    pub len: usize,
}

pub fn request(input: &[u8], steps: Steps) -> Outcome<Message<RequestFacts>> {
    let mut seen = 0;
    while let Some(have) = steps.next() {
        let mut slots = FieldSlots::new();
        if let Some(head) = read_request(&input[..have], seen, &Limits::default(), &mut slots)? {
            let facts = head.facts;
            let scanner = ChunkScanner::new();
            let len = body(input, have, facts.len, facts.body, (scanner, steps))?;
            return Ok(len.map(|len| Message { facts, len }));
        }
        seen = have;
    }
    Ok(None)
}

pub fn reply(input: &[u8], to: &RequestFacts, steps: Steps) -> Outcome<Message<ReplyFacts>> {
    let mut seen = 0;
    while let Some(have) = steps.next() {
        let mut slots = FieldSlots::new();
        if let Some(head) = read_reply(&input[..have], seen, to, &Limits::default(), &mut slots)? {
            let facts = head.facts;
            let scanner = ChunkScanner::of_reply();
            let len = body(input, have, facts.len, facts.body, (scanner, steps))?;
            return Ok(len.map(|len| Message { facts, len }));
        }
        seen = have;
    }
    Ok(None)
}

/// Where the message ends whose body begins at `start` and of which `have` bytes have arrived.
fn body(
    input: &[u8],
    have: usize,
    start: usize,
    kind: BodyKind,
    (scanner, steps): (ChunkScanner, Steps),
) -> Outcome<usize> {
    Ok(match kind {
        BodyKind::None | BodyKind::Tunnel => Some(start),
        BodyKind::UntilClose => Some(input.len()),
        BodyKind::Length(length) => usize::try_from(length)
            .ok()
            .and_then(|length| start.checked_add(length))
            .filter(|&end| end <= input.len()),
        BodyKind::Chunked => {
            let mut steps = std::iter::once(have).chain(steps);
            chunks_by(scanner, input, start, &mut steps)?
        }
    })
}

/// Where a request's chunked body ends that begins at `start`.
pub fn chunks(input: &[u8], start: usize, steps: Steps) -> Outcome<usize> {
    chunks_by(ChunkScanner::new(), input, start, steps)
}

fn chunks_by(
    mut scanner: ChunkScanner,
    input: &[u8],
    start: usize,
    steps: Steps,
) -> Outcome<usize> {
    let mut at = start;
    for have in steps {
        let scanned = scanner.scan(&input[at..have])?;
        at += scanned.body;
        if scanned.next == Next::End {
            return Ok(Some(at));
        }
        assert_eq!(at, have, "a scanner reads on until the body has ended");
    }
    Ok(None)
}

/// The facts of a plain request with this method.
pub fn request_of(method: &str) -> RequestFacts {
    let (method, upgrade) = match method.split_once(' ') {
        Some((method, option)) => (method, option == "upgrade"),
        None => (method, false),
    };
    let target = if method == "CONNECT" { "a:1" } else { "/" };
    let text = format!("{method} {target} HTTP/1.1\r\nHost: a\r\n\r\n");
    let message = request(text.as_bytes(), &mut by(text.len(), text.len()));
    let mut facts = message
        .expect("a valid request")
        .expect("a whole one")
        .facts;
    facts.upgrade = upgrade;
    facts
}

pub fn describe_request(outcome: Outcome<Message<RequestFacts>>, input: &[u8]) -> String {
    let message = match outcome {
        Err(reason) => return format!("{} {}", reason.status(), reason.name()),
        Ok(None) => return "more".to_owned(),
        Ok(Some(message)) => message,
    };
    let facts = message.facts;
    let mut text = describe_body(facts.body);
    for (is_set, word) in [
        (!facts.keep_alive, " close"),
        (facts.upgrade, " upgrade"),
        (facts.expects_continue, " expects"),
        (facts.client_close, " knows"),
    ] {
        text.push_str(if is_set { word } else { "" });
    }
    describe_rest(&mut text, message.len, input);
    text
}

pub fn describe_reply(outcome: Outcome<Message<ReplyFacts>>, input: &[u8]) -> String {
    let message = match outcome {
        Err(reason) => return format!("502 {}", reason.name()),
        Ok(None) => return "more".to_owned(),
        Ok(Some(message)) => message,
    };
    let facts = message.facts;
    let mut text = describe_body(facts.body);
    for (is_set, word) in [
        (!facts.keep_alive, " close"),
        (facts.is_interim(), " interim"),
        (facts.client_close, " asks"),
    ] {
        text.push_str(if is_set { word } else { "" });
    }
    describe_rest(&mut text, message.len, input);
    text
}

pub fn describe_rest(text: &mut String, len: usize, input: &[u8]) {
    if len < input.len() {
        write!(text, " rest {}", input.len() - len).expect("a string");
    }
}

fn describe_body(body: BodyKind) -> String {
    match body {
        BodyKind::None => "none".to_owned(),
        BodyKind::Length(length) => format!("length {length}"),
        BodyKind::Chunked => "chunked".to_owned(),
        BodyKind::UntilClose => "until-close".to_owned(),
        BodyKind::Tunnel => "tunnel".to_owned(),
    }
}
