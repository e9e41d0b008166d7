//! A client: asks, one after the other or ahead, and checks each reply.

use std::net::SocketAddr;

use super::super::fault::{Fault, Kind};
use super::super::outcome::Outcome;
use super::super::outgoing::Outgoing;
use super::super::pattern::Pattern;
use super::super::plan::Leave;
use super::body::Body;
use super::exchange::{Call, Exchange, Habit};
use super::reader::{self, Reader, Sink, field};

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
    /// Requests whose head has been sent.
    asked: u64,
    /// The last of them waits with its body for the origin's 100.
    holds_back: bool,
    fates: Vec<Fate>,
    hits: u64,
    reader: Reader,
    reply: Reply,
}

/// What the head of the reply says that is being read.
#[derive(Debug, Clone, Copy, Default)]
struct Reply {
    /// It is the proxy's own, of this status.
    refused: Option<u16>,
    /// The proxy ends the connection after it.
    closes: bool,
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
            holds_back: false,
            fates: Vec::new(),
            hits: 0,
            reader: Reader::new(),
            reply: Reply::default(),
        }
    }

    /// The call's number.
    pub fn id(&self) -> u64 {
        self.call.id
    }

    /// Asks what may be asked at the start.
    pub fn connected(&mut self, outgoing: &mut Outgoing) {
        self.ask(outgoing);
    }

    fn ask(&mut self, outgoing: &mut Outgoing) {
        let answered = self.fates.len() as u64;
        let most = self.call.exchanges.min(answered + self.call.ahead);
        while self.asked < most && !self.holds_back {
            let exchange = self.exchange(self.asked);
            self.asked += 1;
            let last = self.asked == self.call.exchanges;
            exchange.ask(&self.origin.to_string(), self.absolute, last, outgoing);
            match exchange.habit {
                Habit::Continue | Habit::Declined => self.holds_back = true,
                Habit::Upgrade { hasty: false } => {}
                Habit::Upgrade { hasty: true } => {
                    exchange.ask_body(outgoing);
                    outgoing.finish();
                }
                Habit::Plain | Habit::Early => exchange.ask_body(outgoing),
            }
        }
        if answered == self.call.exchanges {
            outgoing.finish();
        }
    }

    fn exchange(&self, index: u64) -> Exchange {
        self.call.exchange(self.seed, index)
    }

    fn current(&self) -> Exchange {
        self.exchange(self.fates.len() as u64)
    }

    /// Reads replies.
    pub fn receive(
        &mut self,
        pattern: &Pattern,
        bytes: &[u8],
        outgoing: &mut Outgoing,
    ) -> Result<(), Fault> {
        reader::receive(self, pattern, bytes, outgoing)
    }

    /// An interim reply: 103 where the origin sends one, 100 where the client waits for it.
    fn receive_interim(
        &mut self,
        status: u16,
        exchange: &Exchange,
        outgoing: &mut Outgoing,
    ) -> Result<(), Fault> {
        match status {
            103 if exchange.hints && !exchange.is_old => Ok(()),
            100 if exchange.habit == Habit::Continue && self.holds_back => {
                self.holds_back = false;
                exchange.ask_body(outgoing);
                self.ask(outgoing);
                Ok(())
            }
            _ => Err(self.corrupt(&format!("an interim reply that nobody sent: {status}"))),
        }
    }

    /// Whether the proxy may end the connection after this reply.
    fn may_close(&self, exchange: &Exchange) -> bool {
        let is_last = self.fates.len() as u64 + 1 == self.call.exchanges;
        self.reply.refused.is_some()
            || exchange.ends_with_connection()
            || exchange.habit.replies_early()
            // To HTTP/1.0 a proxy that clients know of keeps none open (RFC 9112, Appendix C.2.2).
            || exchange.is_old && (is_last || self.absolute)
    }

    fn settle(&mut self, fate: Fate, outgoing: &mut Outgoing) {
        let exchange = self.current();
        self.fates.push(fate);
        let was_held_back = self.holds_back && self.fates.len() as u64 == self.asked;
        let is_upgrade = matches!(exchange.habit, Habit::Upgrade { .. });
        if self.reply.closes || was_held_back || is_upgrade {
            // Nobody reads what it has not sent of a request.
            self.reader = Reader::Over;
            outgoing.abandon();
        } else {
            self.ask(outgoing);
        }
    }

    /// The connection's end has come.
    pub fn ended(&mut self, outgoing: &mut Outgoing) {
        if let Some(received) = self.reader.received_until_end()
            && self.reply.refused.is_none()
        {
            let fate = match received == self.current().reply_bytes() {
                true => Fate::Whole,
                false => Fate::EndedShort,
            };
            let upgraded = self.current().status == 101;
            self.fates.push(fate);
            if upgraded && fate == Fate::Whole {
                // The other half goes on.
                return outgoing.finish();
            }
        }
        outgoing.abandon();
    }

    /// Replies that a cache gave.
    pub fn hits(&self) -> u64 {
        self.hits
    }

    /// What became of each exchange; those that were not settled are unfinished.
    pub fn fates(&self) -> impl Iterator<Item = Fate> {
        let unsettled = self.call.exchanges as usize - self.fates.len();
        let rest = std::iter::repeat_n(Fate::Unfinished, unsettled);
        self.fates.iter().copied().chain(rest)
    }

    /// Whether a RST may end the connection: an origin that leaves may be told by nothing else.
    fn may_be_reset(&self) -> bool {
        let mut exchanges = (0..self.asked).map(|index| self.exchange(index));
        exchanges.any(|exchange| exchange.cut.is_some() && exchange.ends_with_connection())
    }

    /// Whether the client saw what it had to.
    pub fn judge(&self, outcome: Outcome) -> Result<(), Fault> {
        let mut excused = outcome.left.is_some();
        for (index, fate) in self.fates().enumerate() {
            let exchange = self.exchange(index as u64);
            let cut = exchange.cut.map(|(_, how)| how);
            let fine = match fate {
                Fate::Whole => cut.is_none(),
                Fate::Unfinished => excused || cut.is_some(),
                Fate::EndedShort => excused || cut == Some(Leave::Close),
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
            // Once an origin, the client or the proxy, as it may after an early reply, has ended the
            // connection, the rest is missing.
            let was_last = index + 1 == self.fates.len() && self.reply.closes;
            excused |= cut.is_some() || was_last;
        }
        match outcome.reset && outcome.left.is_none() && !self.may_be_reset() {
            true => Err(self.fault(Kind::WrongEnd, "a RST came that nobody sent")),
            false => Ok(()),
        }
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
}

impl Sink for Asking {
    fn reader(&mut self) -> &mut Reader {
        &mut self.reader
    }

    fn head(
        &mut self,
        bytes: &[u8],
        outgoing: &mut Outgoing,
    ) -> Result<Option<(usize, Option<Body>)>, Fault> {
        if self.fates.len() as u64 == self.asked {
            return Err(self.corrupt("more bytes than replies"));
        }
        let exchange = self.current();
        let mut fields = [httparse::EMPTY_HEADER; 32];
        let mut reply = httparse::Response::new(&mut fields);
        let length = match reply.parse(bytes) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) if bytes.len() < HEAD_BYTES => return Ok(None),
            _ => {
                let head = String::from_utf8_lossy(&bytes[..bytes.len().min(80)]).into_owned();
                return Err(self.corrupt(&format!("no head: {head:?}")));
            }
        };
        let status = reply.code.unwrap_or(0);
        if (100..200).contains(&status) && status != 101 {
            self.receive_interim(status, &exchange, outgoing)?;
            return Ok(Some((length, None)));
        }
        let number = field(reply.headers, "X-Exchange");
        let refused = match number {
            Some(number) if number == exchange.id.to_string() && status == exchange.status => None,
            None if status >= 500 => Some(status),
            number => {
                let text = format!("status {status} for exchange {number:?}");
                return Err(self.corrupt(&text));
            }
        };
        let from_cache = field(reply.headers, "Cache-Status");
        if from_cache.is_some_and(|value| value.split("; ").any(|word| word == "hit")) {
            self.hits += 1;
            if !exchange.is_kept {
                return Err(self.corrupt("a cache gave what it may not keep"));
            }
        }
        let connection = field(reply.headers, "Connection");
        let closes = connection.is_some_and(|value| value.eq_ignore_ascii_case("close"));
        self.reply = Reply { refused, closes };
        if closes && !self.may_close(&exchange) {
            return Err(self.fault(Kind::WrongEnd, "the proxy ends what may go on"));
        }
        if let (101, Habit::Upgrade { hasty: false }) = (status, exchange.habit) {
            exchange.ask_body(outgoing);
            outgoing.finish();
        }
        Ok(Some((length, Some(self.body(&exchange, reply.headers)))))
    }

    fn due(&self) -> Option<(u64, u64)> {
        let exchange = self.current();
        let is_origins = self.reply.refused.is_none();
        is_origins.then(|| (exchange.replied(), exchange.reply_bytes()))
    }

    fn done(&mut self, received: u64, outgoing: &mut Outgoing) -> Result<(), Fault> {
        let fate = match self.reply.refused {
            Some(status) => Fate::Refused(status),
            None if received == self.current().reply_bytes() => Fate::Whole,
            None => return Err(self.corrupt("a reply shorter than it was sent")),
        };
        self.settle(fate, outgoing);
        Ok(())
    }

    fn corrupt(&self, text: &str) -> Fault {
        self.fault(Kind::Corrupt, text)
    }
}

impl Asking {
    fn body(&self, exchange: &Exchange, fields: &[httparse::Header<'_>]) -> Body {
        if self.reply.refused.is_none() && exchange.is_bodiless() || exchange.method == "HEAD" {
            return Body::Length(0);
        }
        if field(fields, "Transfer-Encoding").is_some() {
            return Body::chunked();
        }
        let length = field(fields, "Content-Length").and_then(|value| value.parse().ok());
        length.map_or(Body::UntilEnd, Body::Length)
    }
}
