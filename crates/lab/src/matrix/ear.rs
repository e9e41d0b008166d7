//! Who listens to a connection: checks each byte, and answers where an answer is due.

use std::fmt;

use super::fault::Fault;
use super::http::{Asking, Serving};
use super::pattern::Pattern;
use super::plan::Cut;
use super::speech::Speech;
use super::tunnel::TunnelEnd;

/// The three kinds of ends.
pub enum Ear {
    /// Either end of a tunnel.
    Tunnel(TunnelEnd),
    /// A client that asks for replies.
    Asking(Asking),
    /// An origin that serves requests.
    Serving(Serving),
}

impl Ear {
    /// A number that tells it from others of the run.
    pub fn number(&self) -> u64 {
        match self {
            Ear::Tunnel(end) => end.stream(),
            Ear::Asking(asking) => asking.id(),
            Ear::Serving(serving) => serving.serial(),
        }
    }

    /// The connection is there: says what is to be said unasked.
    pub fn connected(&mut self, speech: &mut Speech) {
        match self {
            Ear::Tunnel(end) => end.connected(speech),
            Ear::Asking(asking) => asking.connected(speech),
            Ear::Serving(_) => {}
        }
    }

    /// Bytes have come. Says when the end is to leave, if that is known now.
    pub fn hear(
        &mut self,
        pattern: &Pattern,
        bytes: &[u8],
        speech: &mut Speech,
    ) -> Result<Option<Cut>, Fault> {
        match self {
            Ear::Tunnel(end) => end.hear(pattern, bytes, speech).map(|()| None),
            Ear::Asking(asking) => asking.hear(pattern, bytes, speech).map(|()| None),
            Ear::Serving(serving) => serving.hear(pattern, bytes, speech),
        }
    }

    /// The other end's end has come.
    pub fn ended(&mut self, speech: &mut Speech) -> Result<(), Fault> {
        match self {
            Ear::Tunnel(end) => end.ended(speech),
            Ear::Asking(asking) => asking.ended(speech),
            Ear::Serving(serving) => return serving.ended(speech),
        }
        Ok(())
    }
}

impl fmt::Display for Ear {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ear::Tunnel(end) => write!(f, "tunnel {}, {:?}", end.id(), end.side()),
            Ear::Asking(asking) => write!(f, "call {}", asking.id()),
            Ear::Serving(serving) => write!(
                f,
                "origin's connection {} after {} requests",
                serving.serial(),
                serving.served()
            ),
        }
    }
}
