//! Moves a body from one connection to another, however its end is marked.

use std::io;

use crate::http::{BodyKind, ChunkScanner, Delivery, Next, Piece, Refusal, ReplyFacts};
use crate::runtime::TcpStream;
use crate::server::peer::ReadHalf;
use crate::server::read_buffer::ReadBuffer;
use crate::transfer::{
    Broken, Gathering, Limit, Moved, TransferContext, YieldBudget, is_chunk_spliced,
    is_moved_unseen, readable_or_pushed, transfer,
};
use weir_core::proxy::Engine;

/// What is still to come of a body.
pub enum Body {
    /// So many bytes.
    Length(u64),
    /// Chunks, and how many bytes of data come next.
    Chunked(ChunkScanner, u64),
    /// The last chunk has gone by.
    Ended,
    /// All until the sender's end.
    UntilEnd,
}

/// Why a body stopped on its way.
#[derive(Debug)]
pub enum Stopped {
    /// A connection broke.
    Broken(Broken),
    /// The sender ended before the body did.
    Incomplete,
    /// The chunks are malformed.
    Malformed(Refusal),
}

impl From<Broken> for Stopped {
    fn from(broken: Broken) -> Stopped {
        Stopped::Broken(broken)
    }
}

impl Body {
    /// The whole body; one of chunks is read by `scanner`. A tunnel is not a body, and has length 0 here.
    fn new(kind: BodyKind, scanner: ChunkScanner) -> Body {
        match kind {
            BodyKind::None | BodyKind::Tunnel => Body::Length(0),
            BodyKind::Length(bytes) => Body::Length(bytes),
            BodyKind::Chunked => Body::Chunked(scanner, 0),
            BodyKind::UntilClose => Body::UntilEnd,
        }
    }

    /// Whether all of it has gone by.
    pub fn is_done(&self) -> bool {
        matches!(self, Body::Length(0) | Body::Ended)
    }

    /// Says how many of these bytes belong to the body, and counts them as gone by; in `moved`, without
    /// the framing of chunks.
    pub fn claim(&mut self, bytes: &[u8], moved: &Moved) -> Result<usize, Refusal> {
        match self {
            Body::Length(left) => {
                let claimed = bytes
                    .len()
                    .min(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= claimed as u64;
                moved.add(claimed as u64);
                Ok(claimed)
            }
            Body::Chunked(scanner, data) => {
                let scanned = scanner.scan(bytes)?;
                match scanned.next {
                    Next::Framing => *data = 0,
                    Next::Data(left) => *data = left,
                    Next::End => *self = Body::Ended,
                }
                moved.add(scanned.data as u64);
                Ok(scanned.body)
            }
            Body::Ended => Ok(0),
            Body::UntilEnd => {
                moved.add(bytes.len() as u64);
                Ok(bytes.len())
            }
        }
    }

    /// What the engines may move unseen.
    fn unseen(&self, engine: Engine) -> Option<Limit> {
        match self {
            Body::Length(left) => is_moved_unseen(engine, *left).then_some(Limit::Bytes(*left)),
            Body::Chunked(_, data) => {
                is_chunk_spliced(engine, *data).then_some(Limit::Bytes(*data))
            }
            Body::Ended => None,
            Body::UntilEnd => Some(Limit::UntilEnd),
        }
    }

    fn moved_unseen(&mut self, bytes: u64) {
        match self {
            Body::Length(left) => *left -= bytes,
            Body::Chunked(scanner, data) => {
                scanner.skip(bytes);
                *data -= bytes;
            }
            Body::Ended | Body::UntilEnd => {}
        }
    }
}

/// What follows a message on its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behind {
    /// Perhaps another, some time.
    Another,
    /// The end: a last segment that is not full waits for the FIN, and both are one packet. So the connection must be
    /// shut down next, before the task waits for anything and before the close.
    End,
}

impl Behind {
    /// What follows an answer of the proxy's own, or from its cache.
    pub fn answer(keep_alive: bool) -> Behind {
        match keep_alive {
            true => Behind::Another,
            false => Behind::End,
        }
    }

