//! Mode tcp: each connection goes to a backend, whatever it carries.

use super::visitor::Visitor;
use super::worker::Worker;
use crate::transfer::tunnel;

/// Serves one client.
pub async fn serve(worker: &Worker, mut client: Visitor) {
    let Ok(server) = worker.upstreams.backends.connect(&worker.handle).await else {
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
