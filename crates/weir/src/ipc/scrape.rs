//! Metrics over TCP: `GET /metrics`, and nothing else, since a TCP client has no user that could be asked for.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::failure::{Failure, Result};
use crate::ipc::call::{Call, Line};
use crate::ipc::http::{Endpoint, Limits, Listener};
use crate::ipc::peer::Peer;
use crate::ipc::reply::ask;

/// A scrape takes milliseconds; Prometheus gives up after ten seconds. One that is slow costs a descriptor and some
/// kB, and figures that it does not read.
const LIMITS: Limits = Limits {
    connections: 256,
    time: Duration::from_secs(10),
    keep_alive: false,
};

/// Where metrics are scraped.
pub struct Metrics {
    _endpoint: Endpoint,
}

impl Metrics {
    /// Listens, and starts the thread that answers.
    ///
    /// # Errors
    /// The address is in use or not of this machine, or the kernel gives no thread.
    pub fn start(address: SocketAddr, line: Line) -> Result<Metrics> {
        let listen = || {
            let listener = std::net::TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            Ok((listener.local_addr()?, listener))
        };
        let (address, listener) = listen().map_err(|error| cannot_listen(address, &error))?;
        let endpoint = Endpoint::start(
            "weir-metrics",
            Listener::Tcp(listener),
            router(line),
            LIMITS,
        )?;
        tracing::info!("metrics on http://{address}/metrics");
        Ok(Metrics {
            _endpoint: endpoint,
        })
    }
}

fn cannot_listen(address: SocketAddr, error: &std::io::Error) -> Failure {
    let hint = match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            "`ss -ltnp` shows the process that listens there; each weir needs an address of its own"
        }
        std::io::ErrorKind::AddrNotAvailable => "`ip address` lists this machine's addresses",
        std::io::ErrorKind::PermissionDenied => {
            "ports below 1024 need root or CAP_NET_BIND_SERVICE"
        }
        _ => "",
    };
    Failure::failed(
        format!("metrics: cannot listen on {address}: {error}"),
        hint,
    )
}

fn router(line: Line) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .fallback(unknown)
        .with_state(line)
}

async fn metrics(State(line): State<Line>) -> Response {
    ask(&line, Peer::UNKNOWN, Call::Metrics).await
}

async fn unknown() -> Response {
    (StatusCode::NOT_FOUND, "GET /metrics\n").into_response()
}
