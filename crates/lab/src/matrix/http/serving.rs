//! An origin: checks each request and replies as planned.

use super::super::fault::{Fault, Kind};
use super::super::outgoing::Outgoing;
use super::super::pattern::Pattern;
use super::super::plan::Cut;
use super::body::Body;
use super::exchange::{Call, Exchange, Habit, MOST};
use super::reader::{self, Reader, Sink, field};

/// A connection of an origin.
pub struct Serving {
    seed: u64,
    serial: u64,
    served: u64,
    reader: Reader,
    /// The request that is being read.
    exchange: Option<Exchange>,
    /// When the origin leaves before it is due.
    cut: Option<Cut>,
}

impl Serving {
    /// The connection of this number.
    pub fn new(seed: u64, serial: u64) -> Serving {
        Serving {
            seed,
            serial,
            served: 0,
            reader: Reader::new(),
            exchange: None,
            cut: None,
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
        self.reader.is_between_messages()
    }

    /// Reads requests. Says when the origin is to leave.
    pub fn receive(
        &mut self,
        pattern: &Pattern,
        bytes: &[u8],
        outgoing: &mut Outgoing,
    ) -> Result<Option<Cut>, Fault> {
        reader::receive(self, pattern, bytes, outgoing)?;
        Ok(self.cut)
    }

    /// The proxy's end has come: of a tunnel, whose bytes must be there then unless its client left.
    pub fn ended(&mut self, outgoing: &mut Outgoing) -> Result<(), Fault> {
        outgoing.finish();
        let (Some(exchange), Some(received)) = (&self.exchange, self.reader.received_until_end())
        else {
            return Ok(());
        };
        let client_leaves = Call::new(self.seed, exchange.id / MOST).cut.is_some();
        let leaves = client_leaves || exchange.cut.is_some();
        match leaves || received == exchange.request.bytes() {
            true => Ok(()),
            false => Err(self.corrupt(&format!("the end came after {received} bytes of a tunnel"))),
        }
    }

    fn answer(&mut self, exchange: &Exchange, outgoing: &mut Outgoing) {
        let cut = exchange.answer(outgoing);
        self.cut = self.cut.or(cut);
    }
}

impl Sink for Serving {
    fn reader(&mut self) -> &mut Reader {
        &mut self.reader
    }

    fn head(
        &mut self,
        bytes: &[u8],
        outgoing: &mut Outgoing,
    ) -> Result<Option<(usize, Option<Body>)>, Fault> {
        let mut fields = [httparse::EMPTY_HEADER; 32];
        let mut request = httparse::Request::new(&mut fields);
        let parsed = request.parse(bytes);
        if matches!(parsed, Ok(httparse::Status::Partial)) {
            return Ok(None);
        }
        let numbers = request.path.and_then(numbers);
        let (Ok(httparse::Status::Complete(length)), Some((id, last))) = (parsed, numbers) else {
            let head = String::from_utf8_lossy(&bytes[..bytes.len().min(80)]).into_owned();
            return Err(self.corrupt(&format!("no request: {head:?}")));
        };
        let exchange = Exchange::new(self.seed, id, last);
        let value = |name| field(request.headers, name);
        if request.method != Some(exchange.method) {
            return Err(self.corrupt(&format!("another method for {id}")));
        }
        if value("Expect").is_some() != exchange.habit.expects() {
            return Err(self.corrupt(&format!("Expect: {:?} for {id}", value("Expect"))));
        }
        let body = match (exchange.habit, value("Transfer-Encoding")) {
            (Habit::Upgrade { .. }, _) => Body::UntilEnd,
            (_, Some(_)) => Body::chunked(),
            (_, None) => {
                let length = value("Content-Length").and_then(|length| length.parse().ok());
                Body::Length(length.unwrap_or(0))
            }
        };
        match exchange.habit {
            Habit::Plain => {}
            Habit::Continue => outgoing.push("HTTP/1.1 100 Continue\r\n\r\n"),
            Habit::Declined | Habit::Early | Habit::Upgrade { .. } => {
                self.answer(&exchange, outgoing);
            }
        }
        self.exchange = Some(exchange);
        Ok(Some((length, Some(body))))
    }

    fn due(&self) -> Option<(u64, u64)> {
        let exchange = self.exchange.as_ref()?;
        Some((exchange.asked(), exchange.request.bytes()))
    }

    fn done(&mut self, received: u64, outgoing: &mut Outgoing) -> Result<(), Fault> {
        let Some(exchange) = self.exchange.take() else {
            return Ok(());
        };
        if received != exchange.request.bytes() {
            let text = format!("{received} bytes of a request with {:?}", exchange.request);
            return Err(self.corrupt(&text));
        }
        if matches!(exchange.habit, Habit::Plain | Habit::Continue) {
            self.answer(&exchange, outgoing);
        }
        self.served += 1;
        Ok(())
    }

    fn corrupt(&self, text: &str) -> Fault {
        let (serial, served) = (self.serial, self.served);
        Fault::new(
            Kind::Corrupt,
            format!("origin's connection {serial}, request {served}: {text}"),
        )
    }
}

/// `/ID/LAST?RUN`.
fn numbers(path: &str) -> Option<(u64, bool)> {
    let (path, _) = path.split_once('?')?;
    let (id, last) = path.strip_prefix('/')?.split_once('/')?;
    Some((id.parse().ok()?, last == "1"))
}
