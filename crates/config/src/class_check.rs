//! What is wrong with classes together, and with the listeners and proxies that they name.
//!
//! The rules of all classes must decide about each connection, so ties are faults; and they must fit into the
//! guard's tables.

use crate::error::Fault;
use crate::suggest::did_you_mean;
use weir_core::class::{Class, MAX_CLASSES, MAX_MASKS, MAX_RULES, OwnerId, Rules, Tie, TooMany};

/// Ties that one check reports; a user who has mended these checks again.
const MAX_TIES: usize = 8;

/// What is wrong, with the index of the class at which to say it and its key, if it is of one.
pub(crate) type Finding = (usize, Option<&'static str>, Fault);

/// What classes may name.
pub(crate) struct Owners<'a> {
    /// Listeners and QUIC listeners: names and ports.
    pub listeners: &'a [(&'a str, u16)],
    pub proxies: &'a [&'a str],
}

/// Unknown names, rules that tie, and more than the guard's tables hold.
pub(crate) fn check(classes: &[Class], owners: &Owners<'_>) -> Vec<Finding> {
    let mut found = unknown(classes, owners);
    let rules = Rules::compile(classes, |class| owners.id_of(class));
    for tie in rules.ties(MAX_TIES) {
        found.push((tie.later, None, tie_fault(classes, owners, &tie)));
    }
    found.extend(too_many(classes, owners));
    found
}

impl Owners<'_> {
    /// Listeners and proxies have numbers of one series: no connection is of both.
    fn id_of(&self, class: &Class) -> Option<OwnerId> {
        let number = |index: Option<usize>| index.map_or(0, |index| index as OwnerId + 1);
        if let Some(name) = &class.listener {
            return Some(number(self.listeners.iter().position(|l| l.0 == name)));
        }
        let proxy = class.proxy.as_ref()?;
        let index = self.proxies.iter().position(|name| name == proxy);
        Some(number(index.map(|index| index + self.listeners.len())))
    }
}

fn unknown(classes: &[Class], owners: &Owners<'_>) -> Vec<Finding> {
    let listeners: Vec<&str> = owners.listeners.iter().map(|l| l.0).collect();
    let mut found = Vec::new();
    for (index, class) in classes.iter().enumerate() {
        let named = [
            ("listener", &class.listener, listeners.as_slice()),
            ("proxy", &class.proxy, owners.proxies),
        ];
        for (key, wanted, names) in named {
            if let Some(wanted) = wanted.as_deref().filter(|wanted| !names.contains(wanted)) {
                found.push((index, Some(key), stranger(key, wanted, names)));
            }
        }
    }
    found
}

fn stranger(kind: &str, wanted: &str, names: &[&str]) -> Fault {
    let hint = match did_you_mean(wanted, names) {
        Some(meant) => format!("did you mean {meant:?}?"),
        None => format!("write the name of a [[{kind}]], or remove the key"),
    };
    Fault::new(format!("no {kind} is named {wanted:?}"), hint)
}

/// `10.1.0.1:40000 > 192.0.2.1:80 fits it and class "silver", and neither is the more specific`.
pub(crate) fn tie_fault(classes: &[Class], owners: &Owners<'_>, tie: &Tie) -> Fault {
    let mut to = tie.to;
    if to.port() == 0 {
        let listener = usize::from(tie.owner).checked_sub(1);
        let listener = listener.and_then(|index| owners.listeners.get(index));
        to.set_port(listener.map_or(80, |(_, port)| *port));
    }
    let earlier = &classes[tie.earlier].name;
    Fault::new(
        format!(
            "it ties with class {earlier:?}: {} > {to} fits both, and neither is the more specific",
            tie.from
        ),
        "give one of them everything that the other names, or add a class for exactly the connections that fit both",
    )
}

/// More than the guard's tables hold; proxies have no such limit.
fn too_many(classes: &[Class], owners: &Owners<'_>) -> Option<Finding> {
    let guarded = |class: &Class| {
        if class.is_guarded() {
            owners.id_of(class)
        } else {
            Some(0)
        }
    };
    let rules = Rules::compile(classes, guarded);
    let fault = too_many_fault(rules.fit_tables(0).err()?);
    Some((rules.rules().last()?.class, None, fault))
}

/// What does not fit into the guard's tables, with what to do about it.
fn too_many_fault(what: TooMany) -> Fault {
    let hint = match what {
        TooMany::Classes(_) => format!("at most {MAX_CLASSES}"),
        TooMany::Rules(_) => {
            format!("at most {MAX_RULES}: shorter lists, or shorter prefixes")
        }
        TooMany::Masks(_) => format!("at most {MAX_MASKS}: use fewer lengths of prefixes"),
    };
    Fault::new(what.to_string(), hint)
}

/// Checks the guard's classes together, and that the listeners are there that they name: these, by name and port.
///
/// # Errors
/// The first thing that is wrong, with the class's name.
pub fn check_classes(classes: &[Class], listeners: &[(&str, u16)]) -> Result<(), (String, Fault)> {
    let owners = Owners {
        listeners,
        proxies: &[],
    };
    match check(classes, &owners).into_iter().next() {
        None => Ok(()),
        Some((index, key, fault)) => {
            let key = key.map(|key| format!("{key}: ")).unwrap_or_default();
            let Fault { cause, hint } = fault;
            let fault = Fault::new(key + &cause, hint);
            Err((classes[index].name.clone(), fault))
        }
    }
}
