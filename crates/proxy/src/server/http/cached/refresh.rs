//! Asks a server for a stale reply anew while its client is served (`stale-while-revalidate`, RFC 5861).
//!
//! The proxy is then a client of its own, whose connection leads back into this thread, which throws away what comes. So
//! the request goes the way of all others, and the client that was served does not wait for it.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::asked::Asked;
use super::go_out::{lead_out, send_until_answered};
use crate::cache::{Entry, Lead, conditions};
use crate::runtime::TcpStream;
use crate::server::client::Client;
use crate::server::http::request::Request;
use crate::server::worker::Worker;

/// What is thrown away at once.
const DISCARDED: usize = 16 * 1024;

/// Sends a request like `request` on, in the place of `client` and as a task of its own. Where there is no connection for
/// it the lead ends, and the next request tries again.
pub fn begin(
    worker: &Rc<Worker>,
    client: &Client,
    (request, asked): (&Request, &Asked),
    stale: &Arc<Entry>,
    lead: Lead,
) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let Ok((own, other)) = pair else { return };
    let client = client.stand_in(TcpStream::attach(own, &worker.handle));
    let mut head = worker.scratch.lend();
    head.extend_from_slice(&conditions::unconditional(&request.head));
    let asked = Box::new(Asked::again(&head, asked, stale.clone()));
    let mut request = Request {
        facts: request.facts,
        head,
        destination: request.destination.clone(),
        may_ask: false,
        forecast_slot: request.forecast_slot,
        asked: None,
    };
    lead_out(&mut request, &asked, lead);
    match asked.validates.get() {
        true => worker.counters.cache_revalidations.add(1),
        false => worker.counters.cache_misses.add(1),
    }
    request.asked = Some(asked);
    worker.handle.spawn(discard(worker.clone(), other));
    worker
        .handle
        .spawn(refresh(worker.clone(), client, request));
}

async fn refresh(worker: Rc<Worker>, mut client: Client, request: Request) {
    worker.counters.requests.add(1);
    send_until_answered(&worker, &mut client, request).await;
}

/// Throws away what comes, up to the end.
async fn discard(worker: Rc<Worker>, from: OwnedFd) {
    let from = TcpStream::attach(from, &worker.handle);
    let mut buffer = vec![0; DISCARDED];
    while matches!(from.receive(&mut buffer).await, Ok(1..)) {}
}
