//! The daemon's answers to the API. Every write is logged with the user that asked for it.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use weir_api::metrics::{self, Figures};
use weir_config::{self, Given, Table, did_you_mean};
use weir_core::class::{Class, OTHER};

use super::{Call, Peer, Reply, access};
use crate::daemon::backend::Backend;
use crate::daemon::guard::Daemon;
use crate::daemon::session::{check_guarded, other_has_no_settings};
use crate::failure::{Code, Failure};
use crate::show::log;

/// A refusal: the HTTP status, and why.
type Refusal = (u16, Failure);
type Answered = Result<Reply, Refusal>;

const LISTENERS: &str = "/v1/listeners";
const CLASSES: &str = "/v1/classes";

const BAD_REQUEST: u16 = 400;
const FORBIDDEN: u16 = 403;
const NOT_FOUND: u16 = 404;
const CONFLICT: u16 = 409;
const INTERNAL: u16 = 500;

/// Answers what is asked.
pub fn answer<B: Backend>(daemon: &mut Daemon<B>, call: &Call, peer: Peer) -> Reply {
    let answered = match call {
        Call::Status => status(daemon),
        Call::Listeners => listeners(daemon),
        Call::Listener(name) => listener(daemon, name),
        Call::Classes => classes(daemon),
        Call::Class(name) => class(daemon, name),
        Call::Controller => controller(daemon),
        Call::Metrics => figures(daemon),
        Call::AddClass(settings) => add(daemon, peer, settings),
        Call::PutClass(name, settings) => put(daemon, peer, name, settings),
        Call::ChangeClass(name, settings) => change(daemon, peer, name, settings),
        Call::RemoveClass(name) => remove(daemon, peer, name),
    };
    answered.unwrap_or_else(|(status, failure)| {
        match call.written() {
            Some(class) => tracing::warn!("API: {class}: refused to {peer}: {failure}"),
            None => tracing::debug!("API: {call:?} of {peer}: {status}: {failure}"),
        }
        Reply::Refused(status, failure)
    })
}

fn ok(value: impl serde::Serialize) -> Answered {
    Ok(Reply::Json(
        200,
        serde_json::to_value(value).expect("reports are JSON"),
    ))
}

fn internal(failure: Failure) -> Refusal {
    (INTERNAL, failure)
}

fn status<B: Backend>(daemon: &Daemon<B>) -> Answered {
    ok(daemon.report().map_err(internal)?)
}

fn listeners<B: Backend>(daemon: &Daemon<B>) -> Answered {
    ok(daemon.session.listeners().map_err(internal)?)
}

fn figures<B: Backend>(daemon: &Daemon<B>) -> Answered {
    let figures = Figures {
        listeners: daemon.session.listeners().map_err(internal)?,
        classes: daemon.session.class_reports().map_err(internal)?,
        log_lost: log::lost(),
        ..Figures::default()
    };
    Ok(Reply::Text(metrics::text(metrics::guard(), &figures)))
}

fn listener<B: Backend>(daemon: &Daemon<B>, name: &str) -> Answered {
    let all = daemon.session.listeners().map_err(internal)?;
    let names: Vec<&str> = all.iter().map(|listener| listener.name.as_str()).collect();
    let found = all.iter().find(|listener| listener.name == name);
    ok(found.ok_or_else(|| unknown("listener", LISTENERS, name, &names))?)
}

fn classes<B: Backend>(daemon: &Daemon<B>) -> Answered {
    ok(daemon.session.class_reports().map_err(internal)?)
}

fn class<B: Backend>(daemon: &Daemon<B>, name: &str) -> Answered {
    let all = daemon.session.class_reports().map_err(internal)?;
    let names: Vec<&str> = all.iter().map(|class| class.name.as_str()).collect();
    let found = all.iter().find(|class| class.name == name);
    ok(found.ok_or_else(|| unknown("class", CLASSES, name, &names))?)
}

fn controller<B: Backend>(daemon: &Daemon<B>) -> Answered {
    let none = || {
        let hint = "add [controller] with target_wait = \"20ms\" to the config, then `weir reload`";
        (NOT_FOUND, Failure::usage("there is no controller", hint))
    };
    ok(daemon.controller_report().ok_or_else(none)?)
}

/// There is nothing of this name; `path` lists what there is.
fn unknown(kind: &str, path: &str, name: &str, names: &[&str]) -> Refusal {
    let hint = match did_you_mean(name, names) {
        Some(meant) => format!("did you mean {meant:?}?"),
        None => format!("GET {path} lists them"),
    };
    (
        NOT_FOUND,
        Failure::usage(format!("there is no {kind} {name:?}"), hint),
    )
}

fn add<B: Backend>(daemon: &mut Daemon<B>, peer: Peer, settings: &Map<String, Value>) -> Answered {
    let class = class_with(&Class::new(""), settings)?;
    if class.name.is_empty() {
        let failure = Failure::usage("the class has no name", "add it: \"name\": \"gold\"");
        return Err((BAD_REQUEST, failure));
    }
    if position(daemon, &class.name).is_some() {
        let message = format!("there is a class {:?} already", class.name);
        let hint = "PATCH /v1/classes/NAME changes it, PUT replaces it";
        return Err((CONFLICT, Failure::usage(message, hint)));
    }
    write(daemon, peer, "added", 201, None, class)
}

fn put<B: Backend>(
    daemon: &mut Daemon<B>,
    peer: Peer,
    name: &str,
    settings: &Map<String, Value>,
) -> Answered {
    let class = class_with(&Class::new(name), settings)?;
    same_name(name, &class)?;
    match position(daemon, name) {
        Some(at) => write(daemon, peer, "replaced", 200, Some(at), class),
        None => write(daemon, peer, "added", 201, None, class),
    }
}

