//! Sends a kept reply, or as much of it as the client wants.

use std::io::IoSlice;
use std::ops::Range;
use std::pin::pin;

use bytes::Bytes;
use weir_core::client_close;

use super::asked::Asked;
use super::context::CacheContext;
use super::status::CacheStatus;
use crate::cache::conditions::{Part, not_modified_fields};
use crate::cache::{Body, Entry, Found, Reader, ThreadCache, fields};
use crate::http::rewrite::{append_field, append_number};
use crate::http::{Method, Version};
use crate::runtime::{TcpStream, while_taken};
use crate::server::client::Client;
use crate::server::http::after::After;
use crate::server::http::body::Behind;
use crate::server::http::closing;
use crate::server::http::refuse::leaves_nothing;
use crate::transfer::YieldBudget;

/// Bytes in one send: the kernel takes about as long for them as for a splice.
const SEND_BYTES: u64 = 256 * 1024;

/// What a client gets of a kept reply.
#[derive(Debug, PartialEq, Eq)]
enum Cut {
    Whole,
    Part(Range<u64>),
    OutsideOf(u64),
    NotModified,
}

impl Cut {
    fn of(asked: &Asked, method: Method, entry: &Entry) -> Cut {
        // RFC 9110 Sections 13.2.1 and 14.2: conditions and ranges are for replies of 200.
        if entry.status != 200 {
            return Cut::Whole;
        }
        if asked.conditions.met_by(&entry.head) {
            return Cut::NotModified;
        }
        let length = entry.body.length();
        match asked.conditions.part(&entry.head, length) {
            Part::Bytes(range) if method == Method::Get => Cut::Part(range),
            Part::Outside if method == Method::Get => Cut::OutsideOf(length),
            _ => Cut::Whole,
        }
    }

    /// The status that the client gets.
    fn status(&self, entry: &Entry) -> u16 {
        match self {
            Cut::Whole => entry.status,
            Cut::Part(_) => 206,
            Cut::OutsideOf(_) => 416,
            Cut::NotModified => 304,
        }
    }

    /// Which bytes of the body are sent.
    fn range(&self, length: u64) -> Range<u64> {
        match self {
            Cut::Whole => 0..length,
            Cut::Part(range) => range.clone(),
            Cut::OutsideOf(_) | Cut::NotModified => 0..0,
        }
    }

    fn write_head(&self, entry: &Entry, out: &mut Vec<u8>) {
        match self {
            Cut::Whole => out.extend_from_slice(&entry.head),
            Cut::Part(range) => {
                out.extend_from_slice(b"HTTP/1.1 206 Partial Content\r\n");
                fields::fields(&entry.head).for_each(|field| out.extend_from_slice(field.line));
                let (first, last, length) = (range.start, range.end - 1, entry.body.length());
                let value = format!("bytes {first}-{last}/{length}");
                append_field(out, "Content-Range", value.as_bytes());
            }
            Cut::OutsideOf(length) => {
                out.extend_from_slice(b"HTTP/1.1 416 Range Not Satisfiable\r\n");
                not_modified_fields(&entry.head, out);
                append_field(out, "Content-Range", format!("bytes */{length}").as_bytes());
            }
            Cut::NotModified => {
                out.extend_from_slice(b"HTTP/1.1 304 Not Modified\r\n");
                not_modified_fields(&entry.head, out);
            }
        }
        let has_length = !matches!(self, Cut::NotModified) && entry.status != 204;
        if has_length {
            let range = self.range(entry.body.length());
            append_number(out, "Content-Length", range.end - range.start);
        }
    }
}

/// Why a kept reply did not reach the client whole.
enum Unsent {
    Client,
    /// The server's reply broke off while the client followed it.
    Reply,
}

