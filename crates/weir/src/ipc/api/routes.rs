//! The paths of the API, and the document that describes them (OpenAPI).

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::rejection::QueryRejection;
use axum::extract::{ConnectInfo, DefaultBodyLimit, FromRequestParts, Path, Query, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::OpenApi;
use weir_api::{
    Answer, Class, ClassSettings, Controller, Events, Listener, Problem, Proxy, Status,
    Suggestions, TopSources, Why,
};

use crate::failure::Failure;
use crate::ipc::call::{Call, Change, Line, Reply};
use crate::ipc::peer::Peer;
use crate::ipc::reply::ask;

/// Longest body of a request, in bytes: a class with a thousand prefixes.
const BODY_BYTES: usize = 128 * 1024;

/// Every path.
pub fn router() -> Router<Line> {
    Router::new()
        .route("/v1/status", get(status))
        .route("/v1/listeners", get(listeners))
        .route("/v1/listeners/{name}", get(listener))
        .route("/v1/proxies", get(proxies))
        .route("/v1/proxies/{name}", get(proxy))
        .route("/v1/classes", get(classes).post(add_class))
        .route(
            "/v1/classes/{name}",
            get(class)
                .put(put_class)
                .patch(change_class)
                .delete(remove_class),
        )
        .route("/v1/controller", get(controller))
        .route("/v1/events", get(events))
        .route("/v1/sources", get(sources))
        .route("/v1/why/{address}", get(why))
        .route("/v1/suggestions", get(suggestions))
        .route("/v1/metrics", get(metrics))
        .route("/v1/openapi.json", get(openapi))
        .fallback(unknown_path)
        .method_not_allowed_fallback(unknown_method)
        .layer(DefaultBodyLimit::max(BODY_BYTES))
}

/// The paths that a page asks again and again beside the status. They only read.
pub fn watched() -> Router<Line> {
    Router::new()
        .route("/v1/events", get(events))
        .route("/v1/sources", get(sources))
}

/// Which events.
#[derive(Debug, Deserialize)]
struct Range {
    after: Option<u64>,
    most: Option<usize>,
}

/// How long weir must have looked.
#[derive(Debug, Deserialize)]
struct Looked {
    least: Option<u64>,
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "weir",
        description = "What waits at the listeners under guard, which classes there are and what holds them. \
            Root may write everything; the user that owns all listening sockets of a listener may write the \
            classes of that listener (key `listener`). Errors have a cause and a hint, also those that any path \
            has: 400 for a path that is no UTF-8, 405 for a method that is not here, 503 while weir has no time."
    ),
    paths(
        status,
        listeners,
        listener,
        proxies,
        proxy,
        classes,
        class,
        add_class,
        put_class,
        change_class,
        remove_class,
        controller,
        events,
        sources,
        why,
        suggestions,
        metrics,
        openapi
    )
)]
struct Document;

/// The document as JSON.
pub fn document() -> Value {
    serde_json::to_value(Document::openapi()).expect("the document is JSON")
}

/// Who asks, and the line to the daemon.
struct Ask {
    peer: Peer,
    line: Line,
}

impl Ask {
    async fn of(self, call: Call) -> Response {
        ask(&self.line, self.peer, call).await
    }

    /// Asks what has a body.
    async fn with(self, body: Body, change: impl FnOnce(Map<String, Value>) -> Change) -> Response {
        match settings(body) {
            Ok(settings) => self.of(Call::Change(change(settings))).await,
            Err((status, failure)) => Reply::Refused(status.as_u16(), failure).into_response(),
        }
    }
}

impl FromRequestParts<Line> for Ask {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, line: &Line) -> Result<Ask, Response> {
        let peer = ConnectInfo::<Peer>::from_request_parts(parts, line).await;
        let ConnectInfo(peer) = peer.map_err(IntoResponse::into_response)?;
        let State(line) = State::from_request_parts(parts, line)
            .await
            .expect("infallible");
        Ok(Ask { peer, line })
    }
}

/// What stands in a path where its pattern has a name.
struct InPath(String);

impl FromRequestParts<Line> for InPath {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, line: &Line) -> Result<InPath, Response> {
        match Path::from_request_parts(parts, line).await {
            Ok(Path(text)) => Ok(InPath(text)),
            Err(rejection) => Err(bad_request(
                format!("the path cannot be read: {}", rejection.body_text()),
                "what is percent-encoded in a path has to be UTF-8",
            )),
        }
    }
}

type Body = Result<Bytes, BytesRejection>;

/// The object in a body.
///
/// # Errors
/// There is none; with the HTTP status.
pub fn settings(body: Body) -> Result<Map<String, Value>, (StatusCode, Failure)> {
    let hint =
        "send an object of the keys of [[class]], for example {\"rate\": 300, \"burst\": 30}";
    let body = body.map_err(|rejection| {
        let message = format!("the body cannot be read: {}", rejection.body_text());
        (rejection.status(), Failure::usage(message, hint))
    })?;
    serde_json::from_slice(&body).map_err(|error| {
        let message = format!("the body is no JSON object: {error}");
        (StatusCode::BAD_REQUEST, Failure::usage(message, hint))
    })
}

