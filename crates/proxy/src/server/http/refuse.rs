//! Replies of the proxy's own.

use super::after::After;
use super::pseudonym::PSEUDONYM;
use super::request::Request;
use crate::http::answer::{Answer, Envelope, ProxyError};
use crate::http::{BodyKind, Method, persists};
use crate::server::client::Client;
use crate::server::worker::Worker;

/// The answer to a client that may not use the proxy.
pub const DENIED: Answer<'static> = Answer {
    status: 403,
    error: ProxyError::HttpRequestDenied,
    details: "this client may not use the proxy",
};

/// Sends a reply of the proxy's own.
pub async fn refuse(
    worker: &Worker,
    client: &Client,
    answer: Answer<'_>,
    keep_alive: bool,
    head_only: bool,
) -> After {
    worker.counters.replies_refused.add(1);
    worker.counters.count_reply(answer.status);
    client.note(|entry| {
        entry.status.set(Some(answer.status));
        entry.because(format!("{}: {}", answer.error.name(), answer.details));
    });
    let mut reply = worker.scratch.lend();
    answer.write(
        &Envelope {
            name: PSEUDONYM,
            date: &worker.date(),
            keep_alive,
            head_only,
        },
        &mut reply,
    );
    worker.handle.set_deadline(worker.settings.idle_timeout);
    // A connection that does not go on ends next, in one packet with this.
    match client.stream.send_all(&reply, !keep_alive).await {
        Ok(()) if keep_alive => After::Continue,
        Ok(()) => After::Linger,
        Err(_) => After::Close,
    }
}

/// Whether its reply has no body.
pub fn is_head(request: &Request) -> bool {
    request.facts.method == Method::Head
}

/// Whether a request may keep its connection after an answer of the proxy's own: then nothing of its
/// body may be left. Clients may send bytes for the tunnel behind a CONNECT without waiting. Those bytes are no
/// requests to this proxy (RFC 9931).
pub fn leaves_nothing(worker: &Worker, request: &Request) -> bool {
    let facts = &request.facts;
    let nothing_follows = facts.body == BodyKind::None && facts.method != Method::Connect;
    nothing_follows && persists(facts, worker.role(), worker.is_draining())
}
