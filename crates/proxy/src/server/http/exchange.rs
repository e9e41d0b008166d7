//! One request and its reply: choosing a server, sending, trying again where that is safe.

use std::cell::Cell;
use std::io::{self, ErrorKind};
use std::pin::pin;
use std::rc::Rc;

use super::body::{Behind, Body, Stopped, relay, try_send_with_head};
use super::reply::{Delivered, Failure, Reply, deliver, leaves_open};
use super::request::Request;
use super::target::{Choice, Destination, Origin};
use super::{After, cached, closing, is_head, leaves_nothing, refuse};
use crate::http::answer::{self, Answer, ProxyError};
use crate::http::{BodyKind, ReplyFacts, RequestFacts};
use crate::runtime::{TcpStream, first, while_taken};
use crate::server::client::Client;
use crate::server::inbox::{Inbox, Peer};
use crate::server::worker::Worker;
use crate::shortage;
use crate::transfer::{Broken, Moved, tunnel};
use crate::upstream::{Backend, Lease, Link, is_name_timeout};
use weir_core::proxy::SendProxy;

/// Gets the client its reply.
pub async fn answer(worker: &Worker, client: &mut Client, request: Request) -> After {
    match &worker.cache {
        Some(thread_cache) => Box::pin(cached::answer(worker, thread_cache, client, request)).await,
        None => send_on(worker, client, &request).await,
    }
}

/// Gets the client its reply from where the request leads.
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
        Destination::Refused(answer) => fail(worker, client, request, *answer).await,
    }
}

/// Answers with an error of the proxy's own.
async fn fail(worker: &Worker, client: &Client, request: &Request, answer: Answer<'_>) -> After {
    // What is refused is no failure that something kept could stand in for.
    if answer.status >= 500
        && request.asked.is_some()
        && let Some(after) = Box::pin(cached::stand_in(worker, client, request)).await
    {
        return after;
    }
    let keep_alive = leaves_nothing(worker, request);
    refuse(worker, client, answer, keep_alive, is_head(request)).await
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
    let link = match worker
        .upstreams
        .connect(&worker.handle, origin, client.requester())
        .await
    {
        Ok(link) => link,
        Err(error) => return fail(worker, client, request, unreachable(&error)).await,
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

/// Both ways until both ends, beginning with what was received ahead.
async fn carry(worker: &Worker, client: &mut Client, server: &mut Peer) -> After {
    worker.counters.tunnels.add(1);
    worker.handle.set_deadline(worker.settings.idle_timeout);
    let ahead = [client.inbox.take_all(), server.inbox.take_all()];
    let (near, far) = (&client.stream, &server.stream);
    let replies = near.unacknowledged();
    let tunnelled = tunnel(&worker.resources, near, far, ahead, worker.rules()).await;
    worker.count_tunnel(client, &server.stream, &tunnelled);
    if replies > 0 && tunnelled.end.is_err() {
        closing::wait_until_acknowledged(worker, client, tunnelled.back).await;
    }
    After::Tunnelled
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
            None => return fail(worker, client, request, unreachable(&last)).await,
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

/// How far an exchange has come.
pub struct Progress {
    /// The server.
    backend: Rc<Backend>,
    /// When it began; `None` once the server has begun to answer.
    began_us: Cell<Option<u64>>,
    /// Bytes of the request's body.
    pub up: Moved,
    /// Bytes of the reply's body.
    pub down: Moved,
    /// The request is with the server, whole.
    pub uploaded: Cell<bool>,
    /// What the client has of its reply.
    pub answered: Cell<Answered>,
    /// The status that it was sent.
    pub status: Cell<Option<u16>>,
}

impl Progress {
    fn begins(worker: &Worker, backend: &Rc<Backend>) -> Progress {
        Progress {
            backend: backend.clone(),
            began_us: Cell::new(Some(worker.handle.now_us())),
            up: Moved::default(),
            down: Moved::default(),
            uploaded: Cell::default(),
            answered: Cell::default(),
            status: Cell::default(),
        }
    }

    /// The server has sent something.
    pub fn note_received(&self, worker: &Worker) {
        if let Some(began_us) = self.began_us.take() {
            let time_us = worker.handle.now_us() - began_us;
            self.backend.counters.first_byte.observe(time_us);
        }
    }
}

/// What a client has of its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Answered {
    /// Nothing.
    #[default]
    No,
    /// The head at least, which says where the body ends: what breaks off is seen to.
    Framed,
    /// The head at least; the body ends with the connection.
    UntilClose,
}

/// One exchange on one connection. An error: the server did not begin to answer, and the request
/// may be sent again, on a new connection that uses the same lease.
async fn attempt(
    worker: &Worker,
    client: &mut Client,
    request: &Request,
    link: Link,
) -> Result<After, (io::Error, Lease)> {
    // The connection goes before its lease.
    let lease = link.lease;
    client.note(|entry| {
        entry.backend.set(Some(lease.backend().address));
        entry.reused.set(link.reused);
    });
    let mut server = Peer::new(link.stream);
    if !link.reused {
        let header = client.proxy_header(worker);
        if let Err(error) = server.stream.send_all(&header, true).await {
            drop(server);
            return Err((error, lease));
        }
    }
    let progress = Progress::begins(worker, lease.backend());
    let result = exchange(worker, client, request, &mut server, &progress).await;
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
            Ok(delivered_to(worker, client, request, delivered, lease, server, &progress).await)
        }
        Ok(Reply::Taken(taken, facts)) => {
            let source = cached::Source {
                facts,
                server,
                lease,
                progress: &progress,
            };
            let before = progress.down.get();
            let taken = Box::pin(cached::take(worker, client, request, *taken, source)).await;
            let passed_on = progress.down.get() - before;
            let spliced = spliced() - spliced_before;
            worker.counters.bytes_down.add(passed_on);
            worker.counters.bytes_spliced.add(spliced);
            client.note(|entry| entry.moved(0, passed_on));
            client.note(|entry| entry.moved_by_kernel(spliced, 0));
            match taken {
                Ok(after) => Ok(after),
                Err(failure) => Ok(failed(worker, client, request, failure, &progress).await),
            }
        }
        Err(Failure::Unanswered(error)) if may_be_sent_again(&request.facts) => {
            drop(server);
            Err((error, lease))
        }
        Err(failure) => {
            // The client may take its time for the answer.
            drop(server);
            drop(lease);
            Ok(failed(worker, client, request, failure, &progress).await)
        }
    }
}

