//! Parts what a connection receives into heads and bodies.

use super::super::fault::Fault;
use super::super::outgoing::Outgoing;
use super::super::pattern::Pattern;
use super::body::{Body, Malformed};

/// Takes heads and bodies: a client those of replies, an origin those of requests.
pub trait Sink {
    /// Where its reading stands.
    fn reader(&mut self) -> &mut Reader;

    /// Looks at the bytes since the last message's end. Once they begin with a whole head: its length,
    /// and the body behind it; no body where another head follows at once.
    fn head(
        &mut self,
        bytes: &[u8],
        outgoing: &mut Outgoing,
    ) -> Result<Option<(usize, Option<Body>)>, Fault>;

    /// The stream that the body is of, and its length there; `None` if it is anything.
    fn due(&self) -> Option<(u64, u64)>;

    /// The body has come, so many bytes.
    fn done(&mut self, received: u64, outgoing: &mut Outgoing) -> Result<(), Fault>;

    /// Bytes are not what they must be.
    fn corrupt(&self, text: &str) -> Fault;
}

/// Where the next byte belongs.
pub enum Reader {
    /// To a head, behind these bytes.
    Head(Vec<u8>),
    /// To a body of which so many bytes have come.
    Body(Body, u64),
    /// To nobody: the connection is given up.
    Over,
}

impl Reader {
    /// Before the first message.
    pub fn new() -> Reader {
        Reader::Head(Vec::new())
    }

    /// Whether no message has begun.
    pub fn is_between_messages(&self) -> bool {
        matches!(self, Reader::Head(head) if head.is_empty())
    }

    /// Bytes that have come of a body that lasts until the connection's end.
    pub fn received_until_end(&self) -> Option<u64> {
        match self {
            Reader::Body(Body::UntilEnd, received) => Some(*received),
            _ => None,
        }
    }
}

/// Reads bytes that have come.
pub fn receive<L: Sink>(
    sink: &mut L,
    pattern: &Pattern,
    mut bytes: &[u8],
    outgoing: &mut Outgoing,
) -> Result<(), Fault> {
    while !bytes.is_empty() {
        let taken = match std::mem::replace(sink.reader(), Reader::Over) {
            Reader::Head(head) => receive_head(sink, head, bytes, outgoing)?,
            Reader::Body(body, received) => receive_body(sink, pattern, body, received, bytes)?,
            Reader::Over => return Ok(()),
        };
        bytes = &bytes[taken..];
        if let Reader::Body(body, received) = sink.reader()
            && body.is_done()
        {
            let received = *received;
            *sink.reader() = Reader::new();
            sink.done(received, outgoing)?;
        }
    }
    Ok(())
}

fn receive_head<L: Sink>(
    sink: &mut L,
    mut head: Vec<u8>,
    bytes: &[u8],
    outgoing: &mut Outgoing,
) -> Result<usize, Fault> {
    let before = head.len();
    head.extend_from_slice(bytes);
    let (taken, next) = match sink.head(&head, outgoing)? {
        None => (bytes.len(), Reader::Head(head)),
        Some((length, None)) => (length - before, Reader::new()),
        Some((length, Some(body))) => (length - before, Reader::Body(body, 0)),
    };
    *sink.reader() = next;
    Ok(taken)
}

fn receive_body<L: Sink>(
    sink: &mut L,
    pattern: &Pattern,
    mut body: Body,
    received: u64,
    bytes: &[u8],
) -> Result<usize, Fault> {
    let (taken, data) = match body.take(bytes) {
        Ok(took) => took,
        Err(Malformed(text)) => return Err(sink.corrupt(&text)),
    };
    let (from, received) = (received, received + data as u64);
    if let Some((stream, length)) = sink.due() {
        let data = &bytes[taken - data..taken];
        if let Some(at) = pattern.first_difference(stream, from, data) {
            return Err(sink.corrupt(&format!("byte {at} of the body is another")));
        }
        if received > length {
            return Err(sink.corrupt("a body longer than it was sent"));
        }
    }
    *sink.reader() = Reader::Body(body, received);
    Ok(taken)
}

/// A field of a head, in whatever case its name is.
pub fn field<'a>(fields: &'a [httparse::Header<'_>], name: &str) -> Option<&'a str> {
    let field = fields
        .iter()
        .find(|field| field.name.eq_ignore_ascii_case(name))?;
    std::str::from_utf8(field.value).ok()
}
