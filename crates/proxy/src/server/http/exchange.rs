//! One request and its reply: choosing a server, sending, trying again where that is safe.

use std::cell::Cell;
use std::io::{self, ErrorKind};
use std::pin::pin;

use super::after::After;
use super::body::{Behind, BodyTransfer, Stopped};
use super::cached;
use super::failure::Failure;
use super::finish::{carry, delivered_to};
use super::progress::{Answered, Exchange, Progress};
use super::prohibited::Prohibited;
use super::refuse::{is_head, leaves_nothing, refuse};
use super::reply::{Reply, deliver};
use super::request::Request;
use super::target::{Choice, Destination, Origin};
use super::unreachable::{GONE, unreachable};
use crate::http::answer::{self, Answer, ProxyError};
use crate::http::{BodyKind, RequestFacts};
use crate::runtime::{first, while_taken};
use crate::server::client::Client;
use crate::server::peer::{LeasedPeer, Peer};
use crate::server::worker::Worker;
use crate::transfer::Broken;
use crate::upstream::{Lease, Link};

/// Sends the request to its destination, and the client the reply.
pub async fn send_on(worker: &Worker, client: &mut Client, request: &Request) -> After {
    match &request.destination {
        Destination::Backend => {
            let walk = worker.upstreams.backends.walk(worker.handle.now());
            forward(worker, client, request, Choice::Backends(walk)).await
        }
        Destination::Origin(origin) => {
            forward(worker, client, request, Choice::Origin(Some(origin))).await
        }
        Destination::Tunnel(origin) => connect(worker, client, request, origin).await,
        Destination::Proxy => options(worker, client, request).await,
        Destination::End => After::AwaitEnd,
        Destination::Refused(answer) => fail(worker, client, request, *answer).await,
    }
}

/// Answers with an error of the proxy's own.
async fn fail(worker: &Worker, client: &Client, request: &Request, answer: Answer<'_>) -> After {
    // A refusal is no failure that a kept reply could stand in for.
    if answer.status >= 500
        && request.asked.is_some()
        && let Some(after) = Box::pin(cached::stand_in(worker, client, request)).await
    {
        return after;
    }
    let keep_alive = leaves_nothing(worker, request);
    refuse(worker, client, answer, keep_alive, is_head(request)).await
}

/// Answers a request for which there is no connection to a server.
async fn without_server(
    worker: &Worker,
    client: &Client,
    request: &Request,
    error: &io::Error,
) -> After {
    if let Some(prohibited) = Prohibited::of(error) {
        prohibited.count(&worker.counters);
    }
    fail(worker, client, request, unreachable(error)).await
}

async fn options(worker: &Worker, client: &Client, request: &Request) -> After {
    let keep_alive = leaves_nothing(worker, request);
    worker.counters.count_reply(200);
    let mut reply = worker.scratch.lend();
    answer::options(&worker.date(), keep_alive, &mut reply);
    match client.stream.send_all(&reply, !keep_alive).await {
        Ok(()) if keep_alive => After::Continue,
        Ok(()) => After::Linger,
        Err(_) => After::Close,
    }
}

/// CONNECT: opens a connection and carries bytes both ways.
async fn connect(
    worker: &Worker,
    client: &mut Client,
    request: &Request,
    origin: &Origin,
) -> After {
    worker.handle.set_deadline(worker.settings.connect_timeout);
    let may_connect = worker.settings.may_connect(origin.port);
    let connected = match may_connect {
        true => {
            let (handle, requester) = (&worker.handle, client.requester());
            worker.upstreams.connect(handle, origin, requester).await
        }
        false => Err(Prohibited::Port.into()),
    };
    let link = match connected {
        Ok(link) => link,
        Err(error) => return without_server(worker, client, request, &error).await,
    };
    client.note(|entry| {
        entry.backend.set(Some(link.lease.backend().address));
        entry.status.set(Some(200));
    });
    worker.counters.count_reply(200);
    let mut server = Peer::new(link.stream);
    let greeted = client.stream.send_all(answer::CONNECTED, false).await;
    if greeted.is_err() {
        server.stream.reset_on_close();
        return After::Reset;
    }
    carry(worker, client, &mut server).await
}

