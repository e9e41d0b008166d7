//! Gives the client its reply as the cache has decided.

use std::pin::pin;

use super::context::CacheContext;
use super::decide::{Decision, stale_usable};
use super::fill::Fill;
use super::keep::keep;
use super::serve::serve;
use super::status::CacheStatus;
use super::tee::tee;
use crate::http::ReplyFacts;
use crate::runtime::while_taken;
use crate::server::client::Client;
use crate::server::http::after::After;
use crate::server::http::failure::Failure;
use crate::server::http::finish::{delivered_to, keep_open};
use crate::server::http::progress::Exchange;
use crate::server::http::reply::Delivered;
use crate::server::http::request::Request;
use crate::server::peer::LeasedPeer;
use crate::server::worker::Worker;

/// The server's side of a reply in which the cache has a part.
pub struct ServerReply {
    /// What the reply's head said.
    pub facts: ReplyFacts,
    /// The connection, after the head.
    pub server: LeasedPeer,
}

/// Gives the client its reply as the cache has decided.
pub async fn carry_out(
    exchange: Exchange<'_>,
    client: &mut Client,
    decision: Decision,
    source: ServerReply,
) -> Result<After, Failure> {
    let ServerReply { facts, mut server } = source;
    let worker = exchange.worker;
    let Some(context) = CacheContext::of(worker, exchange.request) else {
        return Ok(After::Close);
    };
    let (entry, how) = match decision {
        Decision::Retry => {
            keep_open(worker, client, &facts, server);
            return Ok(After::Continue);
        }
        Decision::Revalidated(kept, lead) => {
            keep_open(worker, client, &facts, server);
            let entry = kept.entry.clone();
            keep(worker, lead, kept);
            (entry, CacheStatus::Confirmed)
        }
        Decision::ServeOnce(entry) => {
            keep_open(worker, client, &facts, server);
            (entry, CacheStatus::Confirmed)
        }
        Decision::ServeStale(entry) => (entry, CacheStatus::StandIn),
        Decision::Fill(kept, filler, lead) => {
            let entry = kept.entry.clone();
            let fill = Fill {
                server,
                facts,
                filler,
                lead,
                kept,
                counters: worker.counters.clone(),
                settings: worker.settings.clone(),
                handle: worker.handle.clone(),
            };
            fill.begin();
            (entry, CacheStatus::Stored(context.asked.why.get()))
        }
        Decision::Tee(reply, delivery) => {
            let head = (facts, delivery);
            {
                let idle = worker.settings.idle_timeout;
                let passed = tee(exchange, client, *reply, head, &mut server.peer);
                while_taken(idle, [&client.stream], pin!(passed)).await?;
            }
            let delivered = Delivered {
                facts,
                keep_alive: delivery.keep_alive,
                asks: delivery.asks,
            };
            return Ok(delivered_to(exchange, client, delivered, server).await);
        }
    };
    Ok(serve(context, client, &entry, how).await)
}

/// Serves what is kept because there is no reply from a server; `None` if nothing may stand in.
pub async fn stand_in(worker: &Worker, client: &Client, request: &Request) -> Option<After> {
    let context = CacheContext::of(worker, request)?;
    let entry = stale_usable(context)?;
    Some(serve(context, client, &entry, CacheStatus::StandIn).await)
}
