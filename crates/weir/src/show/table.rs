//! Plain tables for people: aligned columns, no lines, no colour.

/// How a column is aligned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Lines of `rows` under `head`, columns two spaces apart; the last column is not padded.
pub fn table(head: &[(&str, Align)], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells
            .chain([head[column].0.chars().count()])
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |cells: &[&str]| -> String {
        let padded = cells.iter().enumerate().map(|(i, cell)| match head[i].1 {
            Align::Left => format!("{cell:<0$}", widths[i]),
            Align::Right => format!("{cell:>0$}", widths[i]),
        });
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    let mut text = line(&head.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    for row in rows {
        text += &line(&row.iter().map(String::as_str).collect::<Vec<_>>());
    }
    text
}

/// Every line of `text` two spaces further to the right.
pub fn indent(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_lines_have_no_trailing_space() {
        let head = [
            ("name", Align::Left),
            ("queue", Align::Right),
            ("policy", Align::Left),
        ];
        let rows = [
            vec!["web".into(), "0".into(), "reserv".into()],
            vec!["müsli".into(), "12345678".into(), String::new()],
        ];
        let expected = "name      queue  policy\nweb           0  reserv\nmüsli  12345678\n";
        assert_eq!(table(&head, &rows), expected);
    }
}
