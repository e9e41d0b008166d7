//! Mode tcp: each connection goes to a backend, whatever it carries.

use std::net::SocketAddr;

use super::visitor::Visitor;
use super::worker::Guest;
use crate::runtime::TcpStream;
use crate::transfer::tunnel;

/// Serves one client, until its task is dropped with `guest`.
pub async fn serve(guest: Guest, stream: TcpStream, peer: SocketAddr) {
    let worker = guest.worker();
    let mut client = Visitor::new(stream, peer);
    if !client.is_admitted(worker).await {
        return;
    }
    let Ok(server) = worker
        .upstreams
        .backends
        .connect(&worker.handle, client.asker())
        .await
    else {
        // What a client of a server that does not listen gets.
        client.stream.reset_on_close();
        worker.counters.transfers_broken.add(1);
        return;
    };
    worker.counters.tunnels.add(1);
    let introduction = client.introduction(worker);
    worker.handle.set_deadline(worker.settings.idle_timeout);
    if server.stream.send_all(&introduction, false).await.is_err() {
        client.stream.reset_on_close();
        worker.counters.transfers_broken.add(1);
        return;
    }
    let ahead = [client.inbox.take_all(), Vec::new()];
    let (client, server) = (&client.stream, &server.stream);
    let tunnelled = tunnel(&worker.lanes, client, server, ahead, worker.rules()).await;
    worker.count_tunnel(&tunnelled);
}
