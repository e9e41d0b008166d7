//! Pictures in text: horizontal bars.

/// The longest bar, columns.
const BAR_COLUMNS: usize = 40;
/// Eighths of a column, from one to seven.
const EIGHTHS: [char; 7] = ['▏', '▎', '▍', '▌', '▋', '▊', '▉'];

/// One bar.
pub struct Bar {
    /// What it is of; stands before it.
    pub label: String,
    /// Its length, in any unit: 0 or more.
    pub value: f64,
    /// The value in words; stands behind it.
    pub text: String,
}

/// Bars below each other; the longest has all columns.
pub fn bars(bars: &[Bar]) -> String {
    let width = |bar: &Bar| bar.label.chars().count();
    let labels = bars.iter().map(width).max().unwrap_or(0);
    let longest = bars.iter().map(|bar| bar.value).fold(0.0, f64::max);
    let line = |bar: &Bar| {
        let share = if longest > 0.0 {
            bar.value / longest
        } else {
            0.0
        };
        let padding = " ".repeat(labels - width(bar));
        let text = format!("{}{padding}  {} {}", bar.label, columns(share), bar.text);
        text.trim_end().to_owned() + "\n"
    };
    bars.iter().map(line).collect()
}

/// A bar of a share of all columns. What is not 0 can be seen.
fn columns(share: f64) -> String {
    let eighths = (share * (BAR_COLUMNS * 8) as f64).round() as usize;
    let eighths = if share > 0.0 { eighths.max(1) } else { 0 };
    let mut bar = "█".repeat(eighths / 8);
    bar.extend((eighths % 8).checked_sub(1).map(|at| EIGHTHS[at]));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_values() {
        let bar = |label: &str, value| Bar {
            label: label.to_owned(),
            value,
            text: format!("{value}"),
        };
        let text = bars(&[
            bar("all", 80.0),
            bar("müsli", 3.0),
            bar("few", 0.001),
            bar("none", 0.0),
        ]);
        let full = "█".repeat(BAR_COLUMNS);
        let expected = format!("all    {full} 80\nmüsli  █▌ 3\nfew    ▏ 0.001\nnone    0\n");
        assert_eq!(text, expected);
    }
}
