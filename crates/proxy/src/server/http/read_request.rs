//! From a client's bytes to a request that can be sent on.

use std::io::{self, ErrorKind};
use std::task::Poll;

use weir_core::proxy::{AcceptClientClose, OddFieldNames, SendClientClose};

use super::after::After;
use super::closing::CLIENT_CLOSES_IN;
use super::forecast::ForecastSlot;
use super::pseudonym::PSEUDONYM;
use super::refuse::refuse;
use super::request::Request;
use super::target::destination;
use crate::access_log::{LoggedRequest, shown};
use crate::http::answer::Answer;
use crate::http::rewrite::{self, RequestEdit};
use crate::http::{FieldSlots, Refusal, RequestHead, Target, read_request};
use crate::server::client::Client;
use crate::server::worker::Worker;

/// Gives the running task the time that its client has to begin to ask. `first`: it has not asked
/// anything yet.
pub fn await_next(worker: &Worker, client: &Client, first: bool) {
    worker.handle.set_deadline(match first {
        true => worker.settings.head_timeout,
        false if client.close_asked.get() => CLIENT_CLOSES_IN,
        false => worker.settings.keep_alive,
    });
}

/// Whether the client may have begun to ask; false if its time is over. A drain ends a connection between two requests.
/// It leaves a client that has not asked yet its time, because that has just come, and one that is to close its own.
pub fn poll_due(worker: &Worker, client: &Client, first: bool) -> Poll<bool> {
    let over = || !first && worker.ends_idle() && !client.close_asked.get();
    let stream = &client.stream;
    stream.poll_readable_or(over).map(|due| match due {
        Ok(()) => !(over() && stream.is_quiet()),
        Err(error) => {
            if error.kind() == ErrorKind::TimedOut {
                worker.counters.timed_out.add(1);
            }
            false
        }
    })
}

/// Reads the client's next request, once its head is whole; `None` if there is nothing to read.
pub async fn next(
    worker: &Worker,
    client: &mut Client,
    first: bool,
) -> Result<Option<Request>, After> {
    let mut seen = 0;
    let mut begun = first;
    loop {
        if !client.buffer.is_empty() {
            match read(worker, client, seen) {
                Ok(Some(request)) => return Ok(Some(request)),
                Ok(None) => {
                    seen = client.buffer.bytes().len();
                    client.buffer.shrink();
                }
                Err(refusal) => {
                    let answer = Answer::to_refused_request(refusal);
                    if worker.journal.is_some() {
                        // A malformed request has no method and no target to log.
                        client.begin_entry(None);
                    }
                    return Err(refuse(worker, client, answer, false, false).await);
                }
            }
            if !std::mem::replace(&mut begun, true) {
                worker.handle.set_deadline(worker.settings.head_timeout);
            }
        }
        match more(worker, client).await {
            Ok(None) => return Ok(None),
            Ok(Some(1..)) => {}
            Err(error) if error.kind() == ErrorKind::TimedOut => {
                worker.counters.timed_out.add(1);
                let answer = Answer::to_late_request();
                return Err(refuse(worker, client, answer, false, false).await);
            }
            Ok(Some(0)) | Err(_) => return Err(After::Close),
        }
    }
}

/// Whether a client has sent nothing yet.
pub fn is_silent(worker: &Worker, client: &mut Client) -> bool {
    matches!(try_first_bytes(worker, client), Ok(None))
}

/// Receives more of a head. It does not wait for the first bytes: [`poll_due`] does.
async fn more(worker: &Worker, client: &mut Client) -> io::Result<Option<usize>> {
    match client.buffer.is_empty() {
        true => try_first_bytes(worker, client),
        false => client.receive(&worker.resources.buffers).await.map(Some),
    }
}

fn try_first_bytes(worker: &Worker, client: &mut Client) -> io::Result<Option<usize>> {
    let Client { buffer, stream, .. } = client;
    buffer.try_receive_at_most(&worker.resources.buffers, stream, usize::MAX)
}

/// Reads the head, writes the one that goes on, and takes it out of the buffer. No future may hold
/// the slots: they are 4 KiB.
fn read(worker: &Worker, client: &mut Client, seen: usize) -> Result<Option<Request>, Refusal> {
    let mut slots = FieldSlots::new();
    let limits = &worker.limits;
    let Some(head) = read_request(client.buffer.bytes(), seen, limits, &mut slots)? else {
        return Ok(None);
    };
    let mut outgoing = worker.scratch.lend();
    let edit = RequestEdit {
        via: PSEUDONYM,
        default_host: &worker.default_host,
        announce: client.announcement(&worker.settings),
        close: false,
        drop_odd_names: worker.settings.odd_field_names == OddFieldNames::Drop,
        client_close: worker.settings.send_client_close != SendClientClose::Off,
    };
    rewrite::request(&head, &edit, &mut outgoing)?;
    if edit.drop_odd_names && head.odd_names().next().is_some() {
        note_dropped(worker, client, &head);
    }
    let accept = worker.settings.accept_client_close;
    let knows_client_close = head.facts.client_close && head.facts.keep_alive;
    let request = Request {
        facts: head.facts,
        head: outgoing,
        destination: destination(&head, worker.role(), accept),
        may_ask: accept == AcceptClientClose::Ask
            && knows_client_close
            && !client.close_asked.get(),
        forecast_slot: ForecastSlot::of(head.request_line()),
        asked: None,
    };
    let logged = worker.journal.as_ref().map(|_| logged_request(&head));
    client.buffer.consume(request.facts.len);
    if logged.is_some() {
        client.begin_entry(logged);
    }
    Ok(Some(request))
}

/// Counts the fields that the server does not get for their names.
#[cold]
fn note_dropped(worker: &Worker, client: &Client, head: &RequestHead) {
    for name in head.odd_names() {
        worker.counters.fields_dropped.add(1);
        tracing::debug!("{}: dropped {name}, an odd field name", client.source);
    }
}

/// What is logged of a request.
fn logged_request(head: &RequestHead) -> LoggedRequest {
    let mut words = head.request_line().split(|&byte| byte == b' ');
    let mut word = || String::from_utf8_lossy(words.next().unwrap_or_default()).into_owned();
    let authority = match head.target {
        Target::Absolute { authority, .. } | Target::Authority(authority) => Some(authority),
        Target::Origin(_) | Target::Asterisk => head.host,
    };
    LoggedRequest {
        method: word(),
        target: word(),
        host: authority.map(|authority| shown(authority.text.as_bytes())),
        user_agent: head.values("user-agent").next().map(shown),
    }
}
