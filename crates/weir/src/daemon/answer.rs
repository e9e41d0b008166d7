//! A service's answers over HTTP.

use std::time::{Duration, Instant};

use axum::body::Bytes;
use serde_json::json;
use weir_config::did_you_mean;

use crate::daemon::config_file::Reloads;
use crate::daemon::events::Events;
use crate::daemon::profiles;
use crate::daemon::service::{Changed, Refusal, Service};
use crate::failure::Failure;
use crate::ipc::call::{Call, Change, Reply};
use crate::ipc::peer::Peer;

type Answered = Result<Reply, Refusal>;

/// The path that lists the listeners.
const LISTENERS: &str = "/v1/listeners";
/// The path that lists the proxies.
const PROXIES: &str = "/v1/proxies";
/// The path that lists the classes.
pub const CLASSES: &str = "/v1/classes";

/// The body is wrong.
pub const BAD_REQUEST: u16 = 400;
/// The client has no right to it.
pub const FORBIDDEN: u16 = 403;
/// There is nothing of this name.
const NOT_FOUND: u16 = 404;
/// What is asked for contradicts what is in force.
pub const CONFLICT: u16 = 409;
/// weir has failed.
const INTERNAL: u16 = 500;

/// For so long the figures stay as they were made: the service's thread makes them, which has other work, and any
/// number of clients may ask.
const FRESH: Duration = Duration::from_millis(100);

/// The figures as they were made last.
#[derive(Default)]
pub struct Figures(Option<(Instant, Bytes)>);

impl Figures {
    fn of(&mut self, service: &dyn Service, reloads: &Reloads) -> Answered {
        let fresh = self.0.as_ref().filter(|(made, _)| made.elapsed() < FRESH);
        let text = match fresh {
            Some((_, text)) => text.clone(),
            None => Bytes::from(service.metrics(reloads).map_err(internal)?),
        };
        if fresh.is_none() {
            self.0 = Some((Instant::now(), text.clone()));
        }
        Ok(Reply::Text(text))
    }
}

/// Answers a call.
pub fn answer(
    service: &mut dyn Service,
    figures: &mut Figures,
    events: &Events,
    reloads: &Reloads,
    call: &Call,
    peer: Peer,
) -> Reply {
    let answered = match call {
        Call::Change(change) => self::change(service, change, peer),
        Call::Metrics => figures.of(service, reloads),
        Call::Events(after, most) => ok(events.read(*after, *most)),
        Call::Suggestions(least_s) => {
            let answer = service.suggestions(profiles::least(*least_s));
            answer.map_err(not_here).and_then(ok)
        }
        Call::Why(address) => service.why(*address).map_err(not_here).and_then(ok),
        call => read(service, reloads, call),
    };
    answered.unwrap_or_else(|(status, failure)| {
        match call {
            Call::Change(change) => {
                tracing::warn!("API: {}: refused to {peer}: {failure}", change.class());
            }
            call => tracing::debug!("API: {call:?} of {peer}: {status}: {failure}"),
        }
        Reply::Refused(status, failure)
    })
}

fn read(service: &dyn Service, reloads: &Reloads, call: &Call) -> Answered {
    let report = || service.report(reloads).map_err(internal);
    match call {
        Call::Status => ok(report()?),
        Call::Listeners => ok(report()?.listeners),
        Call::Listener(name) => one("listener", LISTENERS, &report()?.listeners, name, |l| {
            &l.name
        }),
        Call::Proxies => ok(report()?.proxies),
        Call::Proxy(name) => one("proxy", PROXIES, &report()?.proxies, name, |p| &p.name),
        Call::Classes => ok(service.classes().map_err(internal)?),
        Call::Class(name) => class(service, name, 200),
        Call::Controller => ok(report()?.controller.ok_or_else(no_controller)?),
        Call::Sources => ok(service.top_sources().map_err(not_here)?),
        Call::Metrics | Call::Events(..) | Call::Why(_) | Call::Suggestions(_) => {
            unreachable!("they are answered by themselves")
        }
        Call::Change(_) => unreachable!("a change is not a read"),
    }
}

fn change(service: &mut dyn Service, change: &Change, peer: Peer) -> Answered {
    match service.change_class(change, peer)? {
        Changed::Added(name) => class(service, &name, 201),
        Changed::Modified(name) => class(service, &name, 200),
        Changed::Removed(name) => ok(json!({ "done": format!("class {name:?} removed") })),
    }
}

fn class(service: &dyn Service, name: &str, status: u16) -> Answered {
    let classes = service.classes().map_err(internal)?;
    match one("class", CLASSES, &classes, name, |class| &class.name)? {
        Reply::Json(_, class) => Ok(Reply::Json(status, class)),
        other => Ok(other),
    }
}

fn ok(value: impl serde::Serialize) -> Answered {
    Ok(Reply::Json(
        200,
        serde_json::to_value(value).expect("reports are JSON"),
    ))
}

/// The one of this name.
fn one<T: serde::Serialize>(
    kind: &str,
    path: &str,
    all: &[T],
    name: &str,
    name_of: impl Fn(&T) -> &String,
) -> Answered {
    match all.iter().find(|one| name_of(one) == name) {
        Some(found) => ok(found),
        None => {
            let names: Vec<&str> = all.iter().map(|one| name_of(one).as_str()).collect();
            Err(unknown(kind, path, name, &names))
        }
    }
}

/// Something went wrong in weir.
pub fn internal(failure: Failure) -> Refusal {
    (INTERNAL, failure)
}

fn no_controller() -> Refusal {
    let hint = "add [controller] with target_wait = \"20ms\" to the config, then `weir reload`";
    (NOT_FOUND, Failure::usage("there is no controller", hint))
}

/// This process does not have what was asked for.
fn not_here(failure: Failure) -> Refusal {
    (NOT_FOUND, failure)
}

/// There is nothing of this name; `path` lists what there is.
pub fn unknown(kind: &str, path: &str, name: &str, names: &[&str]) -> Refusal {
    let hint = match did_you_mean(name, names) {
        Some(meant) => format!("did you mean {meant:?}?"),
        None => format!("GET {path} lists them"),
    };
    (
        NOT_FOUND,
        Failure::usage(format!("there is no {kind} {name:?}"), hint),
    )
}
