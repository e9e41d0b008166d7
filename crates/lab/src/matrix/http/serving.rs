//! An origin: checks each request and replies as planned.

use super::super::fault::{Fault, Kind};
use super::super::pattern::Pattern;
use super::super::plan::Cut;
use super::super::speech::Speech;
use super::body::{Body, Malformed};
use super::exchange::Exchange;

/// A connection of an origin.
pub struct Serving {
    seed: u64,
    serial: u64,
    served: u64,
    state: State,
}

enum State {
    Head(Vec<u8>),
    Body {
        exchange: Exchange,
        body: Body,
        heard: u64,
    },
}

impl Serving {
    /// The connection of this number.
    pub fn new(seed: u64, serial: u64) -> Serving {
        Serving {
            seed,
            serial,
            served: 0,
            state: State::Head(Vec::new()),
        }
    }

    /// The connection's number.
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// Requests that came whole and exact.
    pub fn served(&self) -> u64 {
        self.served
    }

    /// Whether it waits for a request.
    pub fn is_idle(&self) -> bool {
        matches!(&self.state, State::Head(head) if head.is_empty())
    }

    /// Reads requests. Says when the origin is to leave.
    pub fn hear(
        &mut self,
        pattern: &Pattern,
        mut bytes: &[u8],
        speech: &mut Speech,
    ) -> Result<Option<Cut>, Fault> {
        let mut cut = None;
        while !bytes.is_empty() {
            let taken = match &mut self.state {
                State::Head(head) => {
                    let before = head.len();
                    head.extend_from_slice(bytes);
                    match self.read_head()? {
                        Some(end) => end - before,
                        None => bytes.len(),
                    }
                }
                State::Body { .. } => self.read_body(pattern, bytes)?,
            };
            bytes = &bytes[taken..];
            cut = cut.or(self.answer_if_done(speech)?);
        }
        Ok(cut)
    }

    fn read_head(&mut self) -> Result<Option<usize>, Fault> {
        let State::Head(bytes) = &self.state else {
            return Ok(None);
        };
        let mut fields = [httparse::EMPTY_HEADER; 32];
        let mut request = httparse::Request::new(&mut fields);
        let parsed = request.parse(bytes);
        if matches!(parsed, Ok(httparse::Status::Partial)) {
            return Ok(None);
        }
        let numbers = request.path.and_then(numbers);
        let (Ok(httparse::Status::Complete(length)), Some((id, last))) = (parsed, numbers) else {
            let head = String::from_utf8_lossy(&bytes[..bytes.len().min(80)]).into_owned();
            return Err(self.fault(Kind::Corrupt, &format!("no request: {head:?}")));
        };
        let exchange = Exchange::new(self.seed, id, last);
        let has = |name: &str| {
            let mut fields = request.headers.iter();
            fields.find(|field| field.name.eq_ignore_ascii_case(name))
        };
        let length_field = has("Content-Length")
            .and_then(|field| std::str::from_utf8(field.value).ok()?.parse().ok());
        let body = match has("Transfer-Encoding") {
            Some(_) => Body::chunked(),
            None => Body::Length(length_field.unwrap_or(0)),
        };
        if request.method != Some(exchange.method) {
            return Err(self.fault(Kind::Corrupt, &format!("another method for {id}")));
        }
        self.state = State::Body {
            exchange,
            body,
            heard: 0,
        };
        Ok(Some(length))
    }

    fn read_body(&mut self, pattern: &Pattern, bytes: &[u8]) -> Result<usize, Fault> {
        let State::Body {
            exchange,
            body,
            heard,
        } = &mut self.state
        else {
            return Ok(0);
        };
        let (stream, from) = (exchange.asked(), *heard);
        let (taken, data) = match body.take(bytes) {
            Ok(took) => took,
            Err(Malformed(text)) => return Err(self.fault(Kind::Corrupt, &text)),
        };
        *heard += data as u64;
        match pattern.first_difference(stream, from, &bytes[taken - data..taken]) {
            None => Ok(taken),
            Some(at) => Err(self.fault(
                Kind::Corrupt,
                &format!("byte {at} of the request is another"),
            )),
        }
    }

    fn answer_if_done(&mut self, speech: &mut Speech) -> Result<Option<Cut>, Fault> {
        let State::Body {
            exchange,
            body,
            heard,
        } = &self.state
        else {
            return Ok(None);
        };
        if !body.is_done() {
            return Ok(None);
        }
        if *heard != exchange.request.bytes() {
            let text = format!("{heard} bytes of a request with {:?}", exchange.request);
            return Err(self.fault(Kind::Corrupt, &text));
        }
        let cut = exchange.answer(speech);
        self.served += 1;
        self.state = State::Head(Vec::new());
        Ok(cut)
    }

    fn fault(&self, kind: Kind, text: &str) -> Fault {
        let (serial, served) = (self.serial, self.served);
        Fault::new(
            kind,
            format!("origin's connection {serial}, request {served}: {text}"),
        )
    }
}

/// `/ID/LAST`.
fn numbers(path: &str) -> Option<(u64, bool)> {
    let (id, last) = path.strip_prefix('/')?.split_once('/')?;
    Some((id.parse().ok()?, last == "1"))
}
