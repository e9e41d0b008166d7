//! A request for the cache goes out to a server.

use super::asked::Asked;
use crate::cache::{Lead, conditions};
use crate::server::client::Client;
use crate::server::http::after::After;
use crate::server::http::exchange;
use crate::server::http::request::Request;
use crate::server::worker::Worker;

/// Sends the request on, and again where the server's reply was about something else than what it was asked to confirm.
pub async fn send_until_answered(
    worker: &Worker,
    client: &mut Client,
    mut request: Request,
) -> After {
    loop {
        let after = exchange::send_on(worker, client, &request).await;
        let again = request
            .asked
            .as_ref()
            .is_some_and(|asked| asked.again.take());
        if !again {
            return after;
        }
        let head = conditions::unconditional(&request.head);
        replace(&mut request, head);
    }
}

/// Makes the request one for all clients: without the conditions of this one, which the cache will answer, and with those
/// of the cache.
pub fn lead_out(request: &mut Request, asked: &Asked, lead: Lead) {
    asked.lead.set(Some(lead));
    let stale = asked.stale.borrow();
    let validating = stale
        .as_ref()
        .and_then(|stale| conditions::validating(&request.head, &stale.head));
    asked.validates.set(validating.is_some());
    let head = validating.unwrap_or_else(|| conditions::unconditional(&request.head));
    drop(stale);
    replace(request, head);
}

fn replace(request: &mut Request, head: Vec<u8>) {
    request.head.clear();
    request.head.extend_from_slice(&head);
}
