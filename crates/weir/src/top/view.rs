//! Draws the model.
//!
//! From top to bottom: a title; the listeners; charts of the chosen one; a pane (verdicts, classes, sources, controller,
//! proxies or notes); the keys. 80 × 24 has room for all of it, and what is larger shows more.

mod cells;
mod chart;
mod charts;
mod help;
mod panes;

use ratatui::Frame;
use ratatui::layout::{Constraint, HorizontalAlignment, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState};

use self::cells::{both_ends, heads, refused_style, right};
use super::model::{Model, Pane};
use super::rows::{self, ListenerRow};
use super::theme::Theme;

/// The smallest terminal that shows anything.
const SMALLEST: (u16, u16) = (50, 12);
/// From this width on, listeners have all columns.
const WIDE: u16 = 110;
/// Below this width, they have the most important ones.
const NARROW: u16 = 76;
/// Rows without a table and charts: title, panes' titles, keys.
const FRAME: u16 = 3;

/// Draws all of it.
pub fn draw(frame: &mut Frame<'_>, model: &Model, theme: Theme) {
    let area = frame.area();
    if area.width < SMALLEST.0 || area.height < SMALLEST.1 {
        let (columns, lines) = SMALLEST;
        let text = format!("weir top needs {columns} columns and {lines} lines");
        frame.render_widget(Paragraph::new(text), area);
        return;
    }
    let listeners = model.listeners();
    let chosen = model.chosen(&listeners);
    let (table, charts) = heights(model, &listeners, area.height);
    let [title_at, table_at, charts_at, tabs_at, pane_at, keys_at] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(table),
        Constraint::Length(charts),
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(area);
    title(frame, title_at, model, theme);
    if table > 0 {
        listener_table(frame, table_at, model, theme, &listeners, chosen);
    }
    if let Some(row) = chosen.map(|at| &listeners[at]) {
        charts::draw(frame, charts_at, model, theme, row);
    }
    tabs(frame, tabs_at, model, theme);
    let chosen = chosen.map(|at| &listeners[at]);
    panes::draw(frame, pane_at, model, theme, chosen);
    keys(frame, keys_at, model, theme, chosen);
    if model.has_help {
        help::draw(frame, area, theme);
    }
}