/// Sends the request to a server and its reply to the client; to the next server, or on another
/// connection, if one did not begin to answer and the request may be sent twice.
async fn forward(
    worker: &Worker,
    client: &mut Client,
    request: &Request,
    mut choice: Choice<'_>,
) -> After {
    let mut last = io::Error::from(ErrorKind::NotFound);
    let mut own = client.take_link().filter(|link| link.stream.is_quiet());
    let mut same_again: Option<Lease> = None;
    let mut was_sent = false;
    loop {
        worker.handle.set_deadline(worker.settings.connect_timeout);
        let link = match (own.take(), same_again.take()) {
            (Some(link), _) => {
                link.lease.backend().counters.reused.add(1);
                Some(Ok(link))
            }
            (None, Some(lease)) => Some(lease.connect(&worker.handle).await),
            (None, None) => {
                let (handle, requester) = (&worker.handle, client.requester());
                worker.upstreams.next(handle, &mut choice, requester).await
            }
        };
        let link = match link {
            Some(Ok(link)) => link,
            // The client is gone, or was while it waited.
            Some(Err(error)) if error.kind() == ErrorKind::ConnectionAborted => {
                client.note(|entry| entry.because(GONE));
                return After::Close;
            }
            Some(Err(error)) => {
                last = error;
                continue;
            }
            None => return without_server(worker, client, request, &last).await,
        };
        if std::mem::replace(&mut was_sent, true) {
            worker.counters.retries.add(1);
            client.note(|entry| entry.retries.update(|retries| retries + 1));
        }
        let reused = link.reused;
        match attempt(worker, client, request, link).await {
            Ok(after) => return after,
            Err((error, lease)) => {
                last = error;
                // Servers close idle connections; that says nothing of the server.
                same_again = reused.then_some(lease);
            }
        }
    }
}

/// One exchange on one connection. An error: the server did not begin to answer, and the request
/// may be sent again, on a new connection that uses the same lease.
async fn attempt(
    worker: &Worker,
    client: &mut Client,
    request: &Request,
    link: Link,
) -> Result<After, (io::Error, Lease)> {
    let reused = link.reused;
    let mut server = LeasedPeer {
        peer: Peer::new(link.stream),
        lease: link.lease,
    };
    client.note(|entry| {
        entry.backend.set(Some(server.lease.backend().address));
        entry.reused.set(reused);
    });
    if !reused {
        let header = client.proxy_header(worker.settings.send_proxy);
        if let Err(error) = server.peer.stream.send_all(&header, true).await {
            return Err((error, closed(server)));
        }
    }
    let progress = &Progress::begins(&worker.handle, server.lease.backend());
    let exchange = Exchange {
        worker,
        request,
        progress,
    };
    let result = run(exchange, client, &mut server.peer).await;
    let spliced = || progress.up.spliced() + progress.down.spliced();
    let spliced_before = spliced();
    worker.counters.bytes_up.add(progress.up.get());
    worker.counters.bytes_down.add(progress.down.get());
    worker.counters.bytes_spliced.add(spliced_before);
    client.note(|entry| {
        entry.moved(progress.up.get(), progress.down.get());
        entry.moved_by_kernel(spliced_before, 0);
        entry.status.set(progress.status.get());
    });
    match result {
        Ok(Reply::Delivered(delivered)) => {
            Ok(delivered_to(exchange, client, delivered, server).await)
        }
        Ok(Reply::ForCache(decision, facts)) => {
            let source = cached::ServerReply { facts, server };
            let before = progress.down.get();
            let carried_out = Box::pin(cached::carry_out(exchange, client, *decision, source));
            let carried_out = carried_out.await;
            let passed_on = progress.down.get() - before;
            let spliced = spliced() - spliced_before;
            worker.counters.bytes_down.add(passed_on);
            worker.counters.bytes_spliced.add(spliced);
            client.note(|entry| entry.moved(0, passed_on));
            client.note(|entry| entry.moved_by_kernel(spliced, 0));
            match carried_out {
                Ok(after) => Ok(after),
                Err(failure) => Ok(failed(exchange, client, failure).await),
            }
        }
        Err(Failure::Unanswered(error)) if may_be_sent_again(&request.facts) => {
            Err((error, closed(server)))
        }
        Err(failure) => {
            // The client may take its time for the answer.
            drop(server);
            Ok(failed(exchange, client, failure).await)
        }
    }
}

/// Closes the connection and keeps its lease.
fn closed(server: LeasedPeer) -> Lease {
    let LeasedPeer { peer, lease } = server;
    drop(peer);
    lease
}

/// Counts an exchange that failed, and gives the client what it gets instead of a reply.
async fn failed(exchange: Exchange<'_>, client: &mut Client, failure: Failure) -> After {
    let counters = &exchange.worker.counters;
    match failure.is_timeout() {
        true => counters.timed_out.add(1),
        false => counters.transfers_broken.add(1),
    }
    if !matches!(failure, Failure::Client(_) | Failure::Upload(_)) {
        let backend = &exchange.progress.backend;
        backend.counters.failures.add(1);
    }
    broken(exchange, client, failure).await
}

