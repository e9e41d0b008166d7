//! A client: asks, one after the other or ahead, and checks each reply.

use std::net::SocketAddr;

use super::super::end::Outcome;
use super::super::fault::{Fault, Kind};
use super::super::pattern::Pattern;
use super::super::plan::Leave;
use super::super::speech::Speech;
use super::body::{Body, Malformed};
use super::exchange::{Call, Exchange};

/// Longest head that is waited for.
const HEAD_BYTES: usize = 16 * 1024;

/// What became of one exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The reply came, whole and exact.
    Whole,
    /// The connection's end was the reply's end, before its planned length.
    EndedShort,
    /// The proxy replied in the origin's place.
    Refused(u16),
    /// The reply did not come, or not all of it.
    Unfinished,
}

/// A client's connection.
pub struct Asking {
    call: Call,
    seed: u64,
    origin: SocketAddr,
    absolute: bool,
    asked: u64,
    fates: Vec<Fate>,
    state: State,
}

enum State {
    Head(Vec<u8>),
    Body {
        body: Body,
        /// Bytes of the stream that have come.
        heard: u64,
        refused: Option<u16>,
    },
}

impl Asking {
    /// A client with this call to the origin; `absolute`: through a forward proxy.
    pub fn new(seed: u64, call: Call, origin: SocketAddr, absolute: bool) -> Asking {
        Asking {
            call,
            seed,
            origin,
            absolute,
            asked: 0,
            fates: Vec::new(),
            state: State::Head(Vec::new()),
        }
    }

    /// The call's number.
    pub fn id(&self) -> u64 {
        self.call.id
    }

    /// Asks what may be asked at the start.
    pub fn connected(&mut self, speech: &mut Speech) {
        self.ask(speech);
    }

    fn ask(&mut self, speech: &mut Speech) {
        let most = self
            .call
            .exchanges
            .min(self.fates.len() as u64 + self.call.ahead);
        while self.asked < most {
            let exchange = self.call.exchange(self.seed, self.asked);
            let authority = self.origin.to_string();
            exchange.ask(
                &authority,
                self.absolute,
                u64::from(self.asked + 1 == self.call.exchanges),
                speech,
            );
            self.asked += 1;
        }
        if self.fates.len() as u64 == self.call.exchanges {
            speech.finish();
        }
    }

    fn current(&self) -> Exchange {
        self.call.exchange(self.seed, self.fates.len() as u64)
    }

    /// Reads replies.
    pub fn hear(
        &mut self,
        pattern: &Pattern,
        mut bytes: &[u8],
        speech: &mut Speech,
    ) -> Result<(), Fault> {
        while !bytes.is_empty() {
            if self.fates.len() as u64 == self.call.exchanges {
                return Err(self.fault(Kind::Corrupt, "more bytes than replies"));
            }
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
            self.settle_if_done(speech)?;
        }
        Ok(())
    }

