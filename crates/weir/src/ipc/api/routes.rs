//! The paths of the API, and the document that describes them (OpenAPI).

use std::sync::Arc;

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
    Answer, Changed, Class, ClassChange, ClassDone, ClassSettings, Controller, Done, Events,
    Listener, Problem, Proxy, Question, Status, Suggestions, TopSources, Why,
};
use weir_config::did_you_mean;

use crate::failure::Failure;
use crate::ipc::call::Line;
use crate::ipc::peer::Asker;
use crate::ipc::reply::{Refused, ask};
use crate::ipc::scrape::openmetrics;

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
    asker: Asker,
    line: Line,
}

/// A part of an answer, or why there is none.
type Reply<T> = Result<Json<T>, Refused>;
/// The class as it is now.
type Written = Result<(StatusCode, Json<Option<Class>>), Refused>;

impl Ask {
    async fn of<T: TryFrom<Answer>>(self, question: Question) -> Result<T, Refused> {
        ask(&self.line, self.asker, question).await
    }

    async fn status(self) -> Result<Status, Refused> {
        self.of(Question::Status).await
    }

    /// Has a class written: 201 if it is new.
    async fn write(self, change: ClassChange) -> Written {
        let changed: Changed = self.of(Question::Class(change)).await?;
        let status = match changed.done {
            ClassDone::Added => StatusCode::CREATED,
            _ => StatusCode::OK,
        };
        Ok((status, Json(changed.class)))
    }
}

/// The one of this name. `path` lists what there is.
fn one<T>(
    kind: &str,
    path: &str,
    mut all: Vec<T>,
    name: &str,
    name_of: impl Fn(&T) -> &str,
) -> Reply<T> {
    if let Some(at) = all.iter().position(|one| name_of(one) == name) {
        return Ok(Json(all.swap_remove(at)));
    }
    let names: Vec<&str> = all.iter().map(name_of).collect();
    let hint = match did_you_mean(name, &names) {
        Some(meant) => format!("did you mean {meant:?}?"),
        None => format!("GET {path} lists them"),
    };
    Err(Failure::unknown(format!("there is no {kind} {name:?}"), hint).into())
}

impl FromRequestParts<Line> for Ask {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, line: &Line) -> Result<Ask, Response> {
        let asker = ConnectInfo::<Asker>::from_request_parts(parts, line).await;
        let ConnectInfo(asker) = asker.map_err(IntoResponse::into_response)?;
        let State(line) = State::from_request_parts(parts, line)
            .await
            .expect("infallible");
        Ok(Ask { asker, line })
    }
}

/// What stands in a path where its pattern has a name.
struct InPath(String);

impl FromRequestParts<Line> for InPath {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, line: &Line) -> Result<InPath, Refused> {
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

/// The keys in a body.
///
/// # Errors
/// There is no object.
pub fn keys(body: Body) -> Result<ClassSettings, Refused> {
    Ok(object(body)?.into_iter().collect())
}

/// The class in a body that names it.
///
/// # Errors
/// There is no object, or no name in it.
pub fn named(body: Body) -> Result<(String, ClassSettings), Refused> {
    let mut object = object(body)?;
    match object.remove("name") {
        Some(Value::String(name)) => Ok((name, object.into_iter().collect())),
        _ => Err(bad_request(
            "the class has no name".to_owned(),
            "add it: \"name\": \"gold\"",
        )),
    }
}

fn object(body: Body) -> Result<Map<String, Value>, Refused> {
    let hint =
        "send an object of the keys of [[class]], for example {\"rate\": 300, \"burst\": 30}";
    let body = body.map_err(|rejection| {
        let message = format!("the body cannot be read: {}", rejection.body_text());
        Refused(rejection.status(), Failure::usage(message, hint))
    })?;
    serde_json::from_slice(&body)
        .map_err(|error| bad_request(format!("the body is no JSON object: {error}"), hint))
}

/// All that `weir status --json` says of listeners
#[utoipa::path(get, path = "/v1/status", responses((status = 200, body = Status), (status = 503, body = Problem)))]
async fn status(ask: Ask) -> Reply<Status> {
    ask.status().await.map(Json)
}

/// Every listener under guard: queue, wait, counters, settings
#[utoipa::path(get, path = "/v1/listeners", responses((status = 200, body = Vec<Listener>)))]
async fn listeners(ask: Ask) -> Reply<Vec<Listener>> {
    Ok(Json(ask.status().await?.listeners))
}

/// One listener
#[utoipa::path(get, path = "/v1/listeners/{name}", params(("name" = String, Path)),
    responses((status = 200, body = Listener), (status = 404, body = Problem)))]
