//! Destinations as people read them.

use weir_api::Destination;

use crate::show::table::{Align, table};

/// A table of all destinations; empty if there is none.
pub fn destination_table(destinations: &[Destination]) -> String {
    use Align::{Left, Right};
    let head = [
        ("destination", Left),
        ("to", Left),
        ("timewait", Left),
        ("held", Right),
        ("swapped", Right),
        ("reused", Right),
        ("refused", Right),
        ("fallback", Right),
        ("bytes", Right),
    ];
    let rows: Vec<Vec<String>> = destinations.iter().map(row).collect();
    match rows.is_empty() {
        true => String::new(),
        false => table(&head, &rows),
    }
}

fn row(one: &Destination) -> Vec<String> {
    let timewait = &one.timewait;
    let figures = [
        timewait.held,
        timewait.swapped,
        timewait.reused,
        timewait.refused,
        timewait.fallback,
        timewait.bytes,
    ];
    [one.name.clone(), place(one), one.mode.clone()]
        .into_iter()
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
        assert_eq!(rows[1][8..], ["3", "7", "0", "0", "0", "384"], "{text}");
        assert_eq!(rows[2][1], "any", "{text}");
        assert_eq!(destination_table(&[]), "");
    }
}