fn change<B: Backend>(
    daemon: &mut Daemon<B>,
    peer: Peer,
    name: &str,
    settings: &Map<String, Value>,
) -> Answered {
    let at = existing(daemon, name)?;
    let class = class_with(&daemon.session.classes()[at], settings)?;
    same_name(name, &class)?;
    write(daemon, peer, "changed", 200, Some(at), class)
}

fn remove<B: Backend>(daemon: &mut Daemon<B>, peer: Peer, name: &str) -> Answered {
    let at = existing(daemon, name)?;
    let mut classes = daemon.session.classes().to_vec();
    may_write(daemon, peer, &classes.remove(at))?;
    daemon.session.replace_classes(classes).map_err(internal)?;
    tracing::info!("class {name:?} removed by {peer}");
    ok(json!({ "done": format!("class {name:?} removed") }))
}

/// Puts a class in force, new or in place of another.
fn write<B: Backend>(
    daemon: &mut Daemon<B>,
    peer: Peer,
    done: &str,
    status: u16,
    in_place_of: Option<usize>,
    class: Class,
) -> Answered {
    check_guarded(&class).map_err(|failure| (BAD_REQUEST, failure))?;
    let mut classes = daemon.session.classes().to_vec();
    // Neither another's class nor one that becomes another's.
    may_write(daemon, peer, &class)?;
    match in_place_of {
        Some(at) => {
            may_write(daemon, peer, &classes[at])?;
            classes[at] = class.clone();
        }
        None => classes.push(class.clone()),
    }
    daemon
        .session
        .replace_classes(classes)
        .map_err(|failure| match failure.code {
            Code::Usage => (CONFLICT, failure),
            _ => internal(failure),
        })?;
    let name = &class.name;
    tracing::info!("class {name:?} {done} by {peer}: {}", in_words(&class));
    let Reply::Json(_, report) = self::class(daemon, name)? else {
        unreachable!("a class is answered as JSON");
    };
    Ok(Reply::Json(status, report))
}

fn position<B: Backend>(daemon: &Daemon<B>, name: &str) -> Option<usize> {
    daemon
        .session
        .classes()
        .iter()
        .position(|class| class.name == name)
}

fn existing<B: Backend>(daemon: &Daemon<B>, name: &str) -> Result<usize, Refusal> {
    if name == OTHER {
        return Err((BAD_REQUEST, other_has_no_settings()));
    }
    position(daemon, name).ok_or_else(|| {
        let classes = daemon.session.classes().iter();
        let names: Vec<&str> = classes.map(|class| class.name.as_str()).collect();
        unknown("class", CLASSES, name, &names)
    })
}

fn same_name(name: &str, class: &Class) -> Result<(), Refusal> {
    if class.name == name {
        return Ok(());
    }
    let message = format!("the path says {name:?} and the body {:?}", class.name);
    let hint = "leave the key name out; a class cannot be renamed";
    Err((BAD_REQUEST, Failure::usage(message, hint)))
}

fn may_write<B: Backend>(daemon: &Daemon<B>, peer: Peer, class: &Class) -> Result<(), Refusal> {
    let owners = access::owners();
    let users = match &class.listener {
        Some(name) => {
            let sockets = daemon.session.sockets_of(name).map_err(internal)?;
            access::users_of(&sockets, &owners)
        }
        None => BTreeSet::new(),
    };
    let own = nix::unistd::geteuid().as_raw();
    let may = access::check(peer, own, class.listener.as_deref(), &users);
    may.map_err(|failure| (FORBIDDEN, failure))
}

/// A class with these settings changed.
fn class_with(class: &Class, settings: &Map<String, Value>) -> Result<Class, Refusal> {
    let given: Vec<(&str, Given)> = settings
        .iter()
        .map(|(key, value)| (key.as_str(), given(value)))
        .collect();
    weir_config::change(class, given.iter().map(|(key, given)| (*key, given))).map_err(|fault| {
        let name = settings.get("name").and_then(Value::as_str);
        let object = match name.unwrap_or(&class.name) {
            "" => "class".to_owned(),
            name => format!("class {name:?}"),
        };
        (BAD_REQUEST, Failure::fault(Code::Usage, object, fault))
    })
}

/// A value of JSON as the config file would have it; null is the word none.
fn given(value: &Value) -> Given {
    match value {
        Value::Null => Given::Text("none".to_owned()),
        Value::Bool(on) => Given::Flag(*on),
        Value::Number(number) => number
            .as_f64()
            .map_or(Given::Other("a number out of range"), Given::Number),
        Value::String(text) => Given::Text(text.clone()),
        Value::Array(items) => {
            let texts: Option<Vec<String>> = items
                .iter()
                .map(|item| item.as_str().map(str::to_owned))
                .collect();
            texts.map_or(
                Given::Other("a list with other things than strings"),
                Given::List,
            )
        }
        Value::Object(_) => Given::Other("an object"),
    }
}

/// The settings of a class in one line, without those that are at their defaults.
fn in_words(class: &Class) -> String {
    let blank = Class::blank();
    let words: Vec<String> = Class::keys()
        .iter()
        .filter(|key| key.name != "name" && key.show(class) != key.show(&blank))
        .map(|key| format!("{} = {}", key.name, key.show(class)))
        .collect();
    match words.is_empty() {
        true => "all at their defaults".to_owned(),
        false => words.join(", "),
    }
}
