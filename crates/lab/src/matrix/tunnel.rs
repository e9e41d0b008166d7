//! The ends of a tunnel, and what they must see of each other.

use std::net::SocketAddr;

use super::end::Outcome;
use super::fault::{Fault, Kind};
use super::pattern::Pattern;
use super::plan::{Leave, Start};
use super::speech::Speech;

/// What a client says before its tunnel, and what it hears.
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
    heard: u64,
    /// What is said before the stream.
    request: String,
    hasty: bool,
    /// The proxy said that there is no tunnel.
    refused: bool,
    /// The reply to it, until it is whole.
    reply: Option<Vec<u8>>,
}

impl TunnelEnd {
    /// The end of tunnel `id` that says `bytes`.
    pub fn new(id: u64, side: Side, bytes: u64, start: Start) -> TunnelEnd {
        TunnelEnd {
            id,
            side,
            bytes,
            start,
            heard: 0,
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

    /// A client that asks a proxy for the tunnel first; `hasty`: and speaks without waiting.
    pub fn asking_for(mut self, origin: SocketAddr, hasty: bool) -> TunnelEnd {
        self.request = format!("CONNECT {origin} HTTP/1.1\r\nHost: {origin}\r\n\r\n");
        self.reply = Some(Vec::new());
        self.hasty = hasty;
        self
    }

    /// The connection is there.
    pub fn connected(&mut self, speech: &mut Speech) {
        speech.say(self.request.as_str());
        let may_speak = self.reply.is_none() || self.hasty;
        if may_speak && self.start == Start::AtOnce {
            self.begin(speech);
        }
    }

    fn prelude(&self) -> u64 {
        self.request.len() as u64
    }

    fn begin(&mut self, speech: &mut Speech) {
        if speech.planned() == self.prelude() {
            speech.say_pattern(self.stream(), 0, self.bytes);
            speech.finish();
        }
    }

    /// Checks bytes of the other's stream.
    pub fn hear(
        &mut self,
        pattern: &Pattern,
        bytes: &[u8],
        speech: &mut Speech,
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
                    speech.finish();
                    return Ok(());
                }
                if self.start == Start::AtOnce {
                    self.begin(speech);
                }
                &bytes[end + 4 - before..]
            }
            None if self.refused => return Ok(()),
            None => bytes,
        };
        let difference = pattern.first_difference(self.others_stream(), self.heard, bytes);
        if let Some(position) = difference {
            return Err(self.fault(Kind::Corrupt, format!("byte {position} is another")));
        }
        self.heard += bytes.len() as u64;
        Ok(())
    }

    /// The other's end has come.
    pub fn ended(&mut self, speech: &mut Speech) {
        self.begin(speech);
        speech.finish();
    }

    fn fault(&self, kind: Kind, text: String) -> Fault {
        Fault::new(
            kind,
            format!("tunnel {}, to the {:?}: {text}", self.id, self.side),
        )
    }

    /// What is left of it for the verdict.
    pub fn story(&self, outcome: Outcome, speech: &Speech) -> Story {
        Story {
            bytes: self.bytes,
            said: speech.said().saturating_sub(self.prelude()),
            heard: self.heard,
            refused: self.refused,
            outcome,
        }
    }
}

/// What one end of a tunnel did and saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Story {
    /// Bytes it meant to say.
    pub bytes: u64,
    /// Bytes it said.
    pub said: u64,
    /// Bytes it heard of the other.
    pub heard: u64,
    /// The proxy said that there is no tunnel.
    pub refused: bool,
    /// Its connection.
    pub outcome: Outcome,
}

/// Whether both ends saw of each other what they had to.
pub fn judge(id: u64, client: &Story, origin: &Story) -> Result<(), Fault> {
    if client.refused && origin.outcome.left.is_some() {
        // It left before the proxy could know that it was there.
        return Ok(());
    }
    judge_one(client, origin)
        .map_err(|(kind, text)| (kind, "origin", text))
        .and_then(|()| judge_one(origin, client).map_err(|(kind, text)| (kind, "client", text)))
        .map_err(|(kind, hearer, text)| {
            let text = format!("tunnel {id}, {hearer}: {text}; {client:?} {origin:?}");
            Fault::new(kind, text)
        })
}

/// What `hearer` saw of `speaker`.
fn judge_one(speaker: &Story, hearer: &Story) -> Result<(), (Kind, &'static str)> {
    let (said, seen) = (&speaker.outcome, &hearer.outcome);
    if hearer.refused {
        return Err((
            Kind::Lost,
            "the proxy refused a tunnel to an origin that was there",
        ));
    }
    if hearer.heard > speaker.said {
        return Err((Kind::Corrupt, "it heard more than was said"));
    }
    if seen.reset && said.left.is_none() {
        return Err((Kind::WrongEnd, "a RST came that nobody sent"));
    }
    if seen.eof {
        let whole = hearer.heard == speaker.said;
        let due = said.finished || said.left == Some(Leave::Close);
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

    fn whole(said: u64, heard: u64) -> Story {
        Story {
            bytes: said,
            said,
            heard,
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