async fn listener(ask: Ask, InPath(name): InPath) -> Reply<Listener> {
    let all = ask.status().await?.listeners;
    one("listener", "/v1/listeners", all, &name, |one| &one.name)
}

/// Every proxy of this process
#[utoipa::path(get, path = "/v1/proxies", responses((status = 200, body = Vec<Proxy>)))]
async fn proxies(ask: Ask) -> Reply<Vec<Proxy>> {
    Ok(Json(ask.status().await?.proxies))
}

/// One proxy
#[utoipa::path(get, path = "/v1/proxies/{name}", params(("name" = String, Path)),
    responses((status = 200, body = Proxy), (status = 404, body = Problem)))]
async fn proxy(ask: Ask, InPath(name): InPath) -> Reply<Proxy> {
    let all = ask.status().await?.proxies;
    one("proxy", "/v1/proxies", all, &name, |one| &one.name)
}

/// Every class; `other` is that of connections that no class fits
#[utoipa::path(get, path = "/v1/classes", responses((status = 200, body = Vec<Class>)))]
async fn classes(ask: Ask) -> Reply<Vec<Class>> {
    ask.of(Question::Classes).await.map(Json)
}

/// One class
#[utoipa::path(get, path = "/v1/classes/{name}", params(("name" = String, Path)),
    responses((status = 200, body = Class), (status = 404, body = Problem)))]
async fn class(ask: Ask, InPath(name): InPath) -> Reply<Class> {
    let all = ask.of(Question::Classes).await?;
    one("class", "/v1/classes", all, &name, |one: &Class| &one.name)
}

/// A new class; its name is the key `name`
#[utoipa::path(post, path = "/v1/classes", request_body = ClassSettings,
    responses((status = 201, body = Class), (status = 400, body = Problem), (status = 403, body = Problem),
        (status = 409, body = Problem, description = "there is one of this name, or it ties with another"),
        (status = 413, body = Problem, description = "the body is longer than 128 KiB")))]
async fn add_class(ask: Ask, body: Body) -> Written {
    let (name, keys) = named(body)?;
    ask.write(ClassChange::Add { name, keys }).await
}

/// A class, new or in place of the one of this name; what is left out has its default
#[utoipa::path(put, path = "/v1/classes/{name}", params(("name" = String, Path)), request_body = ClassSettings,
    responses((status = 200, body = Class), (status = 201, body = Class), (status = 400, body = Problem),
        (status = 403, body = Problem), (status = 409, body = Problem, description = "it ties with another"),
        (status = 413, body = Problem, description = "the body is longer than 128 KiB")))]
async fn put_class(ask: Ask, InPath(name): InPath, body: Body) -> Written {
    let keys = keys(body)?;
    ask.write(ClassChange::Put { name, keys }).await
}

/// Some settings of a class; null takes one away, what is left out stays
#[utoipa::path(patch, path = "/v1/classes/{name}", params(("name" = String, Path)), request_body = ClassSettings,
    responses((status = 200, body = Class), (status = 400, body = Problem), (status = 403, body = Problem),
        (status = 404, body = Problem), (status = 409, body = Problem, description = "it ties with another"),
        (status = 413, body = Problem, description = "the body is longer than 128 KiB")))]
async fn change_class(ask: Ask, InPath(name): InPath, body: Body) -> Written {
    let keys = keys(body)?;
    ask.write(ClassChange::Set { name, keys }).await
}

/// Takes a class away
#[utoipa::path(delete, path = "/v1/classes/{name}", params(("name" = String, Path)),
    responses((status = 200, body = Done), (status = 400, body = Problem), (status = 403, body = Problem), (status = 404, body = Problem)))]
async fn remove_class(ask: Ask, InPath(name): InPath) -> Reply<Done> {
    let done = format!("class {name:?} removed");
    let _: Changed = ask
        .of(Question::Class(ClassChange::Remove { name }))
        .await?;
    Ok(Json(Done { done }))
}

/// The controller: objective, statistics, who is held and why
#[utoipa::path(get, path = "/v1/controller",
    responses((status = 200, body = Controller), (status = 404, body = Problem, description = "there is none")))]
