//! The lower part of the screen.

use ratatui::Frame;
use ratatui::layout::{Constraint, HorizontalAlignment, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table, Wrap};
use weir_api::{Status, TopSources};

use super::cells::heads;
use crate::show::report::controller;
use crate::show::table::Align;
use crate::top::columns::{self, Column, Look};
use crate::top::model::{Model, Pane};
use crate::top::proxy_rows;
use crate::top::rates::Pair;
use crate::top::rows::{self, ListenerRow};
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

    fn table<R>(&self, frame: &mut Frame<'_>, columns: &[Column<R>], rows: &[R]) {
        let side = |column: &Column<R>| match column.align {
            Align::Left => HorizontalAlignment::Left,
            Align::Right => HorizontalAlignment::Right,
        };
        let cell = |column: &Column<R>, row: &R| {
            let span = Span::styled((column.text)(row), self.style((column.look)(row)));
            Cell::from(Line::from(span).alignment(side(column)))
        };
        let line = |row: &R| {
            Row::new(
                columns
                    .iter()
                    .map(|column| cell(column, row))
                    .collect::<Vec<_>>(),
            )
        };
        let names: Vec<_> = columns
            .iter()
            .map(|column| (column.head, side(column)))
            .collect();
        let widths = columns.iter().map(|column| match column.width {
            Some(width) => Constraint::Length(width),
            // Reasons are longer than names.
            None if column.head == "because" => Constraint::Fill(3),
            None => Constraint::Fill(1),
        });
        let skipped = self.scroll(rows.len(), 1);
        let table = Table::new(rows.iter().skip(skipped).map(line), widths);
        frame.render_widget(table.header(heads(&names, self.theme)), self.area);
    }

    fn style(&self, look: Look) -> Style {
        match look {
            Look::Plain => Style::new(),
            Look::Strong => self.theme.strong(),
            Look::Faint => self.theme.faint(),
            Look::Good => self.theme.good(),
            Look::Notable => self.theme.notable(),
            Look::Bad => self.theme.bad(),
        }
    }

    fn verdicts(&self, frame: &mut Frame<'_>, listener: Option<&ListenerRow<'_>>, pair: &Pair<'_>) {
        let Some(row) = listener else {
            return self.say(frame, "no listener is chosen");
        };
        let verdicts = rows::verdicts(row, pair, self.model.sort);
        if verdicts.is_empty() {
            return self.say(frame, "no verdict yet: no connection has come here");
        }
        let columns: Vec<_> = columns::verdicts()
            .into_iter()
            .chain([columns::meaning()])
            .collect();
        self.table(frame, &columns, &verdicts);
    }

    fn classes(&self, frame: &mut Frame<'_>, status: &Status, pair: &Pair<'_>) {
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
        let mut columns = Vec::from(columns::classes());
        if self.area.width < NARROW {
            columns[1].width = Some(0);
        }
        if self.area.width >= WIDE {
            columns.push(columns::because());
        }
        self.table(frame, &columns, &classes);
    }

    fn sources(&self, frame: &mut Frame<'_>, top: Option<&TopSources>) {
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
        let mut columns = columns::sources();
        columns[0].width = Some(longest as u16);
        self.table(frame, &columns, &sources);
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
        let Model {
            filter,
            sort,
            reverse,
            ..
        } = self.model;
        let proxies = proxy_rows::proxies(status, pair, filter, *sort, *reverse);
        if proxies.is_empty() {
            return self.say(frame, "no proxy");
        }
        self.table(frame, &columns::proxies(), &proxies);
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
