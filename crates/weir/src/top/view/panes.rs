//! The lower part of the screen.

use ratatui::Frame;
use ratatui::layout::{Constraint, HorizontalAlignment, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table, Wrap};
use weir_api::{Status, TopSource, TopSources};
use weir_core::verdict::Kind;

use super::cells::{heads, refused_style, right};
use crate::show::describe::percent;
use crate::show::report::controller;
use crate::top::model::{Model, Pane};
use crate::top::rates::Pair;
use crate::top::rows::{self, ClassRow, ListenerRow, ProxyRow, VerdictRow};
use crate::top::theme::Theme;

/// Decisions of the controller that the pane has.
const DECISIONS: usize = 50;
/// Below this width, it has no listener.
const NARROW: u16 = 76;
/// From this width on, a class has the controller's reason beside it.
const WIDE: u16 = 110;

/// Draws the pane that the user has chosen.
pub fn draw(
    frame: &mut Frame<'_>,
    area: Rect,
    model: &Model,
    theme: Theme,
    listener: Option<&ListenerRow<'_>>,
) {
    let data = model.data();
    let Some((pair, status)) = data.pair().zip(data.status()) else {
        return;
    };
    let pane = Shown { area, model, theme };
    match model.pane {
        Pane::Verdicts => pane.verdicts(frame, listener, &pair),
        Pane::Classes => pane.classes(frame, status, &pair),
        Pane::Sources => pane.sources(frame, data.sources()),
        Pane::Controller => pane.controller(frame, status),
        Pane::Proxies => pane.proxies(frame, status, &pair),
        Pane::Notes => pane.notes(frame, status),
    }
}

/// A column: its head, where its cells stand, its width.
type Column = (&'static str, HorizontalAlignment, Constraint);

struct Shown<'a> {
    area: Rect,
    model: &'a Model,
    theme: Theme,
}

