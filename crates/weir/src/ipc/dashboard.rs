//! The dashboard: a page of static files, and the figures that it shows, over TCP (docs/dashboard.md).
//!
//! The page asks for the same reports as the clients of the API, once a second for as long as it is open. Nothing here
//! works, counts or remembers between two questions. There is no way to change anything.

mod access;
mod files;
mod verdicts;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use tokio::task::spawn_blocking;
use weir_api::{Question, Status};

use crate::failure::{Failure, Result};
use crate::ipc::api::watched;
use crate::ipc::call::Line;
use crate::ipc::http::{Endpoint, Limits, Listener};
use crate::ipc::peer::Asker;
use crate::ipc::reply::{Refused, ask};

pub use access::Token;

/// A browser holds up to six connections to a page. A connection ends when it is old, so that no reader holds one for good;
/// the browser then opens another.
const LIMITS: Limits = Limits {
    connections: 64,
    time: Duration::from_secs(600),
    keep_alive: true,
};

type Reports = Result<(Vec<weir_api::Proxy>, Vec<Failure>)>;

/// How the reports of the other processes of this network namespace are had: their proxies, and why one did not answer.
#[derive(Clone)]
pub struct Others(Arc<dyn Fn() -> Reports + Send + Sync>);

impl Others {
    /// By asking so; it may block.
    pub fn new(ask: impl Fn() -> Reports + Send + Sync + 'static) -> Others {
        Others(Arc::new(ask))
    }
}

/// The dashboard's socket, and the thread that serves it.
pub struct Dashboard {
    _endpoint: Endpoint,
}

impl Dashboard {
    /// Listens, and starts the thread that answers.
    ///
    /// # Errors
    /// The address is in use or not of this machine, or the kernel gives no thread.
    pub fn start(
        address: SocketAddr,
        token: Option<Token>,
        line: Line,
        others: Others,
    ) -> Result<Dashboard> {
        let (address, listener) = Listener::tcp("dashboard", address)?;
        let router = router(token, line, others);
        let endpoint = Endpoint::start("weir-dashboard", listener, router, LIMITS)?;
        tracing::info!("dashboard on http://{address}/");
        Ok(Dashboard {
            _endpoint: endpoint,
        })
    }
}

fn router(token: Option<Token>, line: Line, others: Others) -> Router {
    let status = Router::new().route("/v1/status", get(status));
    let figures = status
        .with_state((line.clone(), others))
        .merge(watched().with_state(line));
    let router = files::router().route("/verdicts.json", get(verdicts::list));
    let router = match token {
        Some(token) => router.merge(figures.layer(from_fn_with_state(token, access::by_token))),
        None => router.merge(figures).layer(from_fn(access::by_host)),
    };
    router
        .fallback(unknown)
        .layer(from_fn(access::say_what_the_page_may))
}

/// The report of this process, with the proxies of all others as `weir status` has them.
async fn status(
    State((line, others)): State<(Line, Others)>,
) -> std::result::Result<Json<Status>, Refused> {
    let mut status: Status = ask(&line, Asker::Tcp, Question::Status).await?;
    let others = spawn_blocking(move || (others.0)()).await;
    let (proxies, silent) = match others {
        Ok(Ok(answers)) => answers,
        Ok(Err(failure)) => (Vec::new(), vec![failure]),
        Err(error) => (Vec::new(), vec![Failure::failed(error.to_string(), "")]),
    };
    status
        .warnings
        .extend(silent.iter().map(ToString::to_string));
    status.proxies.extend(proxies);
    Ok(Json(status))
}

async fn unknown() -> Response {
    (StatusCode::NOT_FOUND, "the page is at /\n").into_response()
}
