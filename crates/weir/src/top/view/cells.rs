//! What tables and lines are made of.

use ratatui::Frame;
use ratatui::layout::{Constraint, HorizontalAlignment, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row};

use crate::top::theme::Theme;

/// A line at each end; the left one gives way.
pub fn both_ends(frame: &mut Frame<'_>, area: Rect, left: Line<'_>, right: Line<'_>) {
    let width = right.width() as u16;
    let [left_at, right_at] = Layout::horizontal([Constraint::Fill(1), Constraint::Length(width)])
        .spacing(1)
        .areas(area);
    frame.render_widget(Paragraph::new(left), left_at);
    frame.render_widget(
        Paragraph::new(right).alignment(HorizontalAlignment::Right),
        right_at,
    );
}

/// A number at the right end of its column.
pub fn right<'a>(text: impl Into<String>, style: Style) -> Cell<'a> {
    Cell::from(Line::from(Span::styled(text.into(), style)).alignment(HorizontalAlignment::Right))
}

/// A head at the end of its column at which its cells stand.
pub fn heads<'a>(names: &[(&'a str, HorizontalAlignment)], theme: Theme) -> Row<'a> {
    let cell = |(name, alignment): &(&'a str, HorizontalAlignment)| {
        Cell::from(Line::from(*name).alignment(*alignment))
    };
    Row::new(names.iter().map(cell)).style(theme.head())
}

/// What is not 0 stands out.
pub fn refused_style(rate: Option<f64>, theme: Theme) -> Style {
    match rate {
        Some(rate) if rate > 0.0 => theme.bad(),
        _ => Style::new(),
    }
}