/// All that `weir status --json` says of listeners
#[utoipa::path(get, path = "/v1/status", responses((status = 200, body = Status), (status = 503, body = Problem)))]
async fn status(ask: Ask) -> Response {
    ask.of(Call::Status).await
}

/// Every listener under guard: queue, wait, counters, settings
#[utoipa::path(get, path = "/v1/listeners", responses((status = 200, body = Vec<Listener>)))]
async fn listeners(ask: Ask) -> Response {
    ask.of(Call::Listeners).await
}

/// One listener
#[utoipa::path(get, path = "/v1/listeners/{name}", params(("name" = String, Path)),
    responses((status = 200, body = Listener), (status = 404, body = Problem)))]
async fn listener(ask: Ask, InPath(name): InPath) -> Response {
    ask.of(Call::Listener(name)).await
}

/// Every proxy of this process
#[utoipa::path(get, path = "/v1/proxies", responses((status = 200, body = Vec<Proxy>)))]
async fn proxies(ask: Ask) -> Response {
    ask.of(Call::Proxies).await
}

/// One proxy
#[utoipa::path(get, path = "/v1/proxies/{name}", params(("name" = String, Path)),
    responses((status = 200, body = Proxy), (status = 404, body = Problem)))]
async fn proxy(ask: Ask, InPath(name): InPath) -> Response {
    ask.of(Call::Proxy(name)).await
}

/// Every class; `other` is that of connections that no class fits
#[utoipa::path(get, path = "/v1/classes", responses((status = 200, body = Vec<Class>)))]
async fn classes(ask: Ask) -> Response {
    ask.of(Call::Classes).await
}

/// One class
#[utoipa::path(get, path = "/v1/classes/{name}", params(("name" = String, Path)),
    responses((status = 200, body = Class), (status = 404, body = Problem)))]
async fn class(ask: Ask, InPath(name): InPath) -> Response {
    ask.of(Call::Class(name)).await
}

/// A new class; its name is the key `name`
#[utoipa::path(post, path = "/v1/classes", request_body = ClassSettings,
    responses((status = 201, body = Class), (status = 400, body = Problem), (status = 403, body = Problem),
        (status = 409, body = Problem, description = "there is one of this name, or it ties with another"),
        (status = 413, body = Problem, description = "the body is longer than 128 KiB")))]
async fn add_class(ask: Ask, body: Body) -> Response {
    ask.with(body, Change::Add).await
}

/// A class, new or in place of the one of this name; what is left out has its default
#[utoipa::path(put, path = "/v1/classes/{name}", params(("name" = String, Path)), request_body = ClassSettings,
    responses((status = 200, body = Class), (status = 201, body = Class), (status = 400, body = Problem),
        (status = 403, body = Problem), (status = 409, body = Problem, description = "it ties with another"),
        (status = 413, body = Problem, description = "the body is longer than 128 KiB")))]
async fn put_class(ask: Ask, InPath(name): InPath, body: Body) -> Response {
    ask.with(body, |settings| Change::Put(name, settings)).await
}

/// Some settings of a class; null takes one away, what is left out stays
#[utoipa::path(patch, path = "/v1/classes/{name}", params(("name" = String, Path)), request_body = ClassSettings,
    responses((status = 200, body = Class), (status = 400, body = Problem), (status = 403, body = Problem),
        (status = 404, body = Problem), (status = 409, body = Problem, description = "it ties with another"),
        (status = 413, body = Problem, description = "the body is longer than 128 KiB")))]
async fn change_class(ask: Ask, InPath(name): InPath, body: Body) -> Response {
    ask.with(body, |settings| Change::Set(name, settings)).await
}

/// Takes a class away
#[utoipa::path(delete, path = "/v1/classes/{name}", params(("name" = String, Path)),
    responses((status = 200, body = Answer), (status = 400, body = Problem), (status = 403, body = Problem), (status = 404, body = Problem)))]
async fn remove_class(ask: Ask, InPath(name): InPath) -> Response {
    ask.of(Call::Change(Change::Remove(name))).await
}

/// The controller: objective, statistics, who is held and why
#[utoipa::path(get, path = "/v1/controller",
    responses((status = 200, body = Controller), (status = 404, body = Problem, description = "there is none")))]
async fn controller(ask: Ask) -> Response {
    ask.of(Call::Controller).await
}

/// What happened, the oldest first: overload, controller, reloads, backends, sampled refusals
///
/// The answer is at once. To follow events, ask again with the `last` of the answer before.
#[utoipa::path(get, path = "/v1/events",
    params(("after" = Option<u64>, Query, description = "only events with a number over this"),
        ("most" = Option<usize>, Query, description = "so many at most, 1 to 1000")),
    responses((status = 200, body = Events), (status = 400, body = Problem)))]
