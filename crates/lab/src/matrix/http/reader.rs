//! Takes what comes on a connection apart into heads and bodies, for whoever listens to it.

use super::super::fault::Fault;
use super::super::pattern::Pattern;
use super::super::speech::Speech;
use super::body::{Body, Malformed};

/// Who listens: a client to replies, an origin to requests.
pub trait Listener {
    /// Where its reading stands.
    fn reader(&mut self) -> &mut Reader;

    /// Looks at the bytes since the last message's end. Once they begin with a whole head: its length,
    /// and the body behind it; no body where another head follows at once.
    fn head(
        &mut self,
        bytes: &[u8],
        speech: &mut Speech,
    ) -> Result<Option<(usize, Option<Body>)>, Fault>;

    /// The stream that the body is of, and its length there; `None` if it is anything.
    fn due(&self) -> Option<(u64, u64)>;

    /// The body has come, so many bytes.
    fn done(&mut self, heard: u64, speech: &mut Speech) -> Result<(), Fault>;

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
    pub fn heard_until_end(&self) -> Option<u64> {
        match self {
            Reader::Body(Body::UntilEnd, heard) => Some(*heard),
            _ => None,
        }
    }
}

/// Reads bytes that have come.
pub fn hear<L: Listener>(
    listener: &mut L,
    pattern: &Pattern,
    mut bytes: &[u8],
    speech: &mut Speech,
) -> Result<(), Fault> {
    while !bytes.is_empty() {
        let taken = match std::mem::replace(listener.reader(), Reader::Over) {
            Reader::Head(head) => hear_head(listener, head, bytes, speech)?,
            Reader::Body(body, heard) => hear_body(listener, pattern, body, heard, bytes)?,
            Reader::Over => return Ok(()),
        };
        bytes = &bytes[taken..];
        if let Reader::Body(body, heard) = listener.reader()
            && body.is_done()
        {
            let heard = *heard;
            *listener.reader() = Reader::new();
            listener.done(heard, speech)?;
        }
    }
    Ok(())
}

fn hear_head<L: Listener>(
    listener: &mut L,
    mut head: Vec<u8>,
    bytes: &[u8],
    speech: &mut Speech,
) -> Result<usize, Fault> {
    let before = head.len();
    head.extend_from_slice(bytes);
    let (taken, next) = match listener.head(&head, speech)? {
        None => (bytes.len(), Reader::Head(head)),
        Some((length, None)) => (length - before, Reader::new()),
        Some((length, Some(body))) => (length - before, Reader::Body(body, 0)),
    };
    *listener.reader() = next;
    Ok(taken)
}

fn hear_body<L: Listener>(
    listener: &mut L,
    pattern: &Pattern,
    mut body: Body,
    heard: u64,
    bytes: &[u8],
) -> Result<usize, Fault> {
    let (taken, data) = match body.take(bytes) {
        Ok(took) => took,
        Err(Malformed(text)) => return Err(listener.corrupt(&text)),
    };
    let (from, heard) = (heard, heard + data as u64);
    if let Some((stream, length)) = listener.due() {
        let data = &bytes[taken - data..taken];
        if let Some(at) = pattern.first_difference(stream, from, data) {
            return Err(listener.corrupt(&format!("byte {at} of the body is another")));
        }
        if heard > length {
            return Err(listener.corrupt("a body longer than it was sent"));
        }
    }
    *listener.reader() = Reader::Body(body, heard);
    Ok(taken)
}
