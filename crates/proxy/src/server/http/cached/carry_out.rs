//! Gives the client its reply as the cache has decided.

use std::pin::pin;

use super::decide::{Decision, stale_usable};
use super::fill::Fill;
use super::keep::keep;
use super::serve::serve;
use super::status::How;
use super::tee::tee;
use crate::http::ReplyFacts;
use crate::runtime::while_taken;
use crate::server::client::Client;
use crate::server::http::after::After;
use crate::server::http::failure::Failure;
use crate::server::http::finish::{delivered_to, keep_open};
use crate::server::http::progress::Progress;
use crate::server::http::reply::Delivered;
use crate::server::http::request::Request;
use crate::server::peer::Peer;
use crate::server::worker::Worker;
use crate::upstream::Lease;

/// The server's side of a reply that the cache takes.
pub struct Source<'a> {
    /// What the reply's head said.
    pub facts: ReplyFacts,
    /// The connection, after the head.
    pub server: Peer,
    /// The right to it.
    pub lease: Lease,
    /// How far the exchange has come.
    pub progress: &'a Progress,
}

/// Gives the client its reply as the cache has decided.
pub async fn carry_out(
    worker: &Worker,
    client: &mut Client,
    request: &Request,
    decision: Decision,
    source: Source<'_>,
) -> Result<After, Failure> {
    let Source {
        facts,
        mut server,
        lease,
        progress,
    } = source;
    let (Some(thread_cache), Some(asked)) = (&worker.cache, &request.asked) else {
        return Ok(After::Close);
    };
    let (entry, how) = match decision {
        Decision::Retry => {
            keep_open(worker, client, lease, &facts, server);
            return Ok(After::Continue);
        }
        Decision::Revalidated(kept, lead) => {
            keep_open(worker, client, lease, &facts, server);
            let entry = kept.entry.clone();
            keep(worker, lead, kept);
            (entry, How::Confirmed)
        }
        Decision::ServeOnce(entry) => {
            keep_open(worker, client, lease, &facts, server);
            (entry, How::Confirmed)
        }
        Decision::ServeStale(entry) => (entry, How::StandIn),
        Decision::Fill(kept, filler, lead) => {
            let entry = kept.entry.clone();
            let fill = Fill {
                server,
                lease,
                facts,
                filler,
                lead,
                kept,
                counters: worker.counters.clone(),
                settings: worker.settings.clone(),
                handle: worker.handle.clone(),
            };
            fill.begin();
            (entry, How::Stored(asked.why.get()))
        }
        Decision::Tee(reply, delivery) => {
            let head = (facts, delivery);
            {
                let (far, idle) = (&mut server, worker.settings.idle_timeout);
                let passed = tee(worker, client, request, *reply, head, far, progress);
                while_taken(idle, [&client.stream], pin!(passed)).await?;
            }
            let delivered = Delivered {
                facts,
                keep_alive: delivery.keep_alive,
            };
            let after = delivered_to(worker, client, request, delivered, lease, server, progress);
            return Ok(after.await);
        }
    };
    Ok(serve(worker, thread_cache, client, request, asked, &entry, how).await)
}

/// Serves what is kept because there is no reply from a server; `None` if nothing may stand in.
pub async fn stand_in(worker: &Worker, client: &Client, request: &Request) -> Option<After> {
    let (thread_cache, asked) = (worker.cache.as_ref()?, request.asked.as_ref()?);
    let entry = stale_usable(thread_cache, asked)?;
    Some(
        serve(
            worker,
            thread_cache,
            client,
            request,
            asked,
            &entry,
            How::StandIn,
        )
        .await,
    )
}