async fn events(ask: Ask, range: Result<Query<Range>, QueryRejection>) -> Response {
    match range {
        Ok(Query(Range { after, most })) => {
            let (after, most) = (after.unwrap_or(0), most.unwrap_or(usize::MAX));
            ask.of(Call::Events(after, most)).await
        }
        Err(rejection) => bad_request(
            format!("the query cannot be read: {}", rejection.body_text()),
            "for example GET /v1/events?after=12",
        ),
    }
}

/// The sources that are refused most at present: addresses, and networks
#[utoipa::path(get, path = "/v1/sources",
    responses((status = 200, body = TopSources), (status = 404, body = Problem, description = "this process guards nothing")))]
async fn sources(ask: Ask) -> Response {
    ask.of(Call::Sources).await
}

/// Why an address was refused, from what is kept
#[utoipa::path(get, path = "/v1/why/{address}", params(("address" = String, Path)),
    responses((status = 200, body = Why), (status = 400, body = Problem),
        (status = 404, body = Problem, description = "this process guards nothing")))]
async fn why(ask: Ask, InPath(address): InPath) -> Response {
    match address.parse() {
        Ok(address) => ask.of(Call::Why(address)).await,
        Err(_) => bad_request(
            format!("{address:?} is not an IP address"),
            "for example GET /v1/why/203.0.113.7",
        ),
    }
}

/// Settings that fit what each listener has gone through, with the reasons and the figures
#[utoipa::path(get, path = "/v1/suggestions",
    params(("least" = Option<u64>, Query, description = "the time to have looked at least, in s; 600 unless given")),
    responses((status = 200, body = Suggestions), (status = 400, body = Problem),
        (status = 404, body = Problem, description = "this process guards nothing")))]
async fn suggestions(ask: Ask, looked: Result<Query<Looked>, QueryRejection>) -> Response {
    match looked {
        Ok(Query(Looked { least })) => ask.of(Call::Suggestions(least)).await,
        Err(rejection) => bad_request(
            format!("the query cannot be read: {}", rejection.body_text()),
            "for example GET /v1/suggestions?least=3600",
        ),
    }
}

fn bad_request(message: String, hint: &str) -> Response {
    Reply::Refused(
        StatusCode::BAD_REQUEST.as_u16(),
        Failure::usage(message, hint),
    )
    .into_response()
}

/// Counters and queues as OpenMetrics text
#[utoipa::path(get, path = "/v1/metrics",
    responses((status = 200, body = String, content_type = "application/openmetrics-text")))]
async fn metrics(ask: Ask) -> Response {
    ask.of(Call::Metrics).await
}

/// This document
#[utoipa::path(get, path = "/v1/openapi.json", responses((status = 200, description = "OpenAPI 3.1")))]
async fn openapi() -> Json<Value> {
    Json(document())
}

async fn unknown_path() -> Response {
    let failure = Failure::usage("there is no such path", "GET /v1/openapi.json lists them");
    Reply::Refused(StatusCode::NOT_FOUND.as_u16(), failure).into_response()
}

async fn unknown_method() -> Response {
    let hint = "GET /v1/openapi.json lists the methods of each path";
    let failure = Failure::usage("this path has no such method", hint);
    Reply::Refused(StatusCode::METHOD_NOT_ALLOWED.as_u16(), failure).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_has_every_path_and_each_type_that_it_refers_to() {
        let document = document();
        let paths: Vec<&str> = document["paths"]
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        for path in [
            "/v1/status",
            "/v1/classes/{name}",
            "/v1/controller",
            "/v1/openapi.json",
        ] {
            assert!(paths.contains(&path), "{paths:?}");
        }
        let text = document.to_string();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        for (at, _) in text.match_indices("#/components/schemas/") {
            let name = text[at + "#/components/schemas/".len()..]
                .split('"')
                .next()
                .unwrap();
            assert!(schemas.contains_key(name), "{name} is not described");
        }
        assert!(schemas.contains_key("Problem") && schemas.contains_key("Decision"));
    }

    #[test]
    fn writes_say_that_a_body_may_be_too_long_and_deleting_other_is_wrong() {
        let paths = &document()["paths"];
        for (path, method) in [
            ("/v1/classes", "post"),
            ("/v1/classes/{name}", "put"),
            ("/v1/classes/{name}", "patch"),
        ] {
            let responses = &paths[path][method]["responses"];
            for status in ["400", "403", "409", "413"] {
                assert!(responses[status].is_object(), "{method} {path} {status}");
            }
        }
        assert!(paths["/v1/classes"]["post"]["responses"]["404"].is_null());
        assert!(paths["/v1/classes/{name}"]["delete"]["responses"]["400"].is_object());
    }

    #[test]
    fn a_body_that_is_no_object_is_refused_with_an_example() {
        for body in ["", "[1]", "{", "\"rate\""] {
            let (status, failure) = settings(Ok(Bytes::from(body))).unwrap_err();
            assert_eq!(status, StatusCode::BAD_REQUEST);
            assert!(failure.causes[0].hint.contains("\"rate\": 300"), "{body}");
        }
    }
}
