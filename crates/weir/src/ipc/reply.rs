//! Questions over HTTP: asked, and refused.

use std::time::Duration;

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use tokio::time::timeout;
use weir_api::{Answer, Problem, Question};

use crate::failure::{Code, Failure};
use crate::ipc::call::Line;
use crate::ipc::control::another_answer;
use crate::ipc::peer::Asker;

/// The service's thread answers between its other work; a reload is the longest.
const PATIENCE: Duration = Duration::from_secs(10);

/// Has the service's thread answer.
///
/// # Errors
/// It refuses, or has no time.
pub async fn ask<T: TryFrom<Answer>>(
    line: &Line,
    asker: Asker,
    question: Question,
) -> Result<T, Refused> {
    let answer = match line.send(asker, question) {
        Some(answer) => timeout(PATIENCE, answer).await.ok().and_then(Result::ok),
        None => None,
    };
    let answer = answer.ok_or_else(busy)??;
    T::try_from(answer).map_err(|_| another_answer().into())
}

fn busy() -> Refused {
    let hint = "ask again in a second";
    let failure = Failure::failed("weir has no time for the API at the moment", hint);
    Refused(StatusCode::SERVICE_UNAVAILABLE, failure)
}

/// What is refused: the HTTP status, and why.
#[derive(Debug)]
pub struct Refused(pub StatusCode, pub Failure);

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Refused {
        let status = match failure.code {
            Code::Usage => StatusCode::BAD_REQUEST,
            Code::Denied => StatusCode::FORBIDDEN,
            Code::Unknown => StatusCode::NOT_FOUND,
            Code::Conflict => StatusCode::CONFLICT,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Refused(status, failure)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let Refused(status, Failure { causes, .. }) = self;
        (status, Json(Problem { causes })).into_response()
    }
}
