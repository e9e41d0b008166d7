//! Pictures in text: curves over logarithmic axes.

/// Columns and rows between the axes.
const COLUMNS: usize = 61;
const ROWS: usize = 17;

/// One curve.
pub struct Curve {
    /// What marks its points.
    pub mark: char,
    /// Its name, for the legend.
    pub name: String,
    /// (x, y), each more than 0.
    pub points: Vec<(f64, f64)>,
}

/// Curves, both axes logarithmic. Where two meet, the first one is seen. `unit` is that of the vertical axis.
pub fn chart(curves: &[Curve], unit: &str) -> String {
    let all = || curves.iter().flat_map(|curve| curve.points.iter().copied());
    let (x, y) = (
        Axis::of(all().map(|point| point.0)),
        Axis::of(all().map(|point| point.1)),
    );
    let mut cells = [[' '; COLUMNS]; ROWS];
    for curve in curves.iter().rev() {
        for (px, py) in &curve.points {
            cells[ROWS - 1 - y.cell(*py, ROWS)][x.cell(*px, COLUMNS)] = curve.mark;
        }
    }
    let mut text = String::new();
    for (row, cells) in cells.iter().enumerate() {
        let label = match row {
            0 => number(y.most),
            _ if row == ROWS / 2 => number(y.at(0.5)),
            _ if row == ROWS - 1 => number(y.least),
            _ => String::new(),
        };
        let cells: String = cells.iter().collect();
        let unit = if label.is_empty() { "" } else { unit };
        text += format!("{:>9} │{cells}", format!("{label}{unit}")).trim_end();
        text += "\n";
    }
    let (left, right) = (number(x.least), number(x.most));
    let between = COLUMNS - left.len();
    text += &format!(
        "{:9} └{}\n{:11}{left}{right:>between$}\n",
        "",
        "─".repeat(COLUMNS),
        ""
    );
    let names = curves
        .iter()
        .map(|curve| format!("{} {}", curve.mark, curve.name));
    text + &format!("{:11}{}\n", "", names.collect::<Vec<_>>().join("   "))
}

/// From the least to the largest value.
struct Axis {
    least: f64,
    most: f64,
}

impl Axis {
    fn of(values: impl Iterator<Item = f64>) -> Axis {
        let (mut least, mut most) = (f64::INFINITY, f64::MIN_POSITIVE);
        for value in values {
            least = least.min(value);
            most = most.max(value);
        }
        Axis { least, most }
    }

    /// The value at a share of the axis.
    fn at(&self, share: f64) -> f64 {
        self.least * (self.most / self.least).powf(share)
    }

    fn cell(&self, value: f64, cells: usize) -> usize {
        let whole = (self.most / self.least).ln();
        let share = if whole > 0.0 {
            (value / self.least).ln() / whole
        } else {
            0.0
        };
        (share * (cells - 1) as f64).round() as usize
    }
}

fn number(value: f64) -> String {
    match value {
        10.0.. => format!("{value:.0}"),
        _ => format!("{value:.1}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_power_law_is_a_straight_line() {
        let curve = |mark, factor: f64| Curve {
            mark,
            name: format!("{factor} x"),
            points: (0..=4)
                .map(|i| 10_f64.powi(i))
                .map(|x| (x, factor * x))
                .collect(),
        };
        let text = chart(&[curve('o', 1.0)], " s");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), ROWS + 3);
        for i in 0..=4 {
            let column = lines[ROWS - 1 - 4 * i].chars().position(|c| c == 'o');
            assert_eq!(column, Some(11 + 15 * i), "{text}");
        }
        assert!(lines[0].starts_with("  10000 s │"), "{text}");
        assert!(lines[ROWS - 1].starts_with("    1.0 s │o"), "{text}");
        assert!(lines[ROWS + 2].ends_with("o 1 x"));
        // One point, and two that meet.
        let one = |mark| Curve {
            points: vec![(5.0, 5.0)],
            ..curve(mark, 1.0)
        };
        let text = chart(&[one('a'), one('b')], "");
        assert!(text.contains("│a") && !text.contains("│b"), "{text}");
    }
}
