//! The help, over the rest of the screen.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph};

use crate::top::theme::Theme;

const KEYS: [(&str, &str); 14] = [
    ("↑ ↓, k j", "choose a listener"),
    ("Enter", "show its workloads, the worst first, or hide them"),
    ("Tab, ← →, 1 to 6", "choose a pane"),
    ("Page ↑, Page ↓", "scroll the pane"),
    (
        "s",
        "sort by the next column: refused/s, admitted/s, wait, queue, name",
    ),
    ("r", "reverse the order"),
    ("/", "filter by a part of the name; Esc shows all"),
    ("Space, f", "freeze the screen; the history goes on"),
    ("Ctrl-Z", "stop; `fg` goes on"),
    ("q, Ctrl-C", "quit"),
    ("", ""),
    ("╌", "the wait to be kept; red columns are over it"),
    ("/s", "per second, between the last two reports"),
    ("-", "not known"),
];

/// Draws it in the middle.
pub fn draw(frame: &mut Frame<'_>, area: Rect, theme: Theme) {
    let width = 76.min(area.width);
    let height = (KEYS.len() as u16 + 4).min(area.height);
    let at = Rect::new(
        area.x + (area.width - width) / 2,
        area.y + (area.height - height) / 2,
        width,
        height,
    );
    let line = |(key, what): &(&'static str, &'static str)| {
        Line::from(vec![
            Span::styled(format!("{key:>18}  "), theme.strong()),
            Span::raw(*what),
        ])
    };
    let mut lines: Vec<Line<'_>> = KEYS.iter().map(line).collect();
    let more = "`weir explain NAME` says what a verdict or column means.";
    lines.extend([
        Line::default(),
        Line::from(Span::styled(more, theme.faint())),
    ]);
    let block = Block::bordered().title(" weir top: keys (any key closes) ");
    frame.render_widget(Clear, at);
    frame.render_widget(Paragraph::new(lines).block(block), at);
}
