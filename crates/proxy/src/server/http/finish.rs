//! What follows a whole reply: the next request, a tunnel, or the end of a connection.

use super::after::After;
use super::closing;
use super::progress::Exchange;
use super::reply::Delivered;
use crate::http::{BodyKind, ReplyFacts};
use crate::server::client::Client;
use crate::server::peer::{LeasedPeer, Peer};
use crate::server::read_buffer::ReadBuffer;
use crate::server::worker::Worker;
use crate::transfer::tunnel;
use crate::upstream::Link;
use weir_core::proxy::SendProxy;

/// What follows a whole reply.
pub async fn delivered_to(
    exchange: Exchange<'_>,
    client: &mut Client,
    delivered: Delivered,
    mut server: LeasedPeer,
) -> After {
    let worker = exchange.worker;
    client.note(|entry| entry.status.set(Some(delivered.facts.status)));
    if delivered.facts.body == BodyKind::Tunnel {
        return carry(worker, client, &mut server.peer).await;
    }
    let uploaded = exchange.progress.uploaded.get();
    if uploaded {
        keep_open(worker, client, &delivered.facts, server);
    }
    if delivered.asks {
        client.ask_to_close(&worker.counters);
    }
    match delivered.keep_alive && uploaded {
        true => After::Continue,
        false => closing::after_last_reply(client, exchange.request, uploaded),
    }
}

/// Keeps a server's connection for the next request, if its reply leaves it open: of this client if it
/// began with its address, else of any. Not one that its server asks the proxy to close.
pub fn keep_open(worker: &Worker, client: &mut Client, reply: &ReplyFacts, server: LeasedPeer) {
    let LeasedPeer { peer, lease } = server;
    if !leaves_open(reply, &peer.buffer) {
        // In this order: the connection's slot is free once it is closed.
        drop(peer);
        return drop(lease);
    }
    let (settings, stream) = (&worker.settings, peer.stream);
    let asks = reply.client_close;
    if settings.send_proxy == SendProxy::Off {
        return lease.keep(stream, asks);
    }
    // One that others may wait for is not kept for one client.
    if settings.max_connections > 0 || lease.ends(asks) {
        return lease.end(stream, asks);
    }
    if stream.quiesce() {
        client.keep_link(Link {
            stream,
            lease,
            reused: true,
        });
    }
}

/// Whether a server's connection may carry another request after this reply.
pub fn leaves_open(facts: &ReplyFacts, buffer: &ReadBuffer) -> bool {
    let ends = !matches!(facts.body, BodyKind::UntilClose | BodyKind::Tunnel);
    facts.keep_alive && ends && buffer.is_empty()
}

/// Both ways until both ends, beginning with what was received ahead.
pub async fn carry(worker: &Worker, client: &mut Client, server: &mut Peer) -> After {
    worker.counters.tunnels.add(1);
    worker.handle.set_deadline(worker.settings.idle_timeout);
    let ahead = [client.buffer.take_all(), server.buffer.take_all()];
    let (near, far) = (&client.stream, &server.stream);
    let replies = near.unacknowledged();
    let tunnelled = tunnel(worker.transfers(), near, far, ahead).await;
    worker.count_tunnel(client, &server.stream, &tunnelled);
    if replies > 0 && tunnelled.end.is_err() {
        closing::wait_until_acknowledged(worker, client, tunnelled.back).await;
    }
    After::Tunnelled
}
