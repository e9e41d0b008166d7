//! The ends of a tunnel, and what they must see of each other.

use std::net::SocketAddr;

use super::fault::{Fault, Kind};
use super::outcome::Outcome;
use super::outgoing::Outgoing;
use super::pattern::Pattern;
use super::plan::{Leave, Start};

/// The head of the reply to a CONNECT that was granted.
const CONNECTED: &[u8] = b"HTTP/1.1 200 ";

/// Which end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Who connects.
    Client,
    /// Who is connected to.
    Origin,
}

/// One end of a tunnel.
pub struct TunnelEnd {
    id: u64,
    side: Side,
    bytes: u64,
    start: Start,
    /// Bytes of the other's stream that have come.
    received: u64,
    /// What is sent before the stream.
    request: String,
    hasty: bool,
    /// The proxy replied that there is no tunnel.
    refused: bool,
    /// The reply to it, until it is whole.
    reply: Option<Vec<u8>>,
}

impl TunnelEnd {
    /// The end of tunnel `id` that sends `bytes`.
    pub fn new(id: u64, side: Side, bytes: u64, start: Start) -> TunnelEnd {
        TunnelEnd {
            id,
            side,
            bytes,
            start,
            received: 0,
            request: String::new(),
            hasty: false,
            refused: false,
            reply: None,
        }
    }

    /// Its number; the other end's is the other of the pair.
    pub fn stream(&self) -> u64 {
        self.id * 2 + u64::from(self.side == Side::Origin)
    }

    /// The tunnel's number.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Which end it is.
    pub fn side(&self) -> Side {
        self.side
    }

    fn others_stream(&self) -> u64 {
        self.stream() ^ 1
    }

    /// A client that asks a proxy for the tunnel first; `hasty`: and sends its stream without waiting.
    pub fn asking_for(mut self, origin: SocketAddr, hasty: bool) -> TunnelEnd {
        self.request = format!("CONNECT {origin} HTTP/1.1\r\nHost: {origin}\r\n\r\n");
        self.reply = Some(Vec::new());
        self.hasty = hasty;
        self
    }

    /// The connection is there.
    pub fn connected(&mut self, outgoing: &mut Outgoing) {
        outgoing.push(self.request.as_str());
        let may_speak = self.reply.is_none() || self.hasty;
        if may_speak && self.start == Start::AtOnce {
            self.begin(outgoing);
        }
    }

    fn prelude(&self) -> u64 {
        self.request.len() as u64
    }

    fn begin(&mut self, outgoing: &mut Outgoing) {
        if outgoing.planned() == self.prelude() {
            outgoing.push_pattern(self.stream(), 0, self.bytes);
            outgoing.finish();
        }
    }

    /// Checks bytes of the other's stream.
    pub fn receive(
        &mut self,
        pattern: &Pattern,
        bytes: &[u8],
        outgoing: &mut Outgoing,
    ) -> Result<(), Fault> {
        let bytes = match &mut self.reply {
            Some(reply) => {
                let before = reply.len();
                reply.extend_from_slice(bytes);
                let Some(end) = reply.windows(4).position(|end| end == b"\r\n\r\n") else {
                    return Ok(());
                };
                self.refused = !reply.starts_with(CONNECTED);
                self.reply = None;
                if self.refused {
                    outgoing.finish();
                    return Ok(());
                }
                if self.start == Start::AtOnce {
                    self.begin(outgoing);
                }
                &bytes[end + 4 - before..]
            }
            None if self.refused => return Ok(()),
            None => bytes,
        };
        let difference = pattern.first_difference(self.others_stream(), self.received, bytes);
        if let Some(position) = difference {
            return Err(self.fault(Kind::Corrupt, format!("byte {position} is another")));
        }
        self.received += bytes.len() as u64;
        Ok(())
    }

    /// The other's end has come.
    pub fn ended(&mut self, outgoing: &mut Outgoing) {
        self.begin(outgoing);
        outgoing.finish();
    }

