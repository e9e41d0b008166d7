//! From a client's bytes to a request that is fit to be sent on.

use std::io::ErrorKind;

use super::cached::Asked;
use super::forecast::Place;
use super::scratch::Head;
use super::target::{Destination, destination};
use super::{After, NAME, refuse};
use crate::http::answer::Answer;
use crate::http::rewrite::{self, RequestEdit};
use crate::http::{FieldSlots, Limits, Refusal, RequestFacts, read_request};
use crate::server::visitor::Visitor;
use crate::server::worker::Worker;

/// A request whose head has been read and taken out of the inbox.
pub struct Request {
    /// What it is.
    pub facts: RequestFacts,
    /// The head that goes to the server.
    pub head: Head,
    /// Where it goes.
    pub destination: Destination,
    /// Where the size of its reply is foretold.
    pub place: Place,
    /// What the cache knows of it; `None` if the cache has no part in it.
    pub asked: Option<Box<Asked>>,
}

/// Waits for the client's next request. `first`: the client has not asked anything yet.
pub async fn next(worker: &Worker, client: &mut Visitor, first: bool) -> Result<Request, After> {
    let mut seen = 0;
    let mut begun = first;
    worker.handle.set_deadline(match first {
        true => worker.settings.head_timeout,
        false => worker.settings.keep_alive,
    });
    loop {
        if !client.inbox.is_empty() {
            match read(worker, client, seen) {
                Ok(Some(request)) => return Ok(request),
                Ok(None) => seen = client.inbox.bytes().len(),
                Err(refusal) => {
                    let answer = Answer::to_refused_request(refusal);
                    return Err(refuse(worker, client, answer, false, false).await);
                }
            }
            if !std::mem::replace(&mut begun, true) {
                worker.handle.set_deadline(worker.settings.head_timeout);
            }
        }
        more(worker, client, !first).await?;
    }
}

/// Receives more of a head. Between requests a drain ends the connection; who has not asked yet has
/// just come, and may.
async fn more(worker: &Worker, client: &mut Visitor, served: bool) -> Result<(), After> {
    let idle = client.inbox.is_empty();
    let over = || served && idle && worker.is_draining();
    let waited = client.stream.readable_or(over).await;
    if over() && client.stream.is_quiet() {
        return Err(After::Close);
    }
    let received = match waited {
        Ok(()) => client.receive(&worker.lanes.buffers).await,
        Err(error) => Err(error),
    };
    match received {
        Ok(0) => Err(After::Close),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::TimedOut => {
            worker.counters.timed_out.add(1);
            match idle {
                true => Err(After::Close),
                false => Err(refuse(worker, client, Answer::to_late_request(), false, false).await),
            }
        }
        Err(_) => Err(After::Close),
    }
}

/// Reads the head, writes the one that goes on, and takes it out of the inbox. No future may hold
/// the slots: they are 4 KiB.
fn read(worker: &Worker, client: &mut Visitor, seen: usize) -> Result<Option<Request>, Refusal> {
    let mut slots = FieldSlots::new();
    let limits = &worker.limits;
    let Some(head) = read_request(client.inbox.bytes(), seen, limits, &mut slots)? else {
        return Ok(None);
    };
    let mut outgoing = worker.scratch.lend();
    let edit = RequestEdit {
        via: NAME,
        default_host: &worker.default_host,
        announce: client.announcement(worker),
        close: false,
    };
    rewrite::request(&head, &edit, &mut outgoing)?;
    let request = Request {
        facts: head.facts,
        head: outgoing,
        destination: destination(&head, worker.role()),
        place: Place::of(head.request_line()),
        asked: None,
    };
    client.inbox.consume(request.facts.len);
    Ok(Some(request))
}

/// The limits that the settings ask for.
pub fn limits(max_head: u32) -> Limits {
    let head_bytes = max_head as usize;
    Limits {
        head_bytes,
        target_bytes: Limits::default().target_bytes.min(head_bytes),
        ..Limits::default()
    }
}
