//! From a server's bytes to the client: heads, and the body behind the last of them.

use std::io::{self, ErrorKind};

use weir_core::proxy::Engine;

use super::NAME;
use super::body::{Behind, Body, Stopped, relay, relay_data_alone, send_with_head};
use super::cached::{self, Taken};
use super::exchange::{Answered, Progress};
use super::request::Request;
use super::scratch::Head;
use crate::cache::fields;
use crate::http::rewrite::{self, ReplyEdit};
use crate::http::{BodyKind, Delivery, FieldSlots, Refusal, ReplyFacts, Version, read_reply};
use crate::runtime::TcpStream;
use crate::server::inbox::Inbox;
use crate::server::worker::Worker;
use crate::transfer::Broken;

/// A reply of this size is large: its body is cheaper spliced than received.
const LARGE_BYTES: u64 = 24 * 1024;
/// Interim replies (1xx) to one request. A server that says each second that it is still working has a
/// quarter of an hour and more. One that never stops is ended: waiting would not do it, as there is
/// always something to read.
const MOST_INTERIM: u32 = 1000;
/// Most heads are shorter.
const HEAD_BYTES: usize = 2 * 1024;

/// Why a request got no whole reply.
#[derive(Debug)]
pub enum Failure {
    /// The server closed or broke the connection before it said anything.
    Unanswered(io::Error),
    /// The server said nothing in time.
    Late,
    /// The server began its reply, and the head was not whole in time.
    Slow,
    /// The reply's head is malformed.
    Malformed(Refusal),
    /// The client is gone, or takes nothing any more.
    Client(io::Error),
    /// The request's body stopped on its way.
    Upload(Stopped),
    /// The reply broke off, in its head or after that was sent to the client.
    Broken(Stopped),
}

impl Failure {
    /// What the access log says of it: a word, and which side failed how.
    pub fn reason(&self) -> String {
        format!("{}: {}", self.word(), self.details())
    }

    fn details(&self) -> String {
        let unless_late = |error: &io::Error, late: &str| match error.kind() {
            ErrorKind::TimedOut => late.to_owned(),
            _ => error.to_string(),
        };
        match self {
            Failure::Unanswered(error) => error.to_string(),
            Failure::Late => "the server sent nothing for idle_timeout".to_owned(),
            Failure::Slow => "the head was not whole after idle_timeout".to_owned(),
            Failure::Client(error) => unless_late(error, "it took nothing for idle_timeout"),
            Failure::Malformed(refusal)
            | Failure::Upload(Stopped::Malformed(refusal))
            | Failure::Broken(Stopped::Malformed(refusal)) => refusal.text().to_owned(),
            Failure::Upload(Stopped::Incomplete) => "the client ended early".to_owned(),
            Failure::Broken(Stopped::Incomplete) => "the server ended early".to_owned(),
            Failure::Upload(Stopped::Broken(broken)) => {
                unless_late(broken.error(), "the client sent nothing for idle_timeout")
            }
            Failure::Broken(Stopped::Broken(broken)) => {
                unless_late(broken.error(), "the server sent nothing for idle_timeout")
            }
        }
    }

    fn word(&self) -> &'static str {
        match self {
            Failure::Unanswered(_) => "connection_terminated",
            Failure::Late => "connection_read_timeout",
            Failure::Slow => "http_response_timeout",
            Failure::Malformed(_) => "http_protocol_error",
            Failure::Client(_) => "client_gone",
            Failure::Upload(_) => "http_request_incomplete",
            Failure::Broken(_) => "http_response_incomplete",
        }
    }

    /// Nothing came, or went, for too long.
    pub fn is_timeout(&self) -> bool {
        match self {
            Failure::Late | Failure::Slow => true,
            Failure::Client(error) => error.kind() == ErrorKind::TimedOut,
            Failure::Upload(Stopped::Broken(broken)) | Failure::Broken(Stopped::Broken(broken)) => {
                broken.error().kind() == ErrorKind::TimedOut
            }
            _ => false,
        }
    }
}

/// A reply that has reached the client.
#[derive(Debug, Clone, Copy)]
pub struct Delivered {
    /// What it was.
    pub facts: ReplyFacts,
    /// The client's connection may go on.
    pub keep_alive: bool,
}

/// What has become of a reply.
pub enum Reply {
    /// It has reached the client.
    Delivered(Delivered),
    /// The cache takes it, from after its head on.
    Taken(Box<Taken>, ReplyFacts),
}

