//! The emulated SSL handshake of RR02 (Table 3): messages of the right lengths in the right order, before the request.
//!
//! Neither end runs SSL, and all bytes of a message are alike. The first byte of the client's first message, which is none
//! of a request, tells the server which of the two handshakes it is.

use std::collections::VecDeque;

use crate::error::{Error, Result};

/// An end of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It begins.
    Client,
    /// The origin.
    Server,
}

/// Which handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Of ends that do not know each other.
    Full,
    /// Of ends that go on with an earlier session.
    Abbreviated,
}

use End::{Client, Server};

/// Who sends how many bytes (RR02, Table 3).
const FULL: &[(End, usize)] = &[
    (Client, 98),
    (Server, 2239),
    (Client, 73),
    (Server, 6),
    (Client, 67),
    (Server, 61),
];
const ABBREVIATED: &[(End, usize)] = &[
    (Client, 98),
    (Server, 79),
    (Server, 6),
    (Server, 61),
    (Client, 6),
    (Client, 61),
];
/// The longest message.
const LONGEST: usize = 2239;

impl Kind {
    /// The handshake of a client's connection with this number: of five, three are abbreviated, as 60 % of RR02's.
    pub fn of_connection(number: u64) -> Kind {
        match number * 3 % 5 {
            0..3 => Kind::Abbreviated,
            _ => Kind::Full,
        }
    }

    /// The one that begins with this byte, if one does.
    pub fn beginning_with(byte: u8) -> Option<Kind> {
        let mut all = [Kind::Full, Kind::Abbreviated].into_iter();
        all.find(|kind| kind.byte() == byte)
    }

    /// What its messages are made of. No request begins with it.
    fn byte(self) -> u8 {
        match self {
            Kind::Full => 0x16,
            Kind::Abbreviated => 0x17,
        }
    }

    fn messages(self) -> &'static [(End, usize)] {
        match self {
            Kind::Full => FULL,
            Kind::Abbreviated => ABBREVIATED,
        }
    }
}

/// A handshake under way, at one end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handshake {
    end: End,
    kind: Kind,
    /// Messages that are to be sent or to come; of the first, bytes.
    left: VecDeque<(End, usize)>,
}

impl Handshake {
    /// At its beginning.
    pub fn new(end: End, kind: Kind) -> Handshake {
        Handshake {
            end,
            kind,
            left: kind.messages().iter().copied().collect(),
        }
    }

    /// Whether nothing is left of it.
    pub fn is_over(&self) -> bool {
        self.left.is_empty()
    }

    /// Sends the messages that are this end's turn, each by a call of its own.
    pub fn send(&mut self, mut send: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let message = [self.kind.byte(); LONGEST];
        while let Some((end, length)) = self.left.front().copied() {
            if end != self.end {
                break;
            }
            send(&message[..length])?;
            self.left.pop_front();
        }
        Ok(())
    }

    /// Takes bytes that came; how many of them belong to messages of the other end that were due.
    ///
    /// # Errors
    /// One is not of this handshake.
    pub fn take(&mut self, bytes: &[u8]) -> Result<usize> {
        let mut taken = 0;
        while let Some((end, due)) = self.left.front_mut() {
            if *end == self.end || taken == bytes.len() {
                break;
            }
            let length = (*due).min(bytes.len() - taken);
            *due -= length;
            taken += length;
            if *due == 0 {
                self.left.pop_front();
            }
        }
        match bytes[..taken]
            .iter()
            .find(|byte| **byte != self.kind.byte())
        {
            Some(byte) => Err(Error::failed(
                "a handshake is wrong",
                format!("it has the byte {byte:#x}"),
            )),
            None => Ok(taken),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The messages of both ends, as each arrives in pieces of `piece` bytes at most.
    fn run(kind: Kind, piece: usize) -> Vec<(End, usize)> {
        let mut ends = [Client, Server].map(|end| Handshake::new(end, kind));
        let mut seen = Vec::new();
        while !ends.iter().all(Handshake::is_over) {
            for from in 0..2 {
                let mut sent = Vec::new();
                let end = ends[from].end;
                let send = |message: &[u8]| {
                    seen.push((end, message.len()));
                    sent.extend_from_slice(message);
                    Ok(())
                };
                ends[from].send(send).unwrap();
                for part in sent.chunks(piece) {
                    assert_eq!(ends[1 - from].take(part).unwrap(), part.len());
                }
            }
        }
        seen
    }

    #[test]
    fn both_ends_send_the_messages_of_the_paper_in_its_order() {
        for piece in [1, 50, 4096] {
            assert_eq!(run(Kind::Full, piece), FULL);
            assert_eq!(run(Kind::Abbreviated, piece), ABBREVIATED);
        }
    }

    #[test]
    fn three_of_five_handshakes_are_abbreviated() {
        let all = (0..100).map(Kind::of_connection);
        assert_eq!(all.filter(|kind| *kind == Kind::Abbreviated).count(), 60);
    }

    #[test]
    fn what_follows_a_handshake_is_left_and_what_is_not_of_it_is_refused() {
        let mut server = Handshake::new(Server, Kind::Abbreviated);
        assert_eq!(server.take(&[0x17; 98]).unwrap(), 98);
        assert_eq!(server.take(&[0x17; 9]).unwrap(), 0);
        server.send(|_| Ok(())).unwrap();
        let last = [&[0x17; 67][..], b"GET /"].concat();
        assert_eq!(server.take(&last).unwrap(), 67);
        assert!(server.is_over());
        assert!(
            Handshake::new(Server, Kind::Full)
                .take(b"\x16\x17")
                .is_err()
        );
        assert_eq!(Kind::beginning_with(b'G'), None);
    }
}
