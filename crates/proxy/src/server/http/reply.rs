//! From a server's bytes to the client: heads, and the body behind the last of them.

use std::io::{self, ErrorKind};

use super::body::{Behind, BodyTransfer, Stopped, relay_data_alone};
use super::cached::{self, CacheContext, Decision};
use super::failure::Failure;
use super::progress::{Answered, Exchange};
use super::pseudonym::PSEUDONYM;
use super::scratch::Head;
use crate::cache::fields;
use crate::http::rewrite::{self, ReplyEdit};
use crate::http::{BodyKind, Delivery, FieldSlots, Refusal, ReplyFacts, Version, read_reply};
use crate::runtime::TcpStream;
use crate::server::peer::ReadHalf;
use crate::server::read_buffer::ReadBuffer;
use crate::transfer::is_head_alone;

/// Interim replies (1xx) to one request at most. A server that sends one each second has more than a quarter of an hour.
/// A server that never stops would never be late, because there is always something to read.
const MOST_INTERIM: u32 = 1000;

/// A reply that has reached the client.
#[derive(Debug, Clone, Copy)]
pub struct Delivered {
    /// What it was.
    pub facts: ReplyFacts,
    /// The client's connection may go on.
    pub keep_alive: bool,
    /// The client was asked to close it.
    pub asks: bool,
}

/// What has become of a reply.
pub enum Reply {
    /// It has reached the client.
    Delivered(Delivered),
    /// The cache takes it, from after its head on.
    ForCache(Box<Decision>, ReplyFacts),
}

impl Reply {
    /// What follows its head is no longer HTTP.
    pub fn is_tunnel(&self) -> bool {
        matches!(self, Reply::Delivered(delivered) if delivered.facts.body == BodyKind::Tunnel)
    }
}

/// Reads the reply and sends it to the client, up to the end of its body; what becomes a tunnel is
/// left after its head, and so is what the cache takes.
pub async fn deliver(
    exchange: Exchange<'_>,
    mut server: ReadHalf<'_>,
    client: &TcpStream,
) -> Result<Reply, Failure> {
    let Exchange {
        worker,
        request,
        progress,
    } = exchange;
    let mut head = worker.scratch.lend();
    let mut interim = 0;
    let (facts, delivery) = loop {
        head.clear();
        let read = read_head(exchange, &mut server, client, &mut head).await;
        let (facts, delivery) = read.map_err(|failure| after_interim(failure, interim > 0))?;
        if !facts.is_interim() {
            break (facts, delivery);
        }
        interim += 1;
        if interim > MOST_INTERIM {
            return Err(Failure::Malformed(Refusal::TooManyInterim));
        }
        let restart_idle_time = || worker.handle.set_deadline(worker.settings.idle_timeout);
        if request.facts.version == Version::Http11 {
            restart_idle_time();
            let sent = client.send_all(&head, false).await;
            sent.map_err(Failure::Client)?;
        }
        restart_idle_time();
    };
    if let Some(thread_cache) = &worker.cache {
        if !request.facts.method.is_safe() {
            cached::outdate(thread_cache, &request.head, facts.status, &head);
        }
        if let Some(context) = CacheContext::of(worker, request)
            && let Some(decision) = cached::decide(context, &facts, delivery, &mut head)
        {
            return Ok(Reply::ForCache(Box::new(decision), facts));
        }
    }
    worker.handle.set_deadline(worker.settings.idle_timeout);
    let (transfers, moved) = (worker.transfers(), &progress.down);
    progress.status.set(Some(facts.status));
    if delivery.dechunk {
        progress.answered.set(Answered::UntilClose);
        worker.counters.count_reply(facts.status);
        let sent = client.send_all(&head, true).await;
        sent.map_err(Failure::Client)?;
        drop(head);
        relay_data_alone(transfers, &mut server, client, moved).await?;
    } else {
        let mut body = BodyTransfer::of_reply(server, client, facts.body, moved);
        let behind = Behind::of(&facts, delivery);
        let sent = body.send_with_head(&head, behind).await;
        progress.answered.set(match (&sent, facts.body) {
            (Err(Stopped::Malformed(_)), _) => Answered::No,
            (_, BodyKind::UntilClose | BodyKind::Tunnel) => Answered::UntilClose,
            (_, _) => Answered::Framed,
        });
        match progress.answered.get() {
            Answered::No => progress.status.set(None),
            _ => worker.counters.count_reply(facts.status),
        }
        sent?;
        drop(head);
        body.relay(transfers).await?;
    }
    let head_alone = is_head_alone(worker.settings.engine, moved.get());
    worker
        .forecast
        .learn(request.forecast_slot, head_alone.then_some(facts.len));
    Ok(Reply::Delivered(Delivered {
        facts,
        keep_alive: delivery.keep_alive,
        asks: delivery.asks,
    }))
}

