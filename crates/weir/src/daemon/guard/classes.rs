//! Changes of the guard's classes, whoever asks for them and by whatever way.

use serde_json::Value;
use weir_api::{ClassChange, ClassDone, ClassSettings};
use weir_config::{Given, did_you_mean};
use weir_core::class::{Class, OTHER};

use crate::daemon::backend::Backend;
use crate::daemon::rights::{self, owners, users_of};
use crate::daemon::session::Session;
use crate::failure::{Code, Failure, Result};
use crate::ipc::peer::Asker;

/// Does what is asked for.
///
/// # Errors
/// Nothing has changed then.
pub fn change<B: Backend>(
    session: &mut Session<B>,
    change: &ClassChange,
    asker: Asker,
) -> Result<ClassDone> {
    let next = Next::of(session.classes(), change)?;
    // Neither another's class nor one that becomes another's.
    for class in next.after.iter().chain(&next.before) {
        rights::check_class(asker, class, |listener| {
            Ok(users_of(&session.sockets_of(listener)?, &owners()))
        })?;
    }
    session.replace_classes(next.classes)?;
    Ok(match (next.before, next.after) {
        (None, _) => ClassDone::Added,
        (Some(_), Some(_)) => ClassDone::Changed,
        (Some(_), None) => ClassDone::Removed,
    })
}

/// The classes after a change, and the one that changes before and after it.
struct Next {
    classes: Vec<Class>,
    before: Option<Class>,
    after: Option<Class>,
}

impl Next {
    fn of(classes: &[Class], change: &ClassChange) -> Result<Next> {
        let name = change.class();
        let at = classes.iter().position(|class| class.name == name);
        let existing = || at.ok_or_else(|| unknown(classes, name));
        let after = match change {
            ClassChange::Add { .. } if at.is_some() => {
                let message = format!("there is a class {name:?} already");
                let hint = "`weir class set` (PATCH /v1/classes/NAME) changes it";
                return Err(Failure::conflict(message, hint));
            }
            ClassChange::Add { keys, .. } | ClassChange::Put { keys, .. } => Some(new(name, keys)?),
            ClassChange::Set { keys, .. } => Some(changed(&classes[existing()?], keys)?),
            ClassChange::Remove { .. } => existing().map(|_| None)?,
        };
        let mut next = classes.to_vec();
        let place = at.unwrap_or(next.len())..at.map_or(next.len(), |at| at + 1);
        let before = next.splice(place, after.clone()).next();
        Ok(Next {
            classes: next,
            before,
            after,
        })
    }
}

fn unknown(classes: &[Class], name: &str) -> Failure {
    if name == OTHER {
        let message = "\"other\" is the class of the connections that no rule fits";
        let hint = "it has no settings; a class without from, to and ports takes its place";
        return Failure::usage(message, hint);
    }
    let names: Vec<&str> = classes.iter().map(|class| class.name.as_str()).collect();
    let hint = match did_you_mean(name, &names) {
        Some(meant) => format!("did you mean {meant:?}?"),
        None => "`weir class list` (GET /v1/classes) names them".to_owned(),
    };
    Failure::unknown(format!("no class is named {name:?}"), hint)
}

/// A class with these keys, and the defaults of the others.
fn new(name: &str, keys: &ClassSettings) -> Result<Class> {
    let named = Given::Text(name.to_owned());
    let named = weir_config::change(&Class::new(""), [("name", &named)]);
    changed(&named.map_err(|fault| fault_of(name, fault))?, keys)
}

/// The class with these keys changed. It keeps its name.
fn changed(class: &Class, keys: &ClassSettings) -> Result<Class> {
    let given = keys.keys().iter();
    let given: Vec<(&str, Given)> = given
        .map(|(key, value)| (&**key, given_as(value)))
        .collect();
    let changed = weir_config::change(class, given.iter().map(|(key, given)| (*key, given)));
    let changed = changed.map_err(|fault| fault_of(&class.name, fault))?;
    if changed.name != class.name {
        let message = format!("class {:?} cannot become {:?}", class.name, changed.name);
        let hint = "leave the key name out; a class cannot be renamed";
        return Err(Failure::usage(message, hint));
    }
    Ok(changed)
}

fn fault_of(name: &str, fault: weir_config::Fault) -> Failure {
    Failure::fault(Code::Usage, format_args!("class {name:?}"), fault)
}

