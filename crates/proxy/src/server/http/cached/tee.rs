//! Passes a reply of unknown length on to its client, and keeps a copy of its data as long as that
//! is not too much. Others get it once it is whole: until then it is not known whether it will be kept.

use std::io;
use std::time::Duration;

use super::context::CacheContext;
use super::keep::store;
use crate::cache::conditions::kept as kept_head;
use crate::cache::{
    AbandonedReply, Body as KeptBody, EntryHead, Lead, MemoryReservation, Pieces, finishes,
};
use crate::http::{ChunkScanner, Delivery, Piece, ReplyFacts};
use crate::runtime::TcpStream;
use crate::server::client::Client;
use crate::server::http::body::{Behind, BodyTransfer, Stopped, send_from_buffer};
use crate::server::http::failure::Failure;
use crate::server::http::progress::{Answered, Exchange, Progress};
use crate::server::peer::{Peer, ReadHalf};
use crate::server::read_buffer::ReadBuffer;
use crate::server::worker::Worker;
use crate::transfer::{Broken, YieldBudget};

/// A reply that is kept when it turns out to be whole and not too long.
pub struct Tee {
    /// The server's head, as it would go out without a cache.
    pub head: Vec<u8>,
    /// The head that goes to the client.
    pub outgoing: Vec<u8>,
    /// The right to keep it.
    pub lead: Lead,
    /// Memory for its body, which grows with it.
    pub reservation: MemoryReservation,
    /// How it may be used.
    pub terms: crate::cache::policy::Terms,
}

/// The data of a body as it goes by.
struct Copy {
    scanner: ChunkScanner,
    pieces: Pieces,
    reservation: MemoryReservation,
    longest: u64,
}

impl Copy {
    /// Copies the data in the next bytes of the body. False if it has become too much.
    fn take(&mut self, mut bytes: &[u8]) -> bool {
        loop {
            let data = match self.scanner.piece(bytes) {
                Ok(Piece::Framing(0) | Piece::Data(0) | Piece::End) => return true,
                Ok(Piece::Framing(length)) => {
                    bytes = &bytes[length..];
                    continue;
                }
                Ok(Piece::Data(length)) => length,
                Err(_) => return false,
            };
            let length = self.pieces.length() + data as u64;
            if length > self.longest || !self.reservation.grow(data as u64) {
                return false;
            }
            self.pieces.copy(&bytes[..data]);
            bytes = &bytes[data..];
        }
    }
}

/// The client's side of it.
struct Recipient<'a> {
    client: &'a TcpStream,
    /// Since when it is gone, and the bytes that had come by then.
    gone: Option<(u64, u64)>,
}

impl Recipient<'_> {
    /// Sends the first bytes of the buffer, or throws them away if the client is gone.
    async fn give(&mut self, buffer: &mut ReadBuffer, bytes: usize, moved: u64) {
        let after = buffer.bytes().len() - bytes;
        if self.gone.is_none() && send_from_buffer(buffer, bytes, self.client).await.is_err() {
            self.gone = Some((self.client.handle().now(), moved));
        }
        buffer.consume(buffer.bytes().len() - after);
    }
}

/// Sends the reply, and keeps it.
pub async fn tee(
    exchange: Exchange<'_>,
    client: &Client,
    reply: Tee,
    (facts, delivery): (ReplyFacts, Delivery),
    server: &mut Peer,
) -> Result<(), Failure> {
    let Exchange {
        worker,
        request,
        progress,
    } = exchange;
    let Tee {
        head,
        outgoing,
        lead,
        reservation,
        terms,
    } = reply;
    let mut copy = Copy {
        scanner: ChunkScanner::of_reply(),
        pieces: Pieces::default(),
        reservation,
        longest: worker
            .cache
            .as_ref()
            .map_or(0, |thread_cache| thread_cache.cache.longest()),
    };
    debug_assert!(!delivery.dechunk);
    let mut keeps = copy.take(server.buffer.bytes());
    let mut transfer = BodyTransfer::of_reply(
        server.read_half(),
        &client.stream,
        facts.body,
        &progress.down,
    );
    let behind = Behind::of(&facts, delivery);
    let sent = transfer.send_with_head(&outgoing, behind).await;
    // With malformed chunks nothing was sent, and the client gets the proxy's own reply.
    if !matches!(sent, Err(Stopped::Malformed(_))) {
        progress.answered.set(Answered::Framed);
        worker.counters.count_reply(facts.status);
        client.note(|entry| entry.status.set(Some(facts.status)));
    }
    sent?;
    let mut recipient = Recipient {
        client: &client.stream,
        gone: None,
    };
    let mut budget = YieldBudget::default();
    while keeps && !transfer.body.is_done() {
        if !goes_on(worker, &recipient, progress) {
            return Err(gone());
        }
        worker.handle.set_deadline(worker.settings.idle_timeout);
        let ReadHalf { stream, buffer } = &mut transfer.from;
        let received = buffer.receive(&worker.resources.buffers, stream).await;
        if received.map_err(Broken::From).map_err(Stopped::from)? == 0 {
            return Err(Stopped::Incomplete.into());
        }
        let claimed = transfer.body.claim(buffer.bytes(), &progress.down);
        let claimed = claimed.map_err(Stopped::Malformed)?;
        keeps = copy.take(&buffer.bytes()[..claimed]);
        recipient.give(buffer, claimed, progress.down.get()).await;
        budget.spend(claimed, &worker.handle).await;
    }
    if keeps {
        if recipient.gone.is_some() {
            worker.counters.cache_finished.add(1);
        }
        let body = KeptBody::whole(copy.pieces, copy.reservation);
        let head = EntryHead {
            bytes: kept_head(&head),
            status: facts.status,
            terms,
        };
        match CacheContext::of(worker, request) {
            Some(context) => store(context, lead, head, body),
            None => lead.pass(),
        }
        return match recipient.gone {
            Some(_) => Err(gone()),
            None => Ok(()),
        };
    }
    lead.pass();
    drop(copy);
    if recipient.gone.is_some() {
        return Err(gone());
    }
    transfer.relay(worker.transfers()).await?;
    Ok(())
}

fn gone() -> Failure {
    Failure::Client(io::ErrorKind::ConnectionReset.into())
}

/// Whether there is a client, or it is worth finishing without one.
fn goes_on(worker: &Worker, recipient: &Recipient<'_>, progress: &Progress) -> bool {
    let Some((at, received)) = recipient.gone else {
        return true;
    };
    let reply = AbandonedReply {
        received: progress.down.get(),
        length: None,
        since: progress.down.get() - received,
        elapsed: Duration::from_millis(worker.handle.now() - at),
    };
    finishes(worker.settings.finish_on_abort, reply)
}
