//! Mode tcp: each connection goes to a backend, whatever it carries.

use std::io::ErrorKind;
use std::net::SocketAddr;

use super::client::Client;
use super::http::{GONE, unreachable};
use super::worker::{ClientGuard, Worker};
use crate::runtime::TcpStream;
use crate::transfer::tunnel;
use crate::upstream::Link;

/// Serves one client, until its task is dropped with `guard`.
pub async fn serve(guard: ClientGuard, stream: TcpStream, peer: SocketAddr) {
    let worker = guard.worker();
    let mut client = Client::new(stream, peer);
    if !client.is_admitted(worker).await {
        return;
    }
    if worker.journal.is_some() {
        client.begin_entry(None);
    }
    let Some(server) = reach(worker, &mut client).await else {
        worker.log(&mut client);
        return;
    };
    worker.counters.tunnels.add(1);
    let ahead = [client.buffer.take_all(), Vec::new()];
    let (near, far) = (&client.stream, &server.stream);
    let tunnelled = tunnel(worker.transfers(), near, far, ahead).await;
    worker.count_tunnel(&client, &server.stream, &tunnelled);
    worker.log(&mut client);
}

/// A connection to a backend that knows the client's address. If there is none, the client gets what a
/// client of a server gets that does not listen.
async fn reach(worker: &Worker, client: &mut Client) -> Option<Link> {
    let backends = &worker.upstreams.backends;
    let reached = match backends.connect(&worker.handle, client.requester()).await {
        Ok(server) => {
            client.note(|entry| entry.backend.set(Some(server.lease.backend().address)));
            let proxy_header = client.proxy_header(worker.settings.send_proxy);
            worker.handle.set_deadline(worker.settings.idle_timeout);
            let introduced = server.stream.send_all(&proxy_header, false).await;
            introduced.map(|()| server)
        }
        Err(error) => Err(error),
    };
    if let Err(error) = &reached {
        client.stream.reset_on_close();
        worker.counters.transfers_broken.add(1);
        client.note(|entry| match error.kind() {
            ErrorKind::ConnectionAborted => entry.because(GONE),
            _ => {
                let why = unreachable(error);
                entry.because(format!("{}: {}", why.error.name(), why.details));
            }
        });
    }
    reached.ok()
}