/// The failure, if it came after interim replies: with them the server has begun to answer.
fn after_interim(failure: Failure, has_begun: bool) -> Failure {
    match failure {
        Failure::Unanswered(_) if has_begun => Failure::Broken(Stopped::Incomplete),
        failure => failure,
    }
}

/// Waits for a head, and writes the one that goes to the client.
async fn read_head(
    exchange: Exchange<'_>,
    server: &mut ReadHalf<'_>,
    client: &TcpStream,
    out: &mut Head,
) -> Result<(ReplyFacts, Delivery), Failure> {
    let Exchange {
        worker,
        request,
        progress,
    } = exchange;
    let ReadHalf {
        stream: server,
        buffer,
    } = server;
    let mut seen = 0;
    let mut most = worker.forecast.first_receive_bytes(request.forecast_slot);
    loop {
        if !buffer.is_empty() {
            let read = rewrite_head(exchange, buffer, seen, out);
            if let Some(read) = read.map_err(Failure::Malformed)? {
                return Ok(read);
            }
            seen = buffer.bytes().len();
            most = usize::MAX;
        }
        let waited = server.readable_or_broken_lazily(client).await;
        if client.is_broken() {
            return Err(Failure::Client(client.take_error()));
        }
        let received = match waited {
            Ok(()) => {
                buffer
                    .receive_at_most(&worker.resources.buffers, server, most)
                    .await
            }
            Err(error) => Err(error),
        };
        match received {
            Ok(1..) => progress.note_received(&worker.handle),
            Ok(0) => return Err(unfinished(buffer, ErrorKind::UnexpectedEof.into())),
            Err(error) => return Err(unfinished(buffer, error)),
        }
    }
}

/// Why there is no head, or not all of it.
fn unfinished(buffer: &ReadBuffer, error: io::Error) -> Failure {
    let is_late = error.kind() == ErrorKind::TimedOut;
    match (buffer.is_empty(), is_late) {
        (true, true) => Failure::Late,
        (false, true) => Failure::Slow,
        (true, false) => Failure::Unanswered(error),
        (false, false) => Failure::Broken(Stopped::Incomplete),
    }
}

/// Not a future: the slots are 4 KiB.
fn rewrite_head(
    exchange: Exchange<'_>,
    buffer: &mut ReadBuffer,
    seen: usize,
    out: &mut Head,
) -> Result<Option<(ReplyFacts, Delivery)>, Refusal> {
    let Exchange {
        worker, request, ..
    } = exchange;
    let mut slots = FieldSlots::new();
    let limits = &worker.limits;
    let asked = &request.facts;
    let Some(head) = read_reply(buffer.bytes(), seen, asked, limits, &mut slots)? else {
        return Ok(None);
    };
    let facts = head.facts;
    if facts.status == 101 {
        head.switches_to(fields::values(&request.head, "upgrade"))?;
    }
    let uploaded = exchange.progress.uploaded.get();
    let asks = uploaded && request.may_ask && worker.is_draining();
    let closing = !uploaded || worker.is_draining() && !asks;
    let delivery = Delivery::of(asked, &facts, worker.role(), closing);
    let delivery = match asks {
        true => delivery.and_asks(),
        false => delivery,
    };
    let date = worker.date();
    let edit = ReplyEdit {
        via: PSEUDONYM,
        date: Some(&date),
        delivery,
        client: asked.version,
    };
    rewrite::reply(&head, &edit, out);
    buffer.consume(facts.len);
    Ok(Some((facts, delivery)))
}
