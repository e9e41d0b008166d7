//! One request of a client, from its first byte to what follows its reply.

use std::rc::Rc;

use super::after::{After, Served};
use super::refuse::{DENIED, is_head, refuse};
use super::request::Request;
use super::target::Destination;
use super::{cached, closing, exchange, read_request};
use crate::server::client::Client;
use crate::server::worker::Worker;

/// Reads one request and answers it. `first`: the client has not asked anything yet.
pub async fn serve_next(worker: &Rc<Worker>, client: &mut Client, first: bool) -> Served {
    if client.is_unchecked() {
        if worker.settings.accept_proxy && read_request::is_silent(worker, client) {
            return Served::NothingCame;
        }
        if !client.is_admitted(worker).await {
            return Served::Ended;
        }
    }
    let began_us = worker.handle.now_us();
    let after = match read_request::next(worker, client, first).await {
        Ok(Some(request)) if matches!(request.destination, Destination::End) => {
            worker.counters.client_closes.add(1);
            // It has no reply, and so no line in the log.
            drop(client.take_entry());
            After::AwaitEnd
        }
        Ok(Some(request)) => {
            worker.counters.requests.add(1);
            let after = match client.is_denied() {
                true => refuse(worker, client, DENIED, false, is_head(&request)).await,
                false => answer(worker, client, request).await,
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
    client.end_link();
    closing::close(worker, client, after).await;
    Served::Ended
}

/// Gets the client its reply.
async fn answer(worker: &Rc<Worker>, client: &mut Client, request: Request) -> After {
    match &worker.cache {
        Some(thread_cache) => Box::pin(cached::answer(worker, thread_cache, client, request)).await,
        None => exchange::send_on(worker, client, &request).await,
    }
}
