//! Futures that serve one request each, from the thread's pool: so an idle client holds none.

use std::convert::Infallible;
use std::rc::Rc;

use super::serve::serve_next;
use crate::server::client::Client;
use crate::server::future_pool::{Handoff, Running};
use crate::server::worker::{ExchangeEnd, ExchangeStart, Worker};

/// A client whose request is being served. Dropping it closes the client's connection.
pub type RunningExchange = Running<ExchangeStart, ExchangeEnd>;

/// Serves one request of a client. The future returns the client and the result. `first`: the client has not asked
/// anything yet.
pub fn begin(worker: &Rc<Worker>, client: Client, first: bool) -> RunningExchange {
    worker
        .exchanges
        .begin((worker.clone(), client, first), serve)
}

async fn serve(handoff: Rc<Handoff<ExchangeStart, ExchangeEnd>>) -> Infallible {
    loop {
        let (worker, mut client, first) = handoff.next().await;
        let served = serve_next(&worker, &mut client, first).await;
        handoff.finish((client, served));
    }
}