    fn fault(&self, kind: Kind, text: String) -> Fault {
        Fault::new(
            kind,
            format!("tunnel {}, to the {:?}: {text}", self.id, self.side),
        )
    }

    /// What is left of it for the verdict.
    pub fn report(&self, outcome: Outcome, outgoing: &Outgoing) -> EndReport {
        EndReport {
            bytes: self.bytes,
            sent: outgoing.sent().saturating_sub(self.prelude()),
            received: self.received,
            refused: self.refused,
            outcome,
        }
    }
}

/// What one end of a tunnel did and saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndReport {
    /// Bytes it was to send.
    pub bytes: u64,
    /// Bytes it sent.
    pub sent: u64,
    /// Bytes it received of the other.
    pub received: u64,
    /// The proxy replied that there is no tunnel.
    pub refused: bool,
    /// Its connection.
    pub outcome: Outcome,
}

/// Whether both ends saw of each other what they had to.
pub fn judge(id: u64, client: &EndReport, origin: &EndReport) -> Result<(), Fault> {
    if client.refused && origin.outcome.left.is_some() {
        // It left before the proxy could know that it was there.
        return Ok(());
    }
    judge_one(client, origin)
        .map_err(|(kind, text)| (kind, "origin", text))
        .and_then(|()| judge_one(origin, client).map_err(|(kind, text)| (kind, "client", text)))
        .map_err(|(kind, receiver, text)| {
            let text = format!("tunnel {id}, {receiver}: {text}; {client:?} {origin:?}");
            Fault::new(kind, text)
        })
}

/// What `receiver` saw of `sender`.
fn judge_one(sender: &EndReport, receiver: &EndReport) -> Result<(), (Kind, &'static str)> {
    let (sent, seen) = (&sender.outcome, &receiver.outcome);
    if receiver.refused {
        return Err((
            Kind::Lost,
            "the proxy refused a tunnel to an origin that was there",
        ));
    }
    if receiver.received > sender.sent {
        return Err((Kind::Corrupt, "it received more than was sent"));
    }
    if seen.reset && sent.left.is_none() {
        return Err((Kind::WrongEnd, "a RST came that nobody sent"));
    }
    if seen.eof {
        let whole = receiver.received == sender.sent;
        let due = sent.finished || sent.left == Some(Leave::Close);
        return match (due, whole) {
            (true, true) => Ok(()),
            (true, false) => Err((Kind::Corrupt, "the end came before the last byte")),
            (false, _) => Err((Kind::WrongEnd, "an end came that nobody made")),
        };
    }
    if !seen.reset && seen.left.is_none() {
        return Err((Kind::WrongEnd, "neither an end nor a RST came"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(sent: u64, received: u64) -> EndReport {
        EndReport {
            bytes: sent,
            sent,
            received,
            refused: false,
            outcome: Outcome {
                finished: true,
                eof: true,
                ..Outcome::default()
            },
        }
    }

    #[test]
    fn two_ends_that_heard_all_and_an_end_are_right() {
        assert_eq!(judge(1, &whole(5, 7), &whole(7, 5)), Ok(()));
    }

    #[test]
    fn a_missing_byte_before_an_end_is_corruption() {
        let fault = judge(1, &whole(5, 7), &whole(7, 4)).unwrap_err();
        assert_eq!(fault.kind, Kind::Corrupt);
    }

    #[test]
    fn a_reset_must_not_become_an_end_nor_come_from_nowhere() {
        let mut left = whole(5, 7);
        left.outcome = Outcome {
            left: Some(Leave::Reset),
            ..Outcome::default()
        };
        let fault = judge(1, &left, &whole(7, 5)).unwrap_err();
        assert_eq!(fault.kind, Kind::WrongEnd);
        let mut reset = whole(7, 5);
        reset.outcome = Outcome {
            reset: true,
            ..Outcome::default()
        };
        assert_eq!(judge(1, &left, &reset), Ok(()));
        let fault = judge(1, &whole(5, 7), &reset).unwrap_err();
        assert_eq!(fault.kind, Kind::WrongEnd);
    }
}