/// Counts an exchange that failed, and gives the client what it gets instead of a reply.
async fn failed(
    worker: &Worker,
    client: &mut Client,
    request: &Request,
    failure: Failure,
    progress: &Progress,
) -> After {
    match failure.is_timeout() {
        true => worker.counters.timed_out.add(1),
        false => worker.counters.transfers_broken.add(1),
    }
    if !matches!(failure, Failure::Client(_) | Failure::Upload(_)) {
        progress.backend.counters.failures.add(1);
    }
    broken(worker, client, request, failure, progress).await
}

/// RFC 9110 Section 9.2.2. A body is gone once it was sent.
fn may_be_sent_again(facts: &RequestFacts) -> bool {
    facts.method.is_idempotent() && facts.body == BodyKind::None
}

async fn exchange(
    worker: &Worker,
    client: &mut Client,
    request: &Request,
    server: &mut Peer,
    progress: &Progress,
) -> Result<Reply, Failure> {
    worker.handle.set_deadline(worker.settings.idle_timeout);
    let Client { stream, inbox, .. } = client;
    let (to, replies) = (&server.stream, &mut server.inbox);
    let mut body = Body::new(request.facts.body);
    let (head, behind) = (&request.head, Behind::Another);
    let sent = try_send_with_head(head, stream, inbox, &mut body, to, behind, &progress.up);
    let rest = match sent {
        Ok(rest) => rest,
        Err(Stopped::Broken(broken)) => {
            // The server may have answered before it closed.
            tracing::debug!("request not sent whole: {}", broken.error());
            Vec::new()
        }
        Err(stopped) => return Err(Failure::Upload(stopped)),
    };
    progress.uploaded.set(body.is_done() && rest.is_empty());
    let (idle, peers) = (worker.settings.idle_timeout, [to, stream]);
    let reply = pin!(deliver(worker, request, to, replies, stream, progress));
    if progress.uploaded.get() {
        return while_taken(idle, peers, reply).await;
    }
    let upload = pin!(upload(
        worker, stream, inbox, &mut body, to, &rest, progress
    ));
    // The upload first: when both have waited too long, it is for the client's bytes.
    while_taken(idle, peers, pin!(first(upload, reply))).await
}