    /// What follows a reply. After the head that makes its connection a tunnel nothing ends yet.
    pub fn of(reply: &ReplyFacts, delivery: Delivery) -> Behind {
        Behind::answer(delivery.keep_alive || reply.body == BodyKind::Tunnel)
    }
}

/// Sends the first bytes of the buffer. Those that the socket does not take at once wait in memory of
/// their own length.
pub async fn send_from_buffer(
    buffer: &mut ReadBuffer,
    bytes: usize,
    to: &TcpStream,
) -> io::Result<()> {
    let sent = to.try_send(&buffer.bytes()[..bytes], false)?.unwrap_or(0);
    buffer.consume(sent);
    if sent < bytes {
        let rest = buffer.take(bytes - sent);
        to.send_all(&rest, false).await?;
    }
    Ok(())
}

/// A body on its way from one connection to another.
pub struct BodyTransfer<'a> {
    /// The connection that it comes from. What follows the body is left there.
    pub from: ReadHalf<'a>,
    /// The connection that it goes to.
    pub to: &'a TcpStream,
    /// What is still to come.
    pub body: Body,
    /// Counts its bytes as they go.
    pub moved: &'a Moved,
    /// Whether the last segment that was sent waits for what comes next: see [`readable_or_pushed`].
    held_back: bool,
}

impl<'a> BodyTransfer<'a> {
    /// The whole body of a request, of which nothing was sent yet.
    pub fn of_request(
        from: ReadHalf<'a>,
        to: &'a TcpStream,
        kind: BodyKind,
        moved: &'a Moved,
    ) -> Self {
        BodyTransfer::new(from, to, Body::new(kind, ChunkScanner::new()), moved)
    }

    /// The whole body of a reply, of which nothing was sent yet.
    pub fn of_reply(
        from: ReadHalf<'a>,
        to: &'a TcpStream,
        kind: BodyKind,
        moved: &'a Moved,
    ) -> Self {
        BodyTransfer::new(from, to, Body::new(kind, ChunkScanner::of_reply()), moved)
    }

    fn new(from: ReadHalf<'a>, to: &'a TcpStream, body: Body, moved: &'a Moved) -> Self {
        BodyTransfer {
            from,
            to,
            body,
            moved,
            held_back: false,
        }
    }
}

