//! Plain tables for people: aligned columns, no lines, no colour.

use comfy_table::CellAlignment;

/// How a column is aligned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Lines of `rows` under `head`, columns two spaces apart; the last column is not padded. A row has as many
/// cells as the head.
pub fn table(head: &[(&str, Align)], rows: &[Vec<String>]) -> String {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(head.iter().map(|(name, _)| *name));
    table.add_rows(rows);
    for (column, (_, align)) in table.column_iter_mut().zip(head) {
        column.set_padding((0, 2)).set_cell_alignment(match align {
            Align::Left => CellAlignment::Left,
            Align::Right => CellAlignment::Right,
        });
    }
    table.trim_fmt() + "\n"
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