/// Sends the rest of a request while its reply is delivered: a server may reply before it reads on.
/// Ends only if the exchange must.
async fn upload<T>(
    worker: &Worker,
    client: &TcpStream,
    inbox: &mut Inbox,
    body: &mut Body,
    server: &TcpStream,
    rest: &[u8],
    progress: &Progress,
) -> Result<T, Failure> {
    let (resources, rules) = (&worker.resources, worker.rules());
    let sent = match server.send_all(rest, false).await {
        Ok(()) => relay(resources, client, inbox, server, body, rules, &progress.up).await,
        Err(error) => Err(Broken::To(error).into()),
    };
    match sent {
        Ok(()) => progress.uploaded.set(true),
        // A server that takes no more may have answered: its reply decides.
        Err(Stopped::Broken(Broken::To(_))) => {}
        // A client that sends no more may still read the reply that it has begun to get.
        Err(Stopped::Incomplete) if progress.answered.get() != Answered::No => {}
        Err(stopped) => return Err(Failure::Upload(stopped)),
    }
    std::future::pending().await
}

/// What follows a whole reply.
pub async fn delivered_to(
    worker: &Worker,
    client: &mut Client,
    request: &Request,
    delivered: Delivered,
    lease: Lease,
    mut server: Peer,
    progress: &Progress,
) -> After {
    client.note(|entry| entry.status.set(Some(delivered.facts.status)));
    if delivered.facts.body == BodyKind::Tunnel {
        return carry(worker, client, &mut server).await;
    }
    let uploaded = progress.uploaded.get();
    if uploaded {
        keep_open(worker, client, lease, &delivered.facts, server);
    }
    match delivered.keep_alive && uploaded {
        true => After::Continue,
        false => closing::after_last_reply(client, request, uploaded),
    }
}

/// Keeps a server's connection for the next request, if its reply leaves it open: of this client if it
/// began with its address, else of any.
pub fn keep_open(
    worker: &Worker,
    client: &mut Client,
    lease: Lease,
    reply: &ReplyFacts,
    server: Peer,
) {
    if !leaves_open(reply, &server.inbox) {
        return;
    }
    let (settings, stream) = (&worker.settings, server.stream);
    if settings.send_proxy == SendProxy::Off {
        lease.keep(stream);
    // One that others may wait for is not kept for one client.
    } else if settings.max_connections == 0 && stream.quiesce() {
        client.keep_link(Link {
            stream,
            lease,
            reused: true,
        });
    }
}

/// What the client gets instead of a whole reply.
async fn broken(
    worker: &Worker,
    client: &mut Client,
    request: &Request,
    failure: Failure,
    progress: &Progress,
) -> After {
    client.note(|entry| entry.because(failure.reason()));
    match (&failure, progress.answered.get()) {
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
    fail(worker, client, request, answer).await
}

/// What the access log says of a client that did not wait for its turn.
pub const GONE: &str = "client_gone: it went away while it waited for a connection";

/// As long as the process is out of them: no server is to blame.
const NO_DESCRIPTOR: Answer<'static> = Answer {
    status: 503,
    error: ProxyError::ConnectionLimitReached,
    details: "the proxy has no descriptor or memory left for a connection",
};

/// Why there is no connection to a server.
pub fn unreachable(error: &io::Error) -> Answer<'static> {
    if shortage::is_behind(error) {
        return NO_DESCRIPTOR;
    }
    let error = match error.kind() {
        ErrorKind::ConnectionRefused => ProxyError::ConnectionRefused,
        ErrorKind::TimedOut if is_name_timeout(error) => ProxyError::DnsTimeout,
        ErrorKind::TimedOut => ProxyError::ConnectionTimeout,
        // No local port is left (see `source`), or no connection slot (see `max_connections`).
        ErrorKind::AddrNotAvailable | ErrorKind::QuotaExceeded => {
            ProxyError::ConnectionLimitReached
        }
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => {
            ProxyError::DestinationIpUnroutable
        }
        // Not the kernel, which may say so too.
        ErrorKind::PermissionDenied if error.raw_os_error().is_none() => {
            ProxyError::DestinationIpProhibited
        }
        ErrorKind::Other => ProxyError::DnsError,
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
            ProxyError::ConnectionTerminated
        }
        _ => ProxyError::DestinationUnavailable,
    };
    error.into()
}
