//! Modes forward and reverse: HTTP/1 requests, one after the other, and tunnels.
//!
//! A connection of a client is one [task]. A head is read and sent on, the bodies are moved,
//! and it begins again; between requests nothing of the thread is held: what an exchange needs is in
//! the [pool](exchange_pool).

mod body;
mod cached;
mod closing;
mod exchange;
mod exchange_pool;
mod forecast;
mod reply;
mod request;
mod scratch;
mod target;
mod task;

pub use exchange::{GONE, unreachable};
pub use exchange_pool::ExchangePool;
pub use forecast::Forecast;
pub use request::limits;
pub use scratch::Scratch;
pub use target::Upstreams;
pub use task::ClientTask;

use self::request::Request;
use crate::http::answer::{Answer, Envelope, ProxyError};
use crate::http::{BodyKind, Method, persists};
use crate::server::client::Client;
use crate::server::worker::Worker;

/// This proxy's name in `Via` and `Proxy-Status`.
const NAME: &str = "weir";

/// To a client that may not use the proxy.
const DENIED: Answer<'static> = Answer {
    status: 403,
    error: ProxyError::HttpRequestDenied,
    details: "this client may not use the proxy",
};

/// What becomes of a client's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    /// The next request.
    Continue,
    /// The end.
    Close,
    /// The end, after a tunnel.
    Tunnelled,
    /// The end, though the client may still be sending: its last bytes must not become a RST that
    /// overtakes the answer (RFC 9112 Section 9.6).
    Linger,
    /// A RST once the client has acknowledged what it was sent: only so can it know that a reply
    /// whose end is the connection's end is not whole.
    CutOff,
    /// A RST at once: the client itself has failed.
    Reset,
}

/// The result of [`serve_next`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Served {
    /// There was nothing to read.
    NothingCame,
    /// A request was answered; the next may come.
    Answered,
    /// The connection is to be closed.
    Ended,
}

/// Reads one request and answers it. `first`: the client has not asked anything yet.
async fn serve_next(worker: &Worker, client: &mut Client, first: bool) -> Served {
    if client.is_unchecked() {
        if worker.settings.accept_proxy && request::is_silent(worker, client) {
            return Served::NothingCame;
        }
        if !client.is_admitted(worker).await {
            return Served::Ended;
        }
    }
    let began_us = worker.handle.now_us();
    let after = match request::next(worker, client, first).await {
        Ok(Some(request)) => {
            worker.counters.requests.add(1);
            let after = match client.is_denied() {
                true => refuse(worker, client, DENIED, false, is_head(&request)).await,
                false => exchange::answer(worker, client, request).await,
            };
            if after != After::Tunnelled {
                let duration_us = worker.handle.now_us() - began_us;
                worker.counters.request_duration.observe(duration_us);
            }
            after
        }
        Ok(None) => return Served::NothingCame,
        Err(after) => after,
    };
    worker.log(client);
    if after == After::Continue {
        return Served::Answered;
    }
    drop(client.take_link());
    closing::close(worker, client, after).await;
    Served::Ended
}

/// Sends a reply of the proxy's own.
async fn refuse(
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
            name: NAME,
            date: &worker.date(),
            keep_alive,
            head_only,
        },
        &mut reply,
    );
    worker.handle.set_deadline(worker.settings.idle_timeout);
    // What does not go on ends next, in one packet with this.
    match client.stream.send_all(&reply, !keep_alive).await {
        Ok(()) if keep_alive => After::Continue,
        Ok(()) => After::Linger,
        Err(_) => After::Close,
    }
}

fn is_head(request: &Request) -> bool {
    request.facts.method == Method::Head
}

/// Whether a request may keep its connection after an answer of the proxy's own: then nothing of its
/// body may be left. Behind a CONNECT stands what was meant for the tunnel, as clients may send it
/// without waiting: whoever wrote that did not write requests to this proxy (RFC 9931).
fn leaves_nothing(worker: &Worker, request: &Request) -> bool {
    let facts = &request.facts;
    let nothing_follows = facts.body == BodyKind::None && facts.method != Method::Connect;
    nothing_follows && persists(facts, worker.role(), worker.is_draining())
}
