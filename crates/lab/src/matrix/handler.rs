//! What handles the bytes of a connection: it checks each, and answers where an answer is due.

use std::fmt;

use super::fault::Fault;
use super::http::{Asking, Serving};
use super::outgoing::Outgoing;
use super::pattern::Pattern;
use super::plan::Cut;
use super::tunnel::TunnelEnd;

/// The three kinds of ends.
pub enum Handler {
    /// Either end of a tunnel.
    Tunnel(TunnelEnd),
    /// A client that asks for replies.
    Asking(Asking),
    /// An origin that serves requests.
    Serving(Serving),
}

impl Handler {
    /// A number that tells it from others of the run.
    pub fn number(&self) -> u64 {
        match self {
            Handler::Tunnel(end) => end.stream(),
            Handler::Asking(asking) => asking.id(),
            Handler::Serving(serving) => serving.serial(),
        }
    }

    /// The connection is there: queues what is to be sent unasked.
    pub fn connected(&mut self, outgoing: &mut Outgoing) {
        match self {
            Handler::Tunnel(end) => end.connected(outgoing),
            Handler::Asking(asking) => asking.connected(outgoing),
            Handler::Serving(_) => {}
        }
    }

    /// Bytes have come. Returns when the end is to leave, if that is known now.
    pub fn receive(
        &mut self,
        pattern: &Pattern,
        bytes: &[u8],
        outgoing: &mut Outgoing,
    ) -> Result<Option<Cut>, Fault> {
        match self {
            Handler::Tunnel(end) => end.receive(pattern, bytes, outgoing).map(|()| None),
            Handler::Asking(asking) => asking.receive(pattern, bytes, outgoing).map(|()| None),
            Handler::Serving(serving) => serving.receive(pattern, bytes, outgoing),
        }
    }

    /// The other end's end has come.
    pub fn ended(&mut self, outgoing: &mut Outgoing) -> Result<(), Fault> {
        match self {
            Handler::Tunnel(end) => end.ended(outgoing),
            Handler::Asking(asking) => asking.ended(outgoing),
            Handler::Serving(serving) => return serving.ended(outgoing),
        }
        Ok(())
    }
}

impl fmt::Display for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Handler::Tunnel(end) => write!(f, "tunnel {}, {:?}", end.id(), end.side()),
            Handler::Asking(asking) => write!(f, "call {}", asking.id()),
            Handler::Serving(serving) => write!(
                f,
                "origin's connection {} after {} requests",
                serving.serial(),
                serving.served()
            ),
        }
    }
}
