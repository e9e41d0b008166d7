//! `weir top --once`: plain text for scripts and mails, with the rates of one interval.

use weir_api::TopSource;
use weir_core::units::about_duration;

use super::data::Data;
use super::rows::{self, ClassRow, ListenerRow, ProxyRow, Sort};
use crate::show::describe::percent;
use crate::show::report::controller;
use crate::show::table::{Align, table};

/// How rows are chosen and ordered.
#[derive(Debug, Clone, Copy)]
pub struct Order<'a> {
    /// What they are sorted by.
    pub sort: Sort,
    /// What they have in their names.
    pub filter: &'a str,
}

/// All of it; each table has its columns' names above it.
pub fn text(data: &Data, order: Order<'_>) -> String {
    let Some((pair, status)) = data.pair().zip(data.status()) else {
        return String::new();
    };
    let Order { sort, filter } = order;
    let time = data
        .now()
        .map_or(String::new(), |report| rows::clock(report.unix_ms));
    let over = pair.time().map_or(String::new(), |time| {
        format!(", rates over {}", about_duration(time))
    });
    let mut text = format!("weir top at {time} UTC{over}\n");
    for note in rows::notes(status) {
        text += &format!("note: {note}\n");
    }
    let listeners = rows::listeners(status, &pair, filter, sort, false);
    if !listeners.is_empty() {
        text += &format!(
            "\n{}\n{}",
            listener_table(&listeners),
            verdict_table(&listeners, &pair, sort)
        );
    }
    let classes = rows::classes(status, &pair, filter, sort, false);
    if !classes.is_empty() {
        text += &format!("\n{}", class_table(&classes));
    }
    let sources = data.sources();
    let sources = sources.map_or(Vec::new(), |top| rows::sources(top, filter, sort, false));
    if !sources.is_empty() {
        text += &format!("\n{}", source_table(&sources));
    }
    if let Some(controller) = &status.controller {
        text += &format!("\n{}", controller::text(controller, controller::RECENT));
    }
    let proxies = rows::proxies(status, &pair, filter, sort, false);
    if !proxies.is_empty() {
        text += &format!("\n{}", proxy_table(&proxies));
    }
    text
}

fn listener_table(listeners: &[ListenerRow<'_>]) -> String {
    use Align::{Left, Right};
    let head = [
        ("listener", Left),
        ("address", Left),
        ("mode", Left),
        ("queue", Right),
        ("half-open", Right),
        ("wait", Right),
        ("target", Right),
        ("admitted/s", Right),
        ("refused/s", Right),
        ("refused", Right),
    ];
    let row = |row: &ListenerRow<'_>| {
        let listener = row.listener;
        let flow = row.flow;
        vec![
            listener.name.clone(),
            listener.address.clone(),
            row.mode.to_owned(),
            row.queue(),
            listener.half_open.to_string(),
            rows::time(listener.wait_us),
            rows::time(row.target_us),
            rows::rate(flow.map(|flow| flow.admitted)),
            rows::rate(flow.map(|flow| flow.refused)),
            flow.map_or("-".to_owned(), |flow| flow.share()),
        ]
    };
    table(&head, &listeners.iter().map(row).collect::<Vec<_>>())
}

fn verdict_table(
    listeners: &[ListenerRow<'_>],
    pair: &super::rates::Pair<'_>,
    sort: Sort,
) -> String {
    use Align::{Left, Right};
    let head = [
        ("listener", Left),
        ("verdict", Left),
        ("count", Right),
        ("count/s", Right),
    ];
    let of_one = |row: &ListenerRow<'_>| {
        let verdicts = rows::verdicts(row.listener, pair, sort).into_iter();
        let name = row.listener.name.clone();
        let cells = verdicts.map(move |verdict| {
            vec![
                name.clone(),
                verdict.name.to_owned(),
                verdict.count.to_string(),
                rows::rate(verdict.rate),
            ]
        });
        cells.collect::<Vec<_>>()
    };
    let rows: Vec<Vec<String>> = listeners.iter().flat_map(of_one).collect();
    match rows.is_empty() {
        true => "no verdict yet\n".to_owned(),
        false => table(&head, &rows),
    }
}

fn class_table(classes: &[ClassRow<'_>]) -> String {
    use Align::{Left, Right};
    let head = [
        ("class", Left),
        ("listener", Left),
        ("priority", Right),
        ("rate", Right),
        ("held at", Right),
        ("waiting", Right),
        ("admitted/s", Right),
        ("refused/s", Right),
    ];
    let row = |row: &ClassRow<'_>| {
        let (class, flow) = (row.class, row.flow);
        vec![
            class.name.clone(),
            row.listener.unwrap_or("all").to_owned(),
            class.priority.to_string(),
            rows::rate(class.rate),
            rows::rate(class.controlled_rate),
            class.waiting.map_or("-".to_owned(), |n| n.to_string()),
            rows::rate(flow.map(|flow| flow.admitted)),
            rows::rate(flow.map(|flow| flow.refused)),
        ]
    };
    table(&head, &classes.iter().map(row).collect::<Vec<_>>())
}

fn source_table(sources: &[&TopSource]) -> String {
    use Align::{Left, Right};
    let head = [
        ("source", Left),
        ("mean/s", Right),
        ("share", Right),
        ("listener", Left),
        ("class", Left),
        ("last verdict", Left),
    ];
    let row = |source: &&TopSource| {
        vec![
            source.source.clone(),
            rows::rate(Some(source.per_second)),
            percent(source.share),
            source.listener.clone(),
            source.class.clone().unwrap_or_else(|| "-".to_owned()),
            source.verdict.clone(),
        ]
    };
    table(&head, &sources.iter().map(row).collect::<Vec<_>>())
}

fn proxy_table(proxies: &[ProxyRow<'_>]) -> String {
    use Align::{Left, Right};
    let head = [
        ("proxy", Left),
        ("state", Left),
        ("clients", Right),
        ("waiting", Right),
        ("requests/s", Right),
        ("failed/s", Right),
        ("in_use", Right),
        ("idle", Right),
        ("p99", Right),
    ];
    let row = |row: &ProxyRow<'_>| {
        let number = |n: Option<u64>| n.map_or("-".to_owned(), |n| n.to_string());
        let indent = if row.backend.is_some() { "  " } else { "" };
        vec![
            format!("{indent}{}", row.name),
            row.state.to_owned(),
            number(row.clients),
            number(row.waiting),
            rows::rate(row.rate),
            rows::rate(row.failures),
            row.connections.in_use.to_string(),
            row.connections.idle.to_string(),
            rows::time(row.p99_us),
        ]
    };
    table(&head, &proxies.iter().map(row).collect::<Vec<_>>())
}