/// Sends a kept reply to the client.
pub async fn serve(
    context: CacheContext<'_>,
    client: &Client,
    entry: &Entry,
    how: CacheStatus,
) -> After {
    let CacheContext {
        worker,
        thread_cache,
        request,
        asked,
    } = context;
    // As long as it is held, the body is filled.
    let _reader = Reader::new(&entry.body, &thread_cache.waker);
    // What the cache answers has no body.
    let asks = request.may_ask && worker.is_draining();
    let keep_alive = asks || leaves_nothing(worker, request);
    let cut = Cut::of(asked, request.facts.method, entry);
    let mut head = worker.scratch.lend();
    cut.write_head(entry, &mut head);
    // Age says that a reply was not made or confirmed for this request (RFC 9111 Section 5.1).
    if !how.is_news() || entry.terms.has_age {
        append_number(&mut head, "Age", thread_cache.cache.age(entry));
    }
    how.write(&mut head);
    match (keep_alive, request.facts.version) {
        (false, _) => append_field(&mut head, "Connection", b"close"),
        (true, Version::Http10) => append_field(&mut head, "Connection", b"keep-alive"),
        (true, Version::Http11) if asks => {
            append_field(&mut head, "Connection", client_close::OPTION.as_bytes());
        }
        (true, Version::Http11) => {}
    }
    head.extend_from_slice(b"\r\n");
    let range = match request.facts.method {
        Method::Head => 0..0,
        _ => cut.range(entry.body.length()),
    };
    let length = range.end - range.start;
    client.note(|line| line.status.set(Some(cut.status(entry))));
    worker.counters.count_reply(cut.status(entry));
    let stream = &client.stream;
    let behind = Behind::answer(keep_alive);
    let part = BodyPart {
        body: &entry.body,
        range,
    };
    let sent = pin!(send(context, stream, &head, part, behind));
    match while_taken(worker.settings.idle_timeout, [stream], sent).await {
        Ok(()) => {
            client.note(|line| line.sent_by_cache(length));
            if !matches!(how, CacheStatus::Stored(_)) {
                worker.counters.cache_bytes.add(length);
            }
            if asks {
                client.ask_to_close(&worker.counters);
            }
            match keep_alive {
                true => After::Continue,
                false => closing::after_last_reply(client, request, true),
            }
        }
        Err(Unsent::Client) => {
            client.note(|line| {
                line.because("client_gone: it has reset the connection, or took nothing")
            });
            worker.counters.transfers_broken.add(1);
            After::Reset
        }
        // The head says how long the body is: the client sees that it is not whole.
        Err(Unsent::Reply) => {
            client.note(|line| line.because("http_response_incomplete: the server ended early"));
            worker.counters.transfers_broken.add(1);
            After::Linger
        }
    }
}

/// A part of a kept body.
struct BodyPart<'a> {
    body: &'a Body,
    range: Range<u64>,
}

/// Sends the head and this part of the body, as it comes if it is growing.
async fn send(
    context: CacheContext<'_>,
    client: &TcpStream,
    mut head: &[u8],
    part: BodyPart<'_>,
    behind: Behind,
) -> Result<(), Unsent> {
    let CacheContext {
        worker,
        thread_cache,
        ..
    } = context;
    let BodyPart { body, mut range } = part;
    let mut parts = Vec::new();
    let mut budget = YieldBudget::default();
    while !head.is_empty() || !range.is_empty() {
        worker.handle.set_deadline(worker.settings.idle_timeout);
        parts.clear();
        if !range.is_empty() {
            let most = (range.end - range.start).min(SEND_BYTES);
            match body.read(range.start, most, &mut parts, || {
                thread_cache.waker.waiter()
            }) {
                Found::Some => {}
                Found::Broken => return Err(Unsent::Reply),
                Found::NotYet if !head.is_empty() => {}
                Found::NotYet => {
                    wait_for_more(client, body, range.start, thread_cache).await?;
                    continue;
                }
            }
        }
        client.writable().await.map_err(|_| Unsent::Client)?;
        let sent = send_once(client, head, &parts, &range, behind)?;
        let of_head = sent.min(head.len());
        head = &head[of_head..];
        range.start += (sent - of_head) as u64;
        budget.spend(sent, &worker.handle).await;
    }
    Ok(())
}

/// One call; says how much the socket took.
fn send_once(
    client: &TcpStream,
    head: &[u8],
    parts: &[Bytes],
    range: &Range<u64>,
    behind: Behind,
) -> Result<usize, Unsent> {
    let bytes: usize = parts.iter().map(Bytes::len).sum();
    let slices = std::iter::once(head).filter(|head| !head.is_empty());
    let slices = slices.chain(parts.iter().map(|part| &part[..]));
    let slices: Vec<_> = slices.map(IoSlice::new).collect();
    // Only what is there and not yet given makes the last segment worth holding back, or an end at once.
    let more = match bytes as u64 == range.end - range.start {
        true => behind == Behind::End,
        false => bytes as u64 == SEND_BYTES,
    };
    let sent = client.try_send_parts(&slices, head.len() + bytes, more);
    Ok(sent.map_err(|_| Unsent::Client)?.unwrap_or(0))
}

/// Waits until the body has grown beyond `at`, or will not any more.
async fn wait_for_more(
    client: &TcpStream,
    body: &Body,
    at: u64,
    thread_cache: &ThreadCache,
) -> Result<(), Unsent> {
    let grown = || {
        let found = body.read(at, 1, &mut Vec::new(), || thread_cache.waker.waiter());
        (found != Found::NotYet).then_some(())
    };
    match client.wait_for(grown).await {
        Ok(Some(())) => Ok(()),
        Ok(None) | Err(_) => Err(Unsent::Client),
    }
}
