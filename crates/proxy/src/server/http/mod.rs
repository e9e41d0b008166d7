//! Modes forward and reverse: HTTP/1 requests, one after the other, and tunnels.
//!
//! A connection of a client is one task. It reads a head, sends it on, moves the bodies, and begins
//! again; between requests nothing of the thread is held.

mod body;
mod cached;
mod exchange;
mod farewell;
mod forecast;
mod reply;
mod request;
mod scratch;
mod target;

pub use forecast::Forecast;
pub use request::limits;
pub use scratch::Scratch;
pub use target::Upstreams;

use self::request::Request;
use crate::http::answer::{Answer, Envelope};
use crate::server::visitor::Visitor;
use crate::server::worker::Worker;

/// This proxy's name in `Via` and `Proxy-Status`.
const NAME: &str = "weir";

/// What becomes of a client's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    /// The next request.
    Continue,
    /// The end.
    Close,
    /// The end, though the client may still be sending: its last bytes must not become a RST that
    /// overtakes the answer (RFC 9112 Section 9.6).
    Linger,
    /// A RST once the client has acknowledged what it was sent: only so can it know that a reply
    /// whose end is the connection's end is not whole.
    CutOff,
    /// A RST at once: the client itself has failed.
    Reset,
}

/// Serves one client.
pub async fn serve(worker: &Worker, mut client: Visitor) {
    let mut first = true;
    let end = loop {
        let request = match request::next(worker, &mut client, first).await {
            Ok(request) => request,
            Err(after) => break after,
        };
        first = false;
        worker.counters.requests.add(1);
        match exchange::answer(worker, &mut client, request).await {
            After::Continue => {}
            after => break after,
        }
    };
    client.link = None;
    farewell::say(worker, &mut client, end).await;
}

/// Sends a reply of the proxy's own.
async fn refuse(
    worker: &Worker,
    client: &Visitor,
    answer: Answer<'_>,
    keep_alive: bool,
    head_only: bool,
) -> After {
    worker.counters.replies_refused.add(1);
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
    match client.stream.send_all(&reply, false).await {
        Ok(()) if keep_alive => After::Continue,
        Ok(()) => After::Linger,
        Err(_) => After::Close,
    }
}

/// Whether a request may keep its connection after an answer of the proxy's own: then nothing of its
/// body may be left.
fn leaves_nothing(worker: &Worker, request: &Request) -> bool {
    let bodiless = request.facts.body == crate::http::BodyKind::None;
    bodiless && crate::http::persists(&request.facts, worker.role(), worker.is_draining())
}
