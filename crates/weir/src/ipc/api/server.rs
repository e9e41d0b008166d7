//! The thread that speaks HTTP.

use std::os::unix::net::UnixListener;
use std::time::Duration;

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use tokio::sync::oneshot;
use tokio::time::timeout;
use weir_api::metrics::CONTENT_TYPE;
use weir_api::{Cause, Problem};

use super::door::Door;
use super::{Call, Job, Line, Peer, Reply, routes};
use crate::failure::Failure;

/// The daemon's thread answers between its other work; a reload is the longest.
const PATIENCE: Duration = Duration::from_secs(10);

/// Serves until the process ends.
pub fn run(listener: UnixListener, line: Line) {
    let serve = async move {
        let door = Door::new(listener)?;
        let router = routes::router().with_state(line);
        axum::serve(door, router.into_make_service_with_connect_info::<Peer>()).await
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    if let Err(error) = runtime.and_then(|runtime| runtime.block_on(serve)) {
        tracing::error!("the API is off: {error}");
    }
}

impl Line {
    /// Has the daemon's thread answer.
    pub async fn ask(&self, peer: Peer, call: Call) -> Response {
        let (reply, answer) = oneshot::channel();
        let busy = || {
            let hint = "ask again in a second";
            let failure = Failure::failed("weir has no time for the API at the moment", hint);
            Reply::Refused(StatusCode::SERVICE_UNAVAILABLE.as_u16(), failure)
        };
        if self.jobs.try_send(Job { call, peer, reply }).is_err() {
            return busy().into_response();
        }
        // The counter of an eventfd cannot be full: the queue is bounded.
        let _ = self.bell.write(1);
        match timeout(PATIENCE, answer).await {
            Ok(Ok(reply)) => reply.into_response(),
            _ => busy().into_response(),
        }
    }
}

impl IntoResponse for Reply {
    fn into_response(self) -> Response {
        let status = |code| StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        match self {
            Reply::Json(code, value) => (status(code), Json(value)).into_response(),
            Reply::Text(text) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response(),
            Reply::Refused(code, failure) => {
                (status(code), Json(problem(&failure))).into_response()
            }
        }
    }
}

/// A failure as the API has it.
pub fn problem(failure: &Failure) -> Problem {
    let cause = |cause: &crate::failure::Cause| Cause {
        message: cause.message.clone(),
        hint: cause.hint.clone(),
    };
    Problem {
        causes: failure.causes.iter().map(cause).collect(),
    }
}