impl BodyTransfer<'_> {
    /// Sends a head, and in the same call what came of the body with it.
    pub async fn send_with_head(&mut self, head: &[u8], behind: Behind) -> Result<(), Stopped> {
        let rest = self.try_send_with_head(head, behind)?;
        Ok(self.to.send_all(&rest, false).await.map_err(Broken::To)?)
    }

    /// As [`send_with_head`](Self::send_with_head), what the socket takes now. The rest, which is to be sent next, comes back in
    /// memory of its own length; mostly it is nothing. Whatever comes of it, what was claimed is out of the buffer: what is
    /// left there is read as the next message.
    pub fn try_send_with_head(&mut self, head: &[u8], behind: Behind) -> Result<Vec<u8>, Stopped> {
        let BodyTransfer {
            from,
            to,
            body,
            moved,
            held_back,
        } = self;
        let (from, buffer) = (from.stream, &mut *from.buffer);
        let claimed = body.claim(buffer.bytes(), moved);
        let claimed = claimed.map_err(Stopped::Malformed)?;
        // What is there already needs no wait for the next segment.
        let follows = !from.is_quiet() && matches!(body, Body::Length(1..));
        let more = match body.is_done() {
            true => behind == Behind::End,
            false => follows,
        };
        *held_back = follows;
        let send = |bytes: &[u8], more| to.try_send(bytes, more).map_err(Broken::To);
        if claimed > 0 && buffer.prepend(head) {
            let whole = head.len() + claimed;
            let sent = send(&buffer.bytes()[..whole], more);
            let gone = sent.as_ref().map_or(whole, |sent| sent.unwrap_or(0));
            buffer.consume(gone);
            sent?;
            *held_back &= gone == whole;
            return Ok(buffer.take(whole - gone));
        }
        let data = buffer.take(claimed);
        let sent = send(head, more || claimed > 0)?.unwrap_or(0);
        let rest = [&head[sent..], &data].concat();
        *held_back &= rest.is_empty();
        Ok(rest)
    }

    /// Moves the rest of a body, and leaves what follows it in the sender's buffer and socket.
    pub async fn relay(&mut self, context: TransferContext<'_>) -> Result<(), Stopped> {
        let BodyTransfer {
            from,
            to,
            body,
            moved,
            held_back,
        } = self;
        let (from, buffer) = (from.stream, &mut *from.buffer);
        let TransferContext { resources, rules } = context;
        let mut budget = YieldBudget::default();
        while !body.is_done() {
            if !buffer.is_empty() {
                let claimed = body.claim(buffer.bytes(), moved);
                let claimed = claimed.map_err(Stopped::Malformed)?;
                to.handle().set_deadline(rules.idle);
                send_from_buffer(buffer, claimed, to)
                    .await
                    .map_err(Broken::To)?;
                *held_back = false;
                budget.spend(claimed, to.handle()).await;
            } else if let Some(limit) = body.unseen(rules.engine) {
                let (sender, back) = (Gathering::new(from, *held_back), Moved::default());
                let transferred = transfer(context, sender, to, limit, [*moved, &back]).await?;
                body.moved_unseen(transferred.bytes);
                *held_back = transferred.held_back;
                match limit {
                    Limit::UntilEnd => return Ok(()),
                    Limit::Bytes(_) if transferred.ended => return Err(Stopped::Incomplete),
                    Limit::Bytes(_) => {}
                }
            } else {
                from.handle().set_deadline(rules.idle);
                let readable = readable_or_pushed(from, to, held_back).await;
                readable.map_err(Broken::From)?;
                if to.is_broken() {
                    return Err(Broken::To(to.take_error()).into());
                }
                let received = buffer.try_receive_at_most(&resources.buffers, from, usize::MAX);
                if received.map_err(Broken::From)? == Some(0) {
                    return Err(Stopped::Incomplete);
                }
            }
        }
        Ok(())
    }
}

/// Moves the data of a reply's chunked body without its framing, for a client that does not know chunks.
pub async fn relay_data_alone(
    context: TransferContext<'_>,
    from: &mut ReadHalf<'_>,
    to: &TcpStream,
    moved: &Moved,
) -> Result<(), Stopped> {
    let ReadHalf {
        stream: from,
        buffer,
    } = from;
    let TransferContext { resources, rules } = context;
    let mut scanner = ChunkScanner::of_reply();
    let mut budget = YieldBudget::default();
    loop {
        from.handle().set_deadline(rules.idle);
        let piece = scanner.piece(buffer.bytes());
        match piece.map_err(Stopped::Malformed)? {
            Piece::End => return Ok(()),
            Piece::Framing(0) | Piece::Data(0) => {
                if buffer
                    .receive(&resources.buffers, from)
                    .await
                    .map_err(Broken::From)?
                    == 0
                {
                    return Err(Stopped::Incomplete);
                }
            }
            Piece::Framing(bytes) => buffer.consume(bytes),
            Piece::Data(bytes) => {
                moved.add(bytes as u64);
                send_from_buffer(buffer, bytes, to)
                    .await
                    .map_err(Broken::To)?;
                budget.spend(bytes, to.handle()).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::Version;

    #[test]
    fn the_head_that_begins_a_tunnel_is_held_back_for_no_end() {
        let mut reply = ReplyFacts {
            len: 0,
            status: 101,
            version: Version::Http11,
            body: BodyKind::Tunnel,
            keep_alive: false,
            client_close: false,
        };
        let mut delivery = Delivery {
            dechunk: false,
            keep_alive: false,
            asks: false,
        };
        assert_eq!(Behind::of(&reply, delivery), Behind::Another);
        reply.body = BodyKind::Length(5);
        assert_eq!(Behind::of(&reply, delivery), Behind::End);
        delivery.keep_alive = true;
        assert_eq!(Behind::of(&reply, delivery), Behind::Another);
    }
}