/// Whether the request is idempotent (RFC 9110 Section 9.2.2) and has no body: that is gone once it was sent.
fn may_be_sent_again(facts: &RequestFacts) -> bool {
    facts.method.is_idempotent() && facts.body == BodyKind::None
}

async fn run(
    exchange: Exchange<'_>,
    client: &mut Client,
    server: &mut Peer,
) -> Result<Reply, Failure> {
    let Exchange {
        worker,
        request,
        progress,
    } = exchange;
    worker.handle.set_deadline(worker.settings.idle_timeout);
    let (from, replies) = (client.read_half(), server.read_half());
    let (client, to) = (from.stream, replies.stream);
    let mut body = BodyTransfer::of_request(from, to, request.facts.body, &progress.up);
    let rest = match body.try_send_with_head(&request.head, Behind::Another) {
        Ok(rest) => rest,
        Err(Stopped::Broken(broken)) => {
            // The server may have answered before it closed.
            tracing::debug!("request not sent whole: {}", broken.error());
            Vec::new()
        }
        Err(stopped) => return Err(Failure::Upload(stopped)),
    };
    progress
        .uploaded
        .set(body.body.is_done() && rest.is_empty());
    let (idle, peers) = (worker.settings.idle_timeout, [to, client]);
    let reply = pin!(deliver(exchange, replies, client));
    if progress.uploaded.get() {
        return while_taken(idle, peers, reply).await;
    }
    let mut upload = pin!(upload(exchange, &mut body, &rest));
    let has_ended = Cell::new(false);
    let reply = {
        // Ends only if the exchange must.
        let upload = pin!(async {
            upload.as_mut().await?;
            has_ended.set(true);
            std::future::pending().await
        });
        // The upload first: when both are too late, the proxy has waited for the client's bytes.
        while_taken(idle, peers, pin!(first(upload, reply))).await?
    };
    // A server may go over to the other protocol before it has the whole request. Its tunnel begins behind that: a message is
    // not left in its middle (RFC 9110 Section 7.8).
    if reply.is_tunnel() && !progress.uploaded.get() {
        if !has_ended.get() {
            while_taken(idle, peers, upload).await?;
        }
        if !progress.uploaded.get() {
            return Err(Failure::Broken(Stopped::Incomplete));
        }
    }
    Ok(reply)
}

/// Sends the rest of a request while its reply is delivered: a server may reply before it reads on. Where it takes no more, or
/// the client sends no more, the reply decides.
async fn upload(
    exchange: Exchange<'_>,
    body: &mut BodyTransfer<'_>,
    rest: &[u8],
) -> Result<(), Failure> {
    let sent = match body.to.send_all(rest, false).await {
        Ok(()) => body.relay(exchange.worker.transfers()).await,
        Err(error) => Err(Broken::To(error).into()),
    };
    match sent {
        Ok(()) => exchange.progress.uploaded.set(true),
        // A server that takes no more may have answered: its reply decides.
        Err(Stopped::Broken(Broken::To(_))) => {}
        // A client that sends no more may still read the reply that it has begun to get.
        Err(Stopped::Incomplete) if exchange.progress.answered.get() != Answered::No => {}
        Err(stopped) => return Err(Failure::Upload(stopped)),
    }
    Ok(())
}

/// What the client gets instead of a whole reply.
async fn broken(exchange: Exchange<'_>, client: &mut Client, failure: Failure) -> After {
    client.note(|entry| entry.because(failure.reason()));
    match (&failure, exchange.progress.answered.get()) {
        (Failure::Client(_), _) => return After::Reset,
        (_, Answered::UntilClose) => return After::CutOff,
        (_, Answered::Framed) => return After::Linger,
        (_, Answered::No) => {}
    }
    let answer: Answer<'_> = match failure {
        Failure::Upload(Stopped::Malformed(refusal)) => Answer::to_refused_request(refusal),
        Failure::Upload(_) if failure.is_timeout() => Answer::to_late_request(),
        Failure::Upload(_) | Failure::Client(_) => return After::Close,
        Failure::Unanswered(error) => unreachable(&error),
        Failure::Late => ProxyError::ConnectionReadTimeout.into(),
        Failure::Slow => ProxyError::HttpResponseTimeout.into(),
        Failure::Malformed(refusal) | Failure::Broken(Stopped::Malformed(refusal)) => {
            Answer::to_refused_reply(refusal)
        }
        Failure::Broken(_) => ProxyError::HttpResponseIncomplete.into(),
    };
    fail(exchange.worker, client, exchange.request, answer).await
}
