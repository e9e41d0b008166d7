//! What a guard has, and where: the first line of a status.

use std::collections::BTreeSet;

use weir_api::{Listener, Status};

use crate::show::describe;

/// `2 listeners`, `1 listener and 1 QUIC listener`.
pub fn listeners(status: &Status) -> String {
    let tcp = describe::count(status.listeners.len(), "listener");
    match status.quic.len() {
        0 => tcp,
        n => format!("{tcp} and {}", describe::count(n, "QUIC listener")),
    }
}

/// Those of weir's own network namespace; all that it guards may be in others.
pub fn on_interfaces(status: &Status) -> String {
    let names = status.interfaces.iter().map(|one| one.name.as_str());
    let is_elsewhere = |listener: &Listener| {
        let place = listener.settings.get("where");
        place.is_some_and(|place| place != "here")
    };
    match status.interfaces.is_empty() && status.listeners.iter().all(is_elsewhere) {
        true => " in other network namespaces".to_owned(),
        false => format!(" on {}", describe::interfaces(names)),
    }
}

/// What a guard without listeners has.
pub fn without_listeners(status: &Status) -> String {
    // Each direction has a shape.
    let shaped: BTreeSet<_> = status.shapes.iter().map(|shape| &shape.dev).collect();
    let counts = [
        (status.quic.len(), "QUIC listener"),
        (status.destinations.len(), "destination"),
        (shaped.len(), "shaped interface"),
    ];
    let there = counts.iter().filter(|(n, _)| *n > 0);
    let words: Vec<_> = there.map(|(n, what)| describe::count(*n, what)).collect();
    match words.is_empty() {
        true => "nothing in force".to_owned(),
        false => describe::list(&words),
    }
}
