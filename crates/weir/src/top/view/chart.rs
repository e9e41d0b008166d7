//! A chart of columns: one for each report, the newest at the right end.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::widgets::Widget;

/// Eighths of a cell, from none to all.
const EIGHTHS: [&str; 9] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];
/// Marks the height of the line.
const LINE: &str = "╌";
/// So much of the chart is above its line at least, so that the line is within it.
const ABOVE_LINE: f64 = 1.25;

/// Columns, and a line across them.
pub struct Chart<'a> {
    /// In any unit, 0 or more, the newest last. `None`: a gap.
    pub values: &'a [Option<f64>],
    /// A value to mark.
    pub line: Option<f64>,
    /// Columns up to the line, or all without one.
    pub style: Style,
    /// Columns over the line.
    pub over: Style,
    /// The line.
    pub faint: Style,
}

impl Chart<'_> {
    /// The value at the top.
    pub fn top(&self) -> f64 {
        let values = self.values.iter().flatten().copied();
        let least = self.line.map_or(0.0, |line| ABOVE_LINE * line);
        values.fold(least, f64::max)
    }
}

/// The height of a value in eighths of a cell, where `top` has so many rows; what is not 0 has one at least.
fn eighths(value: f64, top: f64, rows: u16) -> usize {
    let all = f64::from(rows) * 8.0;
    match top > 0.0 && value > 0.0 {
        true => (value / top * all).round().clamp(1.0, all) as usize,
        false => 0,
    }
}

impl Widget for Chart<'_> {
    fn render(self, area: Rect, buffer: &mut Buffer) {
        let top = self.top();
        let height = |value| eighths(value, top, area.height);
        let line = self.line.map(|line| height(line).saturating_sub(1) / 8);
        let skipped = self.values.len().saturating_sub(area.width.into());
        let shown = &self.values[skipped..];
        let first = area.right() - shown.len() as u16;
        for row in 0..area.height {
            let y = area.bottom() - 1 - row;
            for x in area.left()..area.right() {
                let value = x.checked_sub(first).and_then(|at| shown[usize::from(at)]);
                let full = value.map_or(0, height);
                let part = full.saturating_sub(usize::from(row) * 8).min(8);
                let is_over = value
                    .zip(self.line)
                    .is_some_and(|(value, line)| value > line);
                let cell = &mut buffer[(x, y)];
                match part {
                    0 if line == Some(row.into()) => cell.set_symbol(LINE).set_style(self.faint),
                    part => cell.set_symbol(EIGHTHS[part]).set_style(if is_over {
                        self.over
                    } else {
                        self.style
                    }),
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(values: &[Option<f64>], line: Option<f64>, width: u16, height: u16) -> Vec<String> {
        let area = Rect::new(0, 0, width, height);
        let mut buffer = Buffer::empty(area);
        let chart = Chart {
            values,
            line,
            style: Style::new(),
            over: Style::new(),
            faint: Style::new(),
        };
        chart.render(area, &mut buffer);
        let row = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect();
        (0..height).map(row).collect()
    }

    #[test]
    fn columns_are_as_high_as_their_values_and_the_newest_is_at_the_right() {
        let values = [0.0, 1.0, 8.0, 16.0].map(Some);
        assert_eq!(lines(&values, None, 6, 2), ["     █", "   ▁██"]);
        assert_eq!(lines(&values, None, 2, 1), ["▄█"]);
        assert_eq!(
            lines(&[Some(0.0), Some(0.001), Some(9.0)], None, 3, 1),
            [" ▁█"]
        );
        assert_eq!(lines(&[], None, 3, 1), ["   "]);
    }

    #[test]
    fn a_gap_is_empty_and_the_line_is_seen_beside_the_columns() {
        assert_eq!(lines(&[Some(4.0), None, Some(4.0)], None, 3, 1), ["█ █"]);
        // A line at 8 of 10, which leaves a fifth above it.
        assert_eq!(lines(&[Some(2.0)], Some(8.0), 3, 2), ["╌╌╌", "  ▃"]);
        assert_eq!(
            lines(&[Some(80.0)], Some(20.0), 3, 4),
            ["  █", "  █", "  █", "╌╌█"]
        );
    }
}
