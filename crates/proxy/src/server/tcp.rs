//! Mode tcp: each connection goes to a backend, whatever it carries.

use super::worker::Worker;
use crate::runtime::TcpStream;
use crate::transfer::tunnel;

/// Serves one client.
pub async fn serve(worker: &Worker, client: TcpStream) {
    let Ok(server) = worker.upstreams.backends.connect(&worker.handle).await else {
        // What a client of a server that does not listen gets.
        client.reset_on_close();
        worker.counters.transfers_broken.add(1);
        return;
    };
    worker.counters.tunnels.add(1);
    let tunnelled = tunnel(
        &worker.lanes,
        &client,
        &server.stream,
        [Vec::new(), Vec::new()],
        worker.rules(),
    )
    .await;
    worker.count_tunnel(&tunnelled);
}