/// Reads the reply and sends it to the client, up to the end of its body; what becomes a tunnel is
/// left after its head, and so is what the cache takes.
pub async fn deliver(
    worker: &Worker,
    request: &Request,
    server: &TcpStream,
    inbox: &mut Inbox,
    client: &TcpStream,
    progress: &Progress,
) -> Result<Reply, Failure> {
    let mut head = worker.scratch.lend();
    let mut interim = 0;
    let (facts, delivery) = loop {
        head.clear();
        let read = read_head(worker, request, server, inbox, client, progress, &mut head).await;
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
        if let Some(taken) = cached::judge(worker, request, &facts, delivery, &mut head) {
            return Ok(Reply::Taken(Box::new(taken), facts));
        }
    }
    worker.handle.set_deadline(worker.settings.idle_timeout);
    let (resources, rules, moved) = (&worker.resources, worker.rules(), &progress.down);
    progress.status.set(Some(facts.status));
    if delivery.dechunk {
        progress.answered.set(Answered::UntilClose);
        worker.counters.count_reply(facts.status);
        let sent = client.send_all(&head, true).await;
        sent.map_err(Failure::Client)?;
        drop(head);
        relay_data_alone(resources, server, inbox, client, rules, moved).await?;
    } else {
        let mut body = Body::new(facts.body);
        let behind = Behind::of(&facts, delivery);
        let sent = send_with_head(&head, server, inbox, &mut body, client, behind, moved).await;
        progress.answered.set(match (&sent, facts.body) {
            (Err(Stopped::Malformed(_)), _) => Answered::No,
            (_, BodyKind::UntilClose) => Answered::UntilClose,
            (_, _) => Answered::Framed,
        });
        match progress.answered.get() {
            Answered::No => progress.status.set(None),
            _ => worker.counters.count_reply(facts.status),
        }
        sent?;
        drop(head);
        relay(resources, server, inbox, client, &mut body, rules, moved).await?;
    }
    let is_large = moved.get() >= LARGE_BYTES;
    worker.forecast.learn(request.forecast_slot, is_large);
    Ok(Reply::Delivered(Delivered {
        facts,
        keep_alive: delivery.keep_alive,
    }))
}

impl From<Stopped> for Failure {
    fn from(stopped: Stopped) -> Failure {
        match stopped {
            Stopped::Broken(Broken::To(error)) => Failure::Client(error),
            stopped => Failure::Broken(stopped),
        }
    }
}

/// What a failure is that may come after interim replies: with them the server has begun to answer.
fn after_interim(failure: Failure, has_begun: bool) -> Failure {
    match failure {
        Failure::Unanswered(_) if has_begun => Failure::Broken(Stopped::Incomplete),
        failure => failure,
    }
}

/// Waits for a head, and writes the one that goes to the client.
async fn read_head(
    worker: &Worker,
    request: &Request,
    server: &TcpStream,
    inbox: &mut Inbox,
    client: &TcpStream,
    progress: &Progress,
    out: &mut Head,
) -> Result<(ReplyFacts, Delivery), Failure> {
    let mut seen = 0;
    let mut most = first_receive(worker, request);
    loop {
        if !inbox.is_empty() {
            let closing = worker.is_draining() || !progress.uploaded.get();
            let read = rewrite_head(worker, request, inbox, seen, closing, out);
            if let Some(read) = read.map_err(Failure::Malformed)? {
                return Ok(read);
            }
            seen = inbox.bytes().len();
            most = usize::MAX;
        }
        let waited = server.readable_or_broken_lazily(client).await;
        if client.is_broken() {
            return Err(Failure::Client(client.take_error()));
        }
        let received = match waited {
            Ok(()) => {
                inbox
                    .receive_at_most(&worker.resources.buffers, server, most)
                    .await
            }
            Err(error) => Err(error),
        };
        match received {
            Ok(1..) => progress.note_received(worker),
            Ok(0) => return Err(unfinished(inbox, ErrorKind::UnexpectedEof.into())),
            Err(error) => return Err(unfinished(inbox, error)),
        }
    }
}

/// Why there is no head, or not all of it.
fn unfinished(inbox: &Inbox, error: io::Error) -> Failure {
    let is_late = error.kind() == ErrorKind::TimedOut;
    match (inbox.is_empty(), is_late) {
        (true, true) => Failure::Late,
        (false, true) => Failure::Slow,
        (true, false) => Failure::Unanswered(error),
        (false, false) => Failure::Broken(Stopped::Incomplete),
    }
}

/// What is received at once of a reply: all that is there, or not much more than the head when the rest
/// is likely to be spliced.
fn first_receive(worker: &Worker, request: &Request) -> usize {
    let splices = worker.settings.engine != Engine::Copy;
    match splices && worker.forecast.is_large(request.forecast_slot) {
        true => HEAD_BYTES,
        false => usize::MAX,
    }
}

/// Not a future: the slots are 4 KiB.
fn rewrite_head(
    worker: &Worker,
    request: &Request,
    inbox: &mut Inbox,
    seen: usize,
    closing: bool,
    out: &mut Head,
) -> Result<Option<(ReplyFacts, Delivery)>, Refusal> {
    let mut slots = FieldSlots::new();
    let limits = &worker.limits;
    let asked = &request.facts;
    let Some(head) = read_reply(inbox.bytes(), seen, asked, limits, &mut slots)? else {
        return Ok(None);
    };
    let facts = head.facts;
    if facts.status == 101 {
        head.switches_to(fields::values(&request.head, "upgrade"))?;
    }
    let delivery = Delivery::of(asked, &facts, worker.role(), closing);
    let date = worker.date();
    let edit = ReplyEdit {
        via: NAME,
        date: Some(&date),
        delivery,
        client: asked.version,
    };
    rewrite::reply(&head, &edit, out);
    inbox.consume(facts.len);
    Ok(Some((facts, delivery)))
}

/// Whether a server's connection may carry another request after this reply.
pub fn leaves_open(facts: &ReplyFacts, inbox: &Inbox) -> bool {
    let ends = !matches!(facts.body, BodyKind::UntilClose | BodyKind::Tunnel);
    facts.keep_alive && ends && inbox.is_empty()
}
