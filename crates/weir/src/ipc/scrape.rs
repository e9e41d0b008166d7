//! Metrics over TCP: `GET /metrics`, and nothing else, since a TCP client has no user that could be asked for.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use weir_api::Question;
use weir_api::metrics::{CLASSIC_TYPE, CONTENT_TYPE, classic};

use crate::failure;
use crate::ipc::call::Line;
use crate::ipc::http::{Endpoint, Limits, Listener};
use crate::ipc::peer::Asker;
use crate::ipc::reply::{Refused, ask};

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
    pub fn start(address: SocketAddr, line: Line) -> failure::Result<Metrics> {
        let (address, listener) = Listener::tcp("metrics", address)?;
        let endpoint = Endpoint::start("weir-metrics", listener, router(line), LIMITS)?;
        tracing::info!("metrics on http://{address}/metrics");
        Ok(Metrics {
            _endpoint: endpoint,
        })
    }
}

fn router(line: Line) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .fallback(unknown)
        .with_state(line)
}

/// As OpenMetrics to whom asks for it, as Prometheus does; in the older text format to all others, who may know no other.
async fn metrics(State(line): State<Line>, headers: HeaderMap) -> Result<Response, Refused> {
    let text: Arc<str> = ask(&line, Asker::Tcp, Question::Metrics).await?;
    Ok(match accepts_openmetrics(&headers) {
        true => openmetrics(&text),
        false => ([(header::CONTENT_TYPE, CLASSIC_TYPE)], classic(&text)).into_response(),
    })
}

/// Metrics as OpenMetrics.
pub fn openmetrics(text: &str) -> Response {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], text.to_owned()).into_response()
}

fn accepts_openmetrics(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter();
    let mut accepted = accepted.filter_map(|value| value.to_str().ok());
    accepted.any(|value| value.contains("application/openmetrics-text"))
}

async fn unknown() -> Response {
    (StatusCode::NOT_FOUND, "GET /metrics\n").into_response()
}
