//! The reference page `docs/reference.md`: every key of every table, made from the keys.

use std::fmt::Write as _;

use crate::schema::{KeyDoc, TableDoc, tables};

const HEAD: &str = "\
# Reference of weir.toml

<!-- Made by `weir generate reference DIR` from the keys in crates/config: change them there. -->

Every table of the config file and every key of it. `weir check --example` prints a file with all of them, `weir check
FILE` shows the values in effect, and `weir explain KEY` explains one key. weir refuses unknown tables and keys.

A duration is a number with its unit: `us`, `ms`, `s`, `min` or `h` (`\"1.5s\"`). A size is a whole number with its unit:
`B`, `KiB`, `MiB` or `GiB`. Words, names, addresses, durations and sizes stand in double quotes; numbers, `true` and
`false` stand without. Of keys that take the word `none`, `none` takes the value away.
";

/// The reference page, in Markdown.
pub fn reference() -> String {
    let mut page = HEAD.to_owned();
    for table in tables() {
        write_table(&mut page, table);
    }
    page
}

fn write_table(page: &mut String, table: &TableDoc) {
    let _ = writeln!(page, "\n## `{}`\n\n{}\n", table.head, table.text);
    page.push_str("| key | type | values | default | since | what it sets |\n");
    page.push_str("|---|---|---|---|---|---|\n");
    for key in &table.keys {
        let _ = writeln!(
            page,
            "| `{}` | {} | {} | {} | {} | {} |",
            key.name,
            type_cell(key),
            cell(&key.values),
            default_cell(key),
            key.since,
            text_cell(key),
        );
    }
    for key in table.keys.iter().filter(|key| !key.words.is_empty()) {
        let _ = writeln!(page, "\n`{}`:\n", key.name);
        for (word, text) in &key.words {
            let _ = writeln!(page, "- `{word}`: {text}");
        }
    }
}

/// A bar would end the cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn type_cell(key: &KeyDoc) -> String {
    match key.unit {
        "" => key.type_name.to_owned(),
        unit => format!("{}, in {unit}", key.type_name),
    }
}

fn default_cell(key: &KeyDoc) -> String {
    match (key.is_required, key.absent) {
        (true, _) => "required".to_owned(),
        (_, Some(absent)) => cell(absent),
        _ => format!("`{}`", cell(&key.default)),
    }
}

fn text_cell(key: &KeyDoc) -> String {
    match key.note {
        "" => cell(key.text),
        note => cell(&format!("{}. {note}", key.text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_in_docs_is_the_generated_one() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference.md");
        if std::env::var_os("WEIR_BLESS").is_some() {
            std::fs::write(path, reference()).unwrap();
        }
        let page = std::fs::read_to_string(path).unwrap_or_default();
        let hint = "run with WEIR_BLESS=1, or `weir generate reference docs`";
        for (line, own) in page.lines().zip(reference().lines()) {
            assert_eq!(line, own, "{hint}");
        }
        assert_eq!(page.len(), reference().len(), "{hint}");
    }

    #[test]
    fn every_key_has_its_row() {
        let page = reference();
        for key in tables().flat_map(|table| &table.keys) {
            assert!(
                page.contains(&format!("| `{}` |", key.name)),
                "{}",
                key.name
            );
        }
    }

    #[test]
    fn every_row_has_six_cells() {
        let page = reference();
        let rows = page.lines().filter(|line| line.starts_with("| "));
        for row in rows {
            let bars = row.replace("\\|", "").matches('|').count();
            assert_eq!(bars, 7, "{row}");
        }
    }
}