    /// The head's length, once it is whole.
    fn read_head(&mut self) -> Result<Option<usize>, Fault> {
        let State::Head(bytes) = &self.state else {
            return Ok(None);
        };
        let exchange = self.current();
        let mut fields = [httparse::EMPTY_HEADER; 32];
        let mut reply = httparse::Response::new(&mut fields);
        let length = match reply.parse(bytes) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) if bytes.len() < HEAD_BYTES => return Ok(None),
            _ => {
                let head = String::from_utf8_lossy(&bytes[..bytes.len().min(80)]).into_owned();
                return Err(self.fault(Kind::Corrupt, &format!("no head: {head:?}")));
            }
        };
        let status = reply.code.unwrap_or(0);
        if (100..200).contains(&status) {
            let expected = status == 103 && exchange.hints;
            if !expected {
                return Err(self.fault(Kind::Corrupt, "an interim reply that nobody sent"));
            }
            self.state = State::Head(Vec::new());
            return Ok(Some(length));
        }
        let number = field(reply.headers, "X-Exchange").map(ToOwned::to_owned);
        let body = body_of(&exchange, status, reply.headers);
        let refused = match number {
            Some(number) if number == exchange.id.to_string() && status == exchange.status => None,
            None if status >= 500 => Some(status),
            number => {
                let text = format!("status {status} for exchange {number:?}");
                return Err(self.fault(Kind::Corrupt, &text));
            }
        };
        self.state = State::Body {
            body,
            heard: 0,
            refused,
        };
        Ok(Some(length))
    }

    fn read_body(&mut self, pattern: &Pattern, bytes: &[u8]) -> Result<usize, Fault> {
        let exchange = self.current();
        let State::Body {
            body,
            heard,
            refused,
        } = &mut self.state
        else {
            return Ok(0);
        };
        let from = *heard;
        let (taken, data) = match body.take(bytes) {
            Ok(took) => took,
            Err(Malformed(text)) => return Err(self.fault(Kind::Corrupt, &text)),
        };
        *heard += data as u64;
        let (heard, refused) = (*heard, refused.is_some());
        let data = &bytes[taken - data..taken];
        if refused {
            return Ok(taken);
        }
        if let Some(at) = pattern.first_difference(exchange.replied(), from, data) {
            return Err(self.fault(Kind::Corrupt, &format!("byte {at} of the reply is another")));
        }
        if heard > exchange.reply_bytes() {
            return Err(self.fault(Kind::Corrupt, "a reply longer than it was sent"));
        }
        Ok(taken)
    }

    fn settle_if_done(&mut self, speech: &mut Speech) -> Result<(), Fault> {
        let State::Body {
            body,
            heard,
            refused,
        } = &self.state
        else {
            return Ok(());
        };
        if !body.is_done() {
            return Ok(());
        }
        let fate = match *refused {
            Some(status) => Fate::Refused(status),
            None if *heard == self.current().reply_bytes() => Fate::Whole,
            None => return Err(self.fault(Kind::Corrupt, "a reply shorter than it was sent")),
        };
        self.settle(fate, speech);
        Ok(())
    }

    fn settle(&mut self, fate: Fate, speech: &mut Speech) {
        self.fates.push(fate);
        self.state = State::Head(Vec::new());
        self.ask(speech);
    }

    /// The connection's end has come.
    pub fn ended(&mut self, speech: &mut Speech) {
        if let State::Body {
            body: Body::UntilEnd,
            heard,
            refused: None,
        } = self.state
        {
            let fate = match heard == self.current().reply_bytes() {
                true => Fate::Whole,
                false => Fate::EndedShort,
            };
            self.settle(fate, speech);
        }
        speech.finish();
    }

    fn fault(&self, kind: Kind, text: &str) -> Fault {
        let (id, index) = (self.call.id, self.fates.len());
        Fault::new(
            kind,
            format!(
                "call {id}, reply {index} of {}: {text}",
                self.call.exchanges
            ),
        )
    }

    /// What became of each exchange; those that were not settled are unfinished.
    pub fn fates(&self) -> impl Iterator<Item = Fate> {
        let unsettled = self.call.exchanges as usize - self.fates.len();
        let rest = std::iter::repeat_n(Fate::Unfinished, unsettled);
        self.fates.iter().copied().chain(rest)
    }

    /// Whether one of several requests that are sent ahead gets a reply that breaks off.
    fn asks_for_a_cut(&self) -> bool {
        let mut exchanges = (0..self.asked).map(|index| self.call.exchange(self.seed, index));
        self.call.ahead > 1 && exchanges.any(|exchange| exchange.cut.is_some())
    }

    /// Whether the client saw what it had to.
    pub fn judge(&self, outcome: Outcome) -> Result<(), Fault> {
        // Once an origin has left early, or the client has, the rest may be missing. The RST that
        // breaks a reply off also throws away what of the replies before it is still on its way.
        let mut excused = outcome.left.is_some() || (outcome.reset && self.asks_for_a_cut());
        for (index, fate) in self.fates().enumerate() {
            let exchange = self.call.exchange(self.seed, index as u64);
            let cut = exchange.cut.map(|(_, how)| how);
            let fine = match fate {
                Fate::Whole => cut.is_none(),
                Fate::Unfinished => excused || cut.is_some(),
                Fate::EndedShort => cut == Some(Leave::Close),
                Fate::Refused(_) => cut.is_some(),
            };
            if !fine {
                let kind = match fate {
                    Fate::Whole | Fate::EndedShort => Kind::WrongEnd,
                    _ => Kind::Lost,
                };
                let text = format!(
                    "call {}, exchange {index}: {fate:?} after {:?}; {outcome:?} {exchange:?} {:?}",
                    self.call.id, self.fates, self.call
                );
                return Err(Fault::new(kind, text));
            }
            excused |= cut.is_some();
        }
        match outcome.reset && !excused {
            true => Err(self.fault(Kind::WrongEnd, "a RST came that nobody sent")),
            false => Ok(()),
        }
    }
}

fn field<'a>(fields: &'a [httparse::Header<'_>], name: &str) -> Option<&'a str> {
    let field = fields
        .iter()
        .find(|field| field.name.eq_ignore_ascii_case(name))?;
    std::str::from_utf8(field.value).ok()
}

fn body_of(exchange: &Exchange, status: u16, fields: &[httparse::Header<'_>]) -> Body {
    if exchange.method == "HEAD" || matches!(status, 204 | 304) {
        return Body::Length(0);
    }
    if field(fields, "Transfer-Encoding").is_some() {
        return Body::chunked();
    }
    let length = field(fields, "Content-Length").and_then(|value| value.parse().ok());
    length.map_or(Body::UntilEnd, Body::Length)
}