async fn controller(ask: Ask) -> Reply<Controller> {
    let controller = ask.status().await?.controller;
    controller.map(Json).ok_or_else(|| {
        let hint = "add [controller] with target_wait = \"20ms\" to the config, then `weir reload`";
        Failure::unknown("there is no controller", hint).into()
    })
}

/// What happened, the oldest first: overload, controller, reloads, backends, sampled refusals
///
/// The answer is at once. To follow events, ask again with the `last` of the answer before.
#[utoipa::path(get, path = "/v1/events",
    params(("after" = Option<u64>, Query, description = "only events with a number over this"),
        ("most" = Option<usize>, Query, description = "so many at most, 1 to 1000")),
    responses((status = 200, body = Events), (status = 400, body = Problem)))]
async fn events(ask: Ask, range: Result<Query<Range>, QueryRejection>) -> Reply<Events> {
    let Range { after, most } = query(range, "for example GET /v1/events?after=12")?;
    let (after, most) = (after.unwrap_or(0), most.unwrap_or(usize::MAX));
    ask.of(Question::Events { after, most }).await.map(Json)
}

/// The sources that are refused most at present: addresses, and networks
#[utoipa::path(get, path = "/v1/sources",
    responses((status = 200, body = TopSources), (status = 404, body = Problem, description = "this process guards nothing")))]
async fn sources(ask: Ask) -> Reply<TopSources> {
    ask.of(Question::Sources).await.map(Json)
}

/// Why an address was refused, from what is kept
#[utoipa::path(get, path = "/v1/why/{address}", params(("address" = String, Path)),
    responses((status = 200, body = Why), (status = 400, body = Problem),
        (status = 404, body = Problem, description = "this process guards nothing")))]
async fn why(ask: Ask, InPath(address): InPath) -> Reply<Why> {
    let hint = "for example GET /v1/why/203.0.113.7";
    let wrong = |_| bad_request(format!("{address:?} is not an IP address"), hint);
    let address = address.parse().map_err(wrong)?;
    ask.of(Question::Why { address }).await.map(Json)
}

/// Settings that fit what each listener has gone through, with the reasons and the figures
#[utoipa::path(get, path = "/v1/suggestions",
    params(("least" = Option<u64>, Query, description = "the time to have looked at least, in s; 600 unless given")),
    responses((status = 200, body = Suggestions), (status = 400, body = Problem),
        (status = 404, body = Problem, description = "this process guards nothing")))]
async fn suggestions(
    ask: Ask,
    looked: Result<Query<Looked>, QueryRejection>,
) -> Reply<Suggestions> {
    let Looked { least } = query(looked, "for example GET /v1/suggestions?least=3600")?;
    let question = Question::Suggest { least_s: least };
    ask.of(question).await.map(Json)
}

fn query<T>(query: Result<Query<T>, QueryRejection>, hint: &str) -> Result<T, Refused> {
    let query = query.map_err(|rejection| {
        let message = format!("the query cannot be read: {}", rejection.body_text());
        bad_request(message, hint)
    })?;
    Ok(query.0)
}

fn bad_request(message: String, hint: &str) -> Refused {
    Failure::usage(message, hint).into()
}

/// Counters and queues as OpenMetrics text
#[utoipa::path(get, path = "/v1/metrics",
    responses((status = 200, body = String, content_type = "application/openmetrics-text")))]
async fn metrics(ask: Ask) -> Result<Response, Refused> {
    let text: Arc<str> = ask.of(Question::Metrics).await?;
    Ok(openmetrics(&text))
}

/// This document
#[utoipa::path(get, path = "/v1/openapi.json", responses((status = 200, description = "OpenAPI 3.1")))]
async fn openapi() -> Json<Value> {
    Json(document())
}

async fn unknown_path() -> Refused {
    Failure::unknown("there is no such path", "GET /v1/openapi.json lists them").into()
}

async fn unknown_method() -> Refused {
    let hint = "GET /v1/openapi.json lists the methods of each path";
    let failure = Failure::usage("this path has no such method", hint);
    Refused(StatusCode::METHOD_NOT_ALLOWED, failure)
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
            let Refused(status, failure) = keys(Ok(Bytes::from(body))).unwrap_err();
            assert_eq!(status, StatusCode::BAD_REQUEST);
            assert!(failure.causes[0].hint.contains("\"rate\": 300"), "{body}");
        }
    }
}
