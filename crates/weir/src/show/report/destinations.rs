//! Destinations as people read them.

use weir_api::{Destination, Listener, TimeWait};

use crate::show::table::{Align, table};

/// A table of all destinations; empty if there is none.
pub fn destination_table(destinations: &[Destination]) -> String {
    let row = |one: &Destination| {
        let what = [one.name.clone(), place(one), one.mode.clone()];
        row(what, &one.timewait)
    };
    figures_table(
        ["destination", "to", "timewait"],
        destinations.iter().map(row),
    )
}

/// A table of the listeners that have TIME-WAIT negotiated; empty if there is none.
pub fn listener_timewait_table(listeners: &[Listener]) -> String {
    let holder = |one: &Listener| match one.settings.get("holder") {
        Some(holder) => holder.as_str().unwrap_or_default().to_owned(),
        None => String::new(),
    };
    let rows = listeners
        .iter()
        .filter(|one| !["", "off"].contains(&one.timewait_mode.as_str()))
        .map(|one| {
            let what = [one.name.clone(), one.timewait_mode.clone(), holder(one)];
            row(what, &one.timewait)
        });
    figures_table(["listener", "timewait", "holder"], rows)
}

/// A table of the connections that negotiate only because their application asked.
pub fn asked_table(asked: &TimeWait) -> String {
    let what = ["per_socket", "any", "negotiate"].map(str::to_owned);
    let rows = [row(what, asked)];
    figures_table(["asked by", "to", "timewait"], rows.into_iter())
}

fn figures_table(what: [&str; 3], rows: impl Iterator<Item = Vec<String>>) -> String {
    let figures = [
        "held",
        "avoided",
        "held_by_peer",
        "swapped",
        "reused",
        "refused",
        "fallback",
        "bytes",
    ];
    let head: Vec<(&str, Align)> = (what.into_iter().map(|name| (name, Align::Left)))
        .chain(figures.map(|name| (name, Align::Right)))
        .collect();
    let rows: Vec<Vec<String>> = rows.collect();
    match rows.is_empty() {
        true => String::new(),
        false => table(&head, &rows),
    }
}

fn row(what: [String; 3], timewait: &TimeWait) -> Vec<String> {
    let figures = [
        timewait.held,
        timewait.avoided,
        timewait.held_by_peer,
        timewait.swapped,
        timewait.reused,
        timewait.refused,
        timewait.fallback,
        timewait.bytes,
    ];
    what.into_iter()
        .chain(figures.map(|figure| figure.to_string()))
        .collect()
}

/// `10.0.0.0/8 and 2 more, port 80`
fn place(one: &Destination) -> String {
    let to = one.settings.get("to").and_then(|to| to.as_array());
    let to: Vec<&str> = to
        .into_iter()
        .flatten()
        .filter_map(|to| to.as_str())
        .collect();
    let to = match to.as_slice() {
        [] => "any".to_owned(),
        [one] => (*one).to_owned(),
        [first, more @ ..] => format!("{first} and {} more", more.len()),
    };
    match one.settings.get("to_port").and_then(|port| port.as_u64()) {
        Some(port) => format!("{to} port {port}"),
        None => to,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use weir_api::TimeWait;

    use super::*;

    #[test]
    fn a_destination_is_shown_with_its_place_and_its_figures() {
        let destination = |to, port| Destination {
            name: "backends".into(),
            mode: "client-rst".into(),
            timewait: TimeWait {
                held: 3,
                swapped: 7,
                bytes: 384,
                ..TimeWait::default()
            },
            settings: [("to".to_owned(), to), ("to_port".to_owned(), port)].into(),
        };
        let text = destination_table(&[
            destination(json!(["10.0.0.0/8", "::/0"]), json!(80)),
            destination(json!([]), json!(null)),
        ]);
        let rows: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        let first = [
            "backends",
            "10.0.0.0/8",
            "and",
            "1",
            "more",
            "port",
            "80",
            "client-rst",
        ];
        assert_eq!(rows[1][..8], first, "{text}");
        let figures = ["3", "0", "0", "7", "0", "0", "0", "384"];
        assert_eq!(rows[1][8..], figures, "{text}");
        assert_eq!(rows[2][1], "any", "{text}");
        assert_eq!(destination_table(&[]), "");
    }

    #[test]
    fn a_listener_is_shown_if_it_negotiates() {
        let listener = |name: &str, mode: &str| Listener {
            name: name.into(),
            timewait_mode: mode.into(),
            timewait: TimeWait {
                avoided: 5,
                held_by_peer: 6,
                ..TimeWait::default()
            },
            settings: [("holder".to_owned(), json!("client"))].into(),
            ..Listener::default()
        };
        let text = listener_timewait_table(&[listener("web", "negotiate"), listener("ssh", "off")]);
        let last: Vec<&str> = text.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(last[..6], ["web", "negotiate", "client", "0", "5", "6"]);
        assert_eq!(text.lines().count(), 2, "{text}");
    }
}
