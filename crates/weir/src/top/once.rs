//! `weir top --once`: plain text for scripts and mails, with the rates of one interval.

use weir_api::TopSource;
use weir_core::units::about_duration;

use super::columns::{self, Column};
use super::data::Data;
use super::proxy_rows;
use super::rows::{self, ListenerRow, Sort, Wish};
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
    let wish = Wish {
        filter,
        sort,
        reverse: false,
        unfolded: None,
        most: WORKLOADS,
    };
    let listeners = rows::listeners(status, &pair, wish);
    if !listeners.is_empty() {
        text += &format!(
            "\n{}{}\n{}",
            listener_table(&listeners),
            more_workloads(&listeners),
            verdict_table(&listeners, &pair, sort)
        );
    }
    let classes = rows::classes(status, &pair, filter, sort, false);
    if !classes.is_empty() {
        text += &format!("\n{}", plain(&columns::classes(), &classes));
    }
    let sources = data.sources();
    let sources = sources.map_or(Vec::new(), |top| rows::sources(top, filter, sort, false));
    if !sources.is_empty() {
        text += &format!("\n{}", source_table(&sources));
    }
    if let Some(controller) = &status.controller {
        text += &format!("\n{}", controller::text(controller, controller::RECENT));
    }
    let proxies = proxy_rows::proxies(status, &pair, filter, sort, false);
    if !proxies.is_empty() {
        text += &format!("\n{}", plain(&columns::proxies(), &proxies));
    }
    text
}

/// Sources that a text names: those below them differ little.
const SOURCES: usize = 10;

fn source_table(sources: &[&TopSource]) -> String {
    let shown = &sources[..sources.len().min(SOURCES)];
    let more = match sources.len() - shown.len() {
        0 => String::new(),
        more => format!("and {more} more, each with less; `weir why --top` shows them\n"),
    };
    plain(&columns::sources(), shown) + &more
}

/// Workloads of a listener that a text names: the worst.
const WORKLOADS: usize = 10;

fn more_workloads(listeners: &[ListenerRow<'_>]) -> String {
    let itself = listeners.iter().filter(|row| !row.is_workload());
    let more = itself.filter_map(|row| {
        let more = row.workloads().len() - row.unfolded;
        let name = row.name();
        (more > 0).then(|| format!("and {more} more of {name}; `weir status --json` has all\n"))
    });
    more.collect()
}

/// The place of a column that only QUIC listeners need.
const BUFFER: usize = 5;

fn listener_table(listeners: &[ListenerRow<'_>]) -> String {
    use Align::{Left, Right};
    let has_quic = listeners.iter().any(ListenerRow::is_quic);
    let mut head = vec![
        ("listener", Left),
        ("address", Left),
        ("mode", Left),
        ("queue", Right),
        ("half-open", Right),
        ("buffer", Right),
        ("wait", Right),
        ("target", Right),
        ("admitted/s", Right),
        ("refused/s", Right),
        ("refused", Right),
    ];
    let row = |row: &ListenerRow<'_>| {
        let flow = row.flow;
        let mut cells = vec![
            match row.is_workload() {
                false => row.label(),
                true => row.title(),
            },
            row.place(),
            row.mode.to_owned(),
            row.queue(),
            row.half_open(),
            row.buffer(),
            row.wait(),
            rows::time(row.target_us),
            rows::rate(flow.map(|flow| flow.admitted)),
            rows::rate(flow.map(|flow| flow.refused)),
            flow.map_or("-".to_owned(), |flow| flow.share()),
        ];
        if !has_quic {
            cells.remove(BUFFER);
        }
        cells
    };
    if !has_quic {
        head.remove(BUFFER);
    }
    table(&head, &listeners.iter().map(row).collect::<Vec<_>>())
}

fn verdict_table(
    listeners: &[ListenerRow<'_>],
    pair: &super::rates::Pair<'_>,
    sort: Sort,
) -> String {
    let columns = columns::verdicts();
    let mut head = vec![("listener", Align::Left)];
    head.extend(columns.iter().map(|column| (column.head, column.align)));
    let of_one = |row: &ListenerRow<'_>| {
        let verdicts = rows::verdicts(row, pair, sort);
        let name = row.label();
        let line = |verdict| {
            [name.clone()]
                .into_iter()
                .chain(cells(&columns, verdict))
                .collect()
        };
        verdicts.iter().map(line).collect::<Vec<Vec<String>>>()
    };
    let itself = listeners.iter().filter(|row| !row.is_workload());
    let rows: Vec<Vec<String>> = itself.flat_map(of_one).collect();
    match rows.is_empty() {
        true => "no verdict yet\n".to_owned(),
        false => table(&head, &rows),
    }
}

fn cells<R>(columns: &[Column<R>], row: &R) -> Vec<String> {
    columns.iter().map(|column| (column.text)(row)).collect()
}

fn plain<R>(columns: &[Column<R>], rows: &[R]) -> String {
    let head = columns.iter().map(|column| (column.head, column.align));
    let rows = rows.iter().map(|row| cells(columns, row));
    table(&head.collect::<Vec<_>>(), &rows.collect::<Vec<_>>())
}
