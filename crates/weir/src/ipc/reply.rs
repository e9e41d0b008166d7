//! Replies of the service as HTTP responses.

use std::time::Duration;

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use tokio::time::timeout;
use weir_api::metrics::{CLASSIC_TYPE, CONTENT_TYPE, classic};
use weir_api::{Cause, Problem};

use crate::failure::{self, Failure};
use crate::ipc::call::{Call, Line, Reply};
use crate::ipc::peer::Peer;

/// The service's thread answers between its other work; a reload is the longest.
const PATIENCE: Duration = Duration::from_secs(10);

/// Has the service's thread answer, and makes a response of it.
pub async fn ask(line: &Line, peer: Peer, call: Call) -> Response {
    reply(line, peer, call).await.into_response()
}

/// Has the service's thread answer.
pub async fn reply(line: &Line, peer: Peer, call: Call) -> Reply {
    let answer = match line.send(peer, call) {
        Some(answer) => timeout(PATIENCE, answer).await.ok().and_then(Result::ok),
        None => None,
    };
    answer.unwrap_or_else(busy)
}

impl Reply {
    /// Metrics in the older text format; all else as it is.
    pub fn classic(self) -> Response {
        match self {
            Reply::Text(text) => {
                let text = classic(&String::from_utf8_lossy(&text));
                ([(header::CONTENT_TYPE, CLASSIC_TYPE)], text).into_response()
            }
            other => other.into_response(),
        }
    }
}

fn busy() -> Reply {
    let hint = "ask again in a second";
    let failure = Failure::failed("weir has no time for the API at the moment", hint);
    Reply::Refused(StatusCode::SERVICE_UNAVAILABLE.as_u16(), failure)
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
    let cause = |cause: &failure::Cause| Cause {
        message: cause.message.clone(),
        hint: cause.hint.clone(),
    };
    Problem {
        causes: failure.causes.iter().map(cause).collect(),
    }
}