/// Rows of the table of listeners and of the charts.
fn heights(model: &Model, listeners: &[ListenerRow<'_>], height: u16) -> (u16, u16) {
    let has_any = model
        .data()
        .status()
        .is_some_and(|status| !status.listeners.is_empty() || !status.quic.is_empty());
    if !has_any {
        return (0, 0);
    }
    // Workloads are many, and the charts and the pane give way.
    let part = match listeners.iter().any(ListenerRow::is_workload) {
        true => 2,
        false => 3,
    };
    let most = (height.saturating_sub(12) / part).max(1);
    let table = 1 + (listeners.len() as u16).clamp(1, most);
    let charts = match listeners.len() {
        0 => 0,
        _ => charts::height(height - FRAME - table),
    };
    (table, charts)
}

fn title(frame: &mut Frame<'_>, area: Rect, model: &Model, theme: Theme) {
    let data = model.data();
    let mut left = vec![
        Span::styled("weir top ", theme.strong()),
        Span::raw(model.source.clone()),
    ];
    match (data.failure(), data.status()) {
        (Some(why), _) => {
            let why = why.lines().next().unwrap_or_default();
            left.push(Span::styled(format!("  no answer: {why}"), theme.bad()));
        }
        (None, Some(status)) => {
            let process = status.process.iter();
            let text =
                process.map(|it| format!("  weir {} {}, pid {}", it.command, it.version, it.pid));
            left.extend(text.map(|text| Span::styled(text, theme.faint())));
        }
        (None, None) => {}
    }
    let mut right = Vec::new();
    if model.is_frozen() {
        right.extend([Span::styled(" FROZEN ", theme.chosen()), Span::raw(" ")]);
    }
    if let Some(report) = data.now() {
        right.push(Span::raw(format!("{} UTC", rows::clock(report.unix_ms))));
    }
    right.push(Span::styled(
        format!("  every {}", model.every),
        theme.faint(),
    ));
    both_ends(frame, area, Line::from(left), Line::from(right));
}

fn listener_table(
    frame: &mut Frame<'_>,
    area: Rect,
    model: &Model,
    theme: Theme,
    listeners: &[ListenerRow<'_>],
    chosen: Option<usize>,
) {
    use HorizontalAlignment::{Left, Right};
    if listeners.is_empty() {
        let text = format!("no listener has {:?} in its name", model.filter);
        frame.render_widget(Paragraph::new(text), area);
        return;
    }
    let is_wide = area.width >= WIDE;
    let is_narrow = area.width < NARROW;
    let has_quic = listeners.iter().any(ListenerRow::is_quic);
    let columns = [
        ("listener", Left, Constraint::Fill(1), true),
        ("address", Left, Constraint::Fill(1), is_wide),
        ("mode", Left, Constraint::Length(12), !is_narrow),
        ("queue", Right, Constraint::Length(11), true),
        ("half-open", Right, Constraint::Length(9), is_wide),
        ("buffer", Right, Constraint::Length(6), is_wide && has_quic),
        ("wait", Right, Constraint::Length(7), true),
        ("target", Right, Constraint::Length(7), is_wide),
        ("admitted/s", Right, Constraint::Length(10), true),
        ("refused/s", Right, Constraint::Length(9), true),
        ("refused", Right, Constraint::Length(7), true),
    ];
    let row = |row: &ListenerRow<'_>| {
        let flow = row.flow;
        let mode = match row.mode {
            "enforce" => Style::new(),
            "observe" => theme.notable(),
            _ => theme.bad(),
        };
        let wait = if row.is_over_target() {
            theme.bad()
        } else {
            Style::new()
        };
        let refused = refused_style(flow.map(|flow| flow.refused), theme);
        let plain = Style::new();
        let name = if row.is_workload() {
            plain
        } else {
            theme.strong()
        };
        let cells = [
            Cell::from(Span::styled(row.title(), name)),
            Cell::from(row.place()),
            Cell::from(Span::styled(row.mode.to_owned(), mode)),
            right(row.queue(), plain),
            right(row.half_open(), plain),
            right(row.buffer(), plain),
            right(row.wait(), wait),
            right(rows::time(row.target_us), plain),
            right(rows::rate(flow.map(|flow| flow.admitted)), plain),
            right(rows::rate(flow.map(|flow| flow.refused)), refused),
            right(flow.map_or("-".to_owned(), |flow| flow.share()), refused),
        ];
        let shown = cells
            .into_iter()
            .zip(&columns)
            .filter(|(_, column)| column.3);
        Row::new(shown.map(|(cell, _)| cell).collect::<Vec<_>>())
    };
    let shown: Vec<_> = columns.iter().filter(|column| column.3).collect();
    let names: Vec<_> = shown.iter().map(|column| (column.0, column.1)).collect();
    let table = Table::new(
        listeners.iter().map(row),
        shown.iter().map(|column| column.2),
    )
    .header(heads(&names, theme))
    .row_highlight_style(theme.chosen());
    let mut state = TableState::new().with_selected(chosen);
    frame.render_stateful_widget(table, area, &mut state);
}

fn tabs(frame: &mut Frame<'_>, area: Rect, model: &Model, theme: Theme) {
    let status = model.data().status();
    let (held, notes) = status.map_or((0, 0), |status| {
        (rows::held(status).count(), rows::notes(status).len())
    });
    let mut spans = Vec::new();
    for (number, pane) in Pane::ALL.into_iter().enumerate() {
        let more = match pane {
            Pane::Controller if held > 0 => format!(" ({held})"),
            Pane::Notes if notes > 0 => format!(" ({notes})"),
            _ => String::new(),
        };
        let style = match pane == model.pane {
            true => theme.chosen(),
            false if more.is_empty() => Style::new(),
            false => theme.notable(),
        };
        let text = format!(" {} {}{more} ", number + 1, pane.title());
        spans.push(Span::styled(text, style));
    }
    frame.render_widget(Paragraph::new(Line::from(spans)), area);
}

fn keys(
    frame: &mut Frame<'_>,
    area: Rect,
    model: &Model,
    theme: Theme,
    chosen: Option<&ListenerRow<'_>>,
) {
    if model.is_typing {
        let spans = vec![
            Span::styled("filter: ", theme.head()),
            Span::raw(model.filter.clone()),
            Span::styled(" ", theme.chosen()),
            Span::styled("  Enter keeps it, Esc shows all", theme.faint()),
        ];
        frame.render_widget(Paragraph::new(Line::from(spans)), area);
        return;
    }
    let mut sort = format!("sort: {}", model.sort.word());
    if model.reverse {
        sort += " reversed";
    }
    let filter = match model.filter.as_str() {
        "" => "filter".to_owned(),
        filter => format!("filter: {filter} (Esc: all)"),
    };
    let has_workloads = chosen.is_some_and(|row| !row.workloads().is_empty());
    // In the room of 80 columns; the help has both.
    let more = match has_workloads && !model.is_frozen() {
        true if chosen.is_some_and(|row| row.is_workload() || row.unfolded > 0) => {
            ("Enter", "fold")
        }
        true => ("Enter", "unfold"),
        false if model.is_frozen() => ("Space", "go on"),
        false => ("Space", "freeze"),
    };
    let keys = [
        ("q", "quit"),
        ("↑↓", "choose"),
        ("Tab", "pane"),
        ("s", sort.as_str()),
        ("/", filter.as_str()),
        more,
        ("?", "help"),
    ];
    let spans = keys.into_iter().flat_map(|(key, what)| {
        [
            Span::styled(key, theme.strong()),
            Span::styled(format!(" {what}  "), theme.faint()),
        ]
    });
    frame.render_widget(Paragraph::new(Line::from_iter(spans)), area);
}