/// A value of JSON as the config file would have it; null is the word none.
fn given_as(value: &Value) -> Given {
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

#[cfg(test)]
mod tests {
    use weir_core::listener::{ListenAddress, Listener};

    use super::*;
    use crate::daemon::backend::fake::{Fake, NORMAL};
    use crate::host::links::fake::link;
    use crate::ipc::peer::Peer;

    const CONTROL: Asker = Asker::Control(Peer::UNKNOWN);

    /// A guard of port 80 with a class of its own and one of a proxy.
    fn guard(fake: &Fake) -> Session<Fake> {
        let listeners = vec![Listener::new("web", ListenAddress { ip: None, port: 80 })];
        let gold = ClassSettings::new().from("10.1.0.0/16");
        let of_proxy = Class {
            proxy: Some("edge".into()),
            ..Class::new("theirs")
        };
        let classes = vec![new("gold", &gold).unwrap(), of_proxy];
        Session::start(
            fake.clone(),
            NORMAL,
            listeners,
            classes,
            vec![link(1, "lo")],
        )
        .unwrap()
    }

    fn add(name: &str, keys: ClassSettings) -> ClassChange {
        let name = name.to_owned();
        ClassChange::Add { name, keys }
    }

    fn put(name: &str, keys: ClassSettings) -> ClassChange {
        let name = name.to_owned();
        ClassChange::Put { name, keys }
    }

    fn set(name: &str, keys: ClassSettings) -> ClassChange {
        let name = name.to_owned();
        ClassChange::Set { name, keys }
    }

    fn remove(name: &str) -> ClassChange {
        let name = name.to_owned();
        ClassChange::Remove { name }
    }

    fn names(fake: &Fake) -> Vec<String> {
        let state = fake.0.borrow();
        state.classes.iter().map(|one| one.name.clone()).collect()
    }

    #[test]
    fn a_class_is_changed_by_its_name() {
        let fake = Fake::default();
        let mut session = guard(&fake);
        let none = ClassSettings::new;
        assert_eq!(
            names(&fake),
            ["gold"],
            "that of the proxy is not the guard's"
        );
        for (asked, done, now) in [
            (
                add("tin", none().from("10.2.0.0/16").rate(5.0)),
                ClassDone::Added,
                &["gold", "tin"][..],
            ),
            (
                set("gold", none().rate(9.0)),
                ClassDone::Changed,
                &["gold", "tin"],
            ),
            (
                put("new", none().with("from", "10.3.0.0/16").named("new")),
                ClassDone::Added,
                &["gold", "tin", "new"],
            ),
            (
                put("tin", none().from("10.4.0.0/16")),
                ClassDone::Changed,
                &["gold", "tin", "new"],
            ),
            (remove("new"), ClassDone::Removed, &["gold", "tin"]),
        ] {
            assert_eq!(change(&mut session, &asked, CONTROL), Ok(done), "{asked}");
            assert_eq!(names(&fake), now, "{asked}");
        }
        let [gold, tin] = &fake.0.borrow().classes[..] else {
            panic!("there are two");
        };
        assert_eq!(
            (gold.rate, gold.from.len()),
            (Some(9.0), 1),
            "it keeps what is not named"
        );
        assert_eq!(tin.rate, None, "it has the default again");
    }

    #[test]
    fn what_cannot_be_says_why_and_changes_nothing() {
        let fake = Fake::default();
        let mut session = guard(&fake);
        let none = ClassSettings::new;
        let server = Asker::Api(Peer {
            uid: 4_000_000_033,
            pid: None,
        });
        for (asker, asked, code) in [
            (
                CONTROL,
                add("theirs", none().with("proxy", "edge")),
                Code::Usage,
            ),
            (
                CONTROL,
                set("gold", none().with("proxy", "edge")),
                Code::Usage,
            ),
            (CONTROL, set("gold", none().with("rats", 1)), Code::Usage),
            (CONTROL, set("gold", none().named("tin")), Code::Usage),
            (CONTROL, set("other", none().rate(1.0)), Code::Usage),
            (CONTROL, remove("other"), Code::Usage),
            (CONTROL, add("other", none()), Code::Usage),
            (CONTROL, put("other", none()), Code::Usage),
            (CONTROL, put("\u{1b}[31m", none()), Code::Usage),
            (CONTROL, add("lost", none().listener("wbe")), Code::Usage),
            (CONTROL, add("gold", none()), Code::Conflict),
            (
                CONTROL,
                add("tied", none().with("to_port", 80)),
                Code::Conflict,
            ),
            (CONTROL, set("gld", none()), Code::Unknown),
            (CONTROL, remove("tin"), Code::Unknown),
            (server, set("gold", none()), Code::Denied),
            (server, remove("gold"), Code::Denied),
        ] {
            let failure = change(&mut session, &asked, asker).unwrap_err();
            assert_eq!(failure.code, code, "{asked}: {failure}");
            assert!(!failure.causes[0].hint.is_empty(), "{asked}: {failure}");
            assert_eq!(names(&fake), ["gold"], "{asked}");
        }
    }
}