impl Shown<'_> {
    /// Lines to scroll away of so many, so that the last ones stay on the screen.
    fn scroll(&self, lines: usize, head: u16) -> usize {
        let shown = self.area.height.saturating_sub(head).into();
        self.model.scroll.min(lines.saturating_sub(shown))
    }

    fn say(&self, frame: &mut Frame<'_>, text: &str) {
        let line = Line::from(Span::styled(text.to_owned(), self.theme.faint()));
        frame.render_widget(Paragraph::new(line), self.area);
    }

    fn table(&self, frame: &mut Frame<'_>, columns: &[Column], rows: Vec<Row<'_>>) {
        let names: Vec<_> = columns.iter().map(|column| (column.0, column.1)).collect();
        let skipped = self.scroll(rows.len(), 1);
        let rows = rows.into_iter().skip(skipped);
        let table = Table::new(rows, columns.iter().map(|column| column.2));
        frame.render_widget(table.header(heads(&names, self.theme)), self.area);
    }

    fn verdicts(&self, frame: &mut Frame<'_>, listener: Option<&ListenerRow<'_>>, pair: &Pair<'_>) {
        use HorizontalAlignment::{Left, Right};
        let Some(row) = listener else {
            return self.say(frame, "no listener is chosen");
        };
        let verdicts = rows::verdicts(row.listener, pair, self.model.sort);
        if verdicts.is_empty() {
            return self.say(
                frame,
                "no verdict yet: no connection has come to this listener",
            );
        }
        let columns = [
            ("verdict", Left, Constraint::Length(20)),
            ("count", Right, Constraint::Length(12)),
            ("/s", Right, Constraint::Length(8)),
            ("", Left, Constraint::Fill(1)),
        ];
        let row = |row: &VerdictRow| {
            let style = match row.kind {
                Kind::Refuse => refused_style(row.rate, self.theme),
                _ => Style::new(),
            };
            Row::new([
                Cell::from(Span::styled(row.name, style)),
                right(row.count.to_string(), Style::new()),
                right(rows::rate(row.rate), style),
                Cell::from(Span::styled(row.text, self.theme.faint())),
            ])
        };
        self.table(frame, &columns, verdicts.iter().map(row).collect());
    }

    fn classes(&self, frame: &mut Frame<'_>, status: &Status, pair: &Pair<'_>) {
        use HorizontalAlignment::{Left, Right};
        let Model {
            filter,
            sort,
            reverse,
            ..
        } = self.model;
        let classes = rows::classes(status, pair, filter, *sort, *reverse);
        if classes.is_empty() {
            return self.say(frame, "no class");
        }
        let listener = if self.area.width < NARROW {
            Constraint::Length(0)
        } else {
            Constraint::Fill(1)
        };
        let mut columns = vec![
            ("class", Left, Constraint::Fill(1)),
            ("listener", Left, listener),
            ("priority", Right, Constraint::Length(8)),
            ("rate", Right, Constraint::Length(7)),
            ("held at", Right, Constraint::Length(7)),
            ("waiting", Right, Constraint::Length(7)),
            ("admitted/s", Right, Constraint::Length(10)),
            ("refused/s", Right, Constraint::Length(9)),
        ];
        if self.area.width >= WIDE {
            columns.push(("because", Left, Constraint::Fill(3)));
        }
        let row = |row: &ClassRow<'_>| {
            let (class, flow) = (row.class, row.flow);
            let held = if class.controlled_rate.is_some() {
                self.theme.notable()
            } else {
                Style::new()
            };
            let plain = Style::new();
            let waiting = class.waiting.map_or("-".to_owned(), |n| n.to_string());
            let refused = flow.map(|flow| flow.refused);
            let cells = [
                Cell::from(Span::styled(class.name.clone(), self.theme.strong())),
                Cell::from(row.listener.unwrap_or("all").to_owned()),
                right(class.priority.to_string(), plain),
                right(rows::rate(class.rate), plain),
                right(rows::rate(class.controlled_rate), held),
                right(waiting, plain),
                right(rows::rate(flow.map(|flow| flow.admitted)), plain),
                right(rows::rate(refused), refused_style(refused, self.theme)),
                Cell::from(row.reason.unwrap_or_default().to_owned()),
            ];
            Row::new(cells.into_iter().take(columns.len()))
        };
        self.table(frame, &columns, classes.iter().map(row).collect());
    }

    fn sources(&self, frame: &mut Frame<'_>, top: Option<&TopSources>) {
        use HorizontalAlignment::{Left, Right};
        let Some(top) = top else {
            return self.say(frame, "no guard that says whom it refuses");
        };
        let Model {
            filter,
            sort,
            reverse,
            ..
        } = self.model;
        let sources = rows::sources(top, filter, *sort, *reverse);
        let Some(longest) = sources.iter().map(|source| source.source.len()).max() else {
            return self.say(frame, "no source: no connection was refused lately");
        };
        let columns = [
            ("source", Left, Constraint::Length(longest as u16)),
            ("mean/s", Right, Constraint::Length(8)),
            ("share", Right, Constraint::Length(6)),
            ("listener", Left, Constraint::Fill(1)),
            ("class", Left, Constraint::Fill(1)),
            ("last verdict", Left, Constraint::Length(17)),
        ];
        let row = |source: &&TopSource| {
            let refused = refused_style(Some(source.per_second), self.theme);
            let class = source.class.clone().unwrap_or_else(|| "-".to_owned());
            Row::new([
                Cell::from(Span::styled(source.source.clone(), self.theme.strong())),
                right(rows::rate(Some(source.per_second)), refused),
                right(percent(source.share), Style::new()),
                Cell::from(source.listener.clone()),
                Cell::from(class),
                Cell::from(source.verdict.clone()),
            ])
        };
        self.table(frame, &columns, sources.iter().map(row).collect());
    }

    fn controller(&self, frame: &mut Frame<'_>, status: &Status) {
        let Some(controller) = &status.controller else {
            return self.say(
                frame,
                "no controller: add [controller] with target_wait to the config file",
            );
        };
        let text = controller::text(controller, DECISIONS);
        let lines: Vec<Line<'_>> = text.lines().map(Line::from).collect();
        let scroll = self.scroll(lines.len(), 0) as u16;
        frame.render_widget(Paragraph::new(lines).scroll((scroll, 0)), self.area);
    }

    fn proxies(&self, frame: &mut Frame<'_>, status: &Status, pair: &Pair<'_>) {
        use HorizontalAlignment::{Left, Right};
        let Model {
            filter,
            sort,
            reverse,
            ..
        } = self.model;
        let proxies = rows::proxies(status, pair, filter, *sort, *reverse);
        if proxies.is_empty() {
            return self.say(frame, "no proxy");
        }
        let columns = [
            ("proxy", Left, Constraint::Fill(1)),
            ("state", Left, Constraint::Length(9)),
            ("clients", Right, Constraint::Length(7)),
            ("waiting", Right, Constraint::Length(7)),
            ("requests/s", Right, Constraint::Length(10)),
            ("failed/s", Right, Constraint::Length(8)),
            ("in_use", Right, Constraint::Length(6)),
            ("idle", Right, Constraint::Length(5)),
            ("p99", Right, Constraint::Length(7)),
        ];
        let row = |row: &ProxyRow<'_>| {
            let (indent, name) = match row.backend {
                Some(_) => ("  ", Style::new()),
                None => ("", self.theme.strong()),
            };
            let state = match row.state {
                "up" => self.theme.good(),
                "down" => self.theme.bad(),
                "full" | "draining" => self.theme.notable(),
                _ => Style::new(),
            };
            let number =
                |n: Option<u64>| right(n.map_or(String::new(), |n| n.to_string()), Style::new());
            Row::new([
                Cell::from(Span::styled(format!("{indent}{}", row.name), name)),
                Cell::from(Span::styled(row.state.to_owned(), state)),
                number(row.clients),
                number(row.waiting),
                right(rows::rate(row.rate), Style::new()),
                right(
                    rows::rate(row.failures),
                    refused_style(row.failures, self.theme),
                ),
                number(Some(row.connections.in_use)),
                number(Some(row.connections.idle)),
                right(rows::time(row.p99_us), Style::new()),
            ])
        };
        self.table(frame, &columns, proxies.iter().map(row).collect());
    }

    fn notes(&self, frame: &mut Frame<'_>, status: &Status) {
        let notes = rows::notes(status);
        if notes.is_empty() {
            return self.say(frame, "nothing to note: all is in force as configured");
        }
        let lines: Vec<Line<'_>> = notes
            .into_iter()
            .map(|note| Line::from(format!("- {note}")))
            .collect();
        let scroll = self.scroll(lines.len(), 0) as u16;
        let text = Paragraph::new(lines).wrap(Wrap { trim: false });
        frame.render_widget(text.scroll((scroll, 0)), self.area);
    }
}
