//! Changes of the guard's classes: over the API, by `weir class`, and what `weir exec` is told of them. Every write is
//! logged with the user that asked for it.

use std::collections::BTreeSet;

use serde_json::{Map, Value};
use weir_config::{self, Given, Table};
use weir_core::class::{Class, OTHER};

use crate::daemon::answer::{BAD_REQUEST, CLASSES, CONFLICT, FORBIDDEN, internal, unknown};
use crate::daemon::backend::Backend;
use crate::daemon::service::{Changed, Refusal};
use crate::daemon::session::{Session, check_guarded, other_has_no_settings};
use crate::failure::{Code, Failure};
use crate::ipc::api;
use crate::ipc::call::Change;
use crate::ipc::control::{Answer, ClassChange, ExecReport};
use crate::ipc::peer::Peer;
use crate::show::settings::settings;

/// Does what a client of the API asks for.
pub fn change<B: Backend>(
    session: &mut Session<B>,
    change: &Change,
    peer: Peer,
) -> Result<Changed, Refusal> {
    match change {
        Change::Add(settings) => add(session, peer, settings),
        Change::Put(name, settings) => put(session, peer, name, settings),
        Change::Set(name, settings) => set(session, peer, name, settings),
        Change::Remove(name) => remove(session, peer, name),
    }
}

/// Does what `weir class` asks for. `config` is the file in which the change does not stand.
pub fn command<B: Backend>(
    session: &mut Session<B>,
    change: &ClassChange,
    config: Option<String>,
    peer: Peer,
) -> Answer {
    let changed = match change {
        ClassChange::List => Ok(()),
        ClassChange::Add { name, keys } => session.add_class(name, keys),
        ClassChange::Set { name, keys } => session.set_class(name, keys),
        ClassChange::Remove { name } => session.remove_class(name),
    };
    match &changed {
        _ if *change == ClassChange::List => {}
        Ok(()) => tracing::info!("{change}: done by {peer}"),
        Err(failure) => tracing::warn!("{change}: refused to {peer}: {failure}"),
    }
    let classes = changed.and_then(|()| session.class_reports());
    classes.map_or_else(Answer::Error, |classes| Answer::Classes { config, classes })
}

/// Notes for which sockets `weir exec` answers accept(); answers with the classes in force.
pub fn exec<B: Backend>(session: &mut Session<B>, report: ExecReport) -> Answer {
    let classes = session.classes().iter().map(settings).collect();
    match session.exec_told(report) {
        Ok(()) => Answer::Exec { classes },
        Err(failure) => Answer::Error(failure),
    }
}

fn add<B: Backend>(
    session: &mut Session<B>,
    peer: Peer,
    settings: &Map<String, Value>,
) -> Result<Changed, Refusal> {
    let class = class_with(&Class::new(""), settings)?;
    if class.name.is_empty() {
        let failure = Failure::usage("the class has no name", "add it: \"name\": \"gold\"");
        return Err((BAD_REQUEST, failure));
    }
    if position(session, &class.name).is_some() {
        let message = format!("there is a class {:?} already", class.name);
        let hint = "PATCH /v1/classes/NAME changes it, PUT replaces it";
        return Err((CONFLICT, Failure::usage(message, hint)));
    }
    write(session, peer, "added", None, class)
}

fn put<B: Backend>(
    session: &mut Session<B>,
    peer: Peer,
    name: &str,
    settings: &Map<String, Value>,
) -> Result<Changed, Refusal> {
    let class = class_with(&Class::new(name), settings)?;
    same_name(name, &class)?;
    match position(session, name) {
        Some(at) => write(session, peer, "replaced", Some(at), class),
        None => {
            // The name of the path: terminals and metrics will show it.
            weir_config::parse_name(name).map_err(|fault| {
                let object = format!("class {name:?}");
                (BAD_REQUEST, Failure::fault(Code::Usage, object, fault))
            })?;
            write(session, peer, "added", None, class)
        }
    }
}

fn set<B: Backend>(
    session: &mut Session<B>,
    peer: Peer,
    name: &str,
    settings: &Map<String, Value>,
) -> Result<Changed, Refusal> {
    let at = existing(session, name)?;
    let class = class_with(&session.classes()[at], settings)?;
    same_name(name, &class)?;
    write(session, peer, "changed", Some(at), class)
}

fn remove<B: Backend>(
    session: &mut Session<B>,
    peer: Peer,
    name: &str,
) -> Result<Changed, Refusal> {
    let at = existing(session, name)?;
    let mut classes = session.classes().to_vec();
    may_write(session, peer, &classes.remove(at))?;
    session.replace_classes(classes).map_err(internal)?;
    tracing::info!("class {name:?} removed by {peer}");
    Ok(Changed::Removed(name.to_owned()))
}

/// Puts a class in force, new or in place of another.
fn write<B: Backend>(
    session: &mut Session<B>,
    peer: Peer,
    done: &str,
    in_place_of: Option<usize>,
    class: Class,
) -> Result<Changed, Refusal> {
    check_guarded(&class).map_err(|failure| (BAD_REQUEST, failure))?;
    let mut classes = session.classes().to_vec();
    // Neither another's class nor one that becomes another's.
    may_write(session, peer, &class)?;
    match in_place_of {
        Some(at) => {
            may_write(session, peer, &classes[at])?;
            classes[at] = class.clone();
        }
        None => classes.push(class.clone()),
    }
    session
        .replace_classes(classes)
        .map_err(|failure| match failure.code {
            Code::Usage => (CONFLICT, failure),
            _ => internal(failure),
        })?;
    let name = &class.name;
    tracing::info!("class {name:?} {done} by {peer}: {}", in_words(&class));
    Ok(match in_place_of {
        Some(_) => Changed::Modified(class.name),
        None => Changed::Added(class.name),
    })
}

fn position<B: Backend>(session: &Session<B>, name: &str) -> Option<usize> {
    session
        .classes()
        .iter()
        .position(|class| class.name == name)
}

fn existing<B: Backend>(session: &Session<B>, name: &str) -> Result<usize, Refusal> {
    if name == OTHER {
        return Err((BAD_REQUEST, other_has_no_settings()));
    }
    position(session, name).ok_or_else(|| {
        let classes = session.classes().iter();
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

fn may_write<B: Backend>(session: &Session<B>, peer: Peer, class: &Class) -> Result<(), Refusal> {
    let owners = api::owners();
    let users = match &class.listener {
        Some(name) => {
            let sockets = session.sockets_of(name).map_err(internal)?;
            api::users_of(&sockets, &owners)
        }
        None => BTreeSet::new(),
    };
    let own = nix::unistd::geteuid().as_raw();
    let may = api::check(peer, own, class.listener.as_deref(), &users);
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
