//! Tables in a terminal.

use comfy_table::CellAlignment;

use super::format::{WIDTH, wrapped};
use super::template::fill;
use crate::error::Result;
use crate::run::results::{Case, Results, Verdict};
use crate::run::scheduler::label;

/// A table for people: right-aligned columns two spaces apart, the first left-aligned.
pub fn table(head: &[String], rows: &[Vec<String>]) -> String {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(head);
    table.add_rows(rows);
    for (number, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2)).set_cell_alignment(match number {
            0 => CellAlignment::Left,
            _ => CellAlignment::Right,
        });
    }
    table.trim_fmt() + "\n"
}

/// The cells of a case.
pub fn cells(results: &Results, case: &Case) -> Result<Vec<String>> {
    let columns = results.show.columns.iter();
    columns
        .map(|(_, template)| fill(template, results, case))
        .collect()
}

/// A case in one line, for progress: each cell behind its head.
pub fn one_line(results: &Results, case: &Case) -> Result<String> {
    let heads = results.show.columns.iter().map(|(head, _)| head);
    let named = heads
        .zip(cells(results, case)?)
        .filter(|(_, cell)| cell != "-");
    let named: Vec<String> = named.map(|(head, cell)| format!("{head} {cell}")).collect();
    let flaw = case.flaw.as_ref();
    let flaw = flaw.map_or(String::new(), |flaw| {
        format!("\n      ! THIS ROUND DOES NOT COUNT: {flaw}")
    });
    Ok(named.join(", ") + &flaw)
}

/// All that was measured, and the claims.
pub fn render(results: &Results) -> Result<String> {
    let mut text = format!("{}\n", results.machine);
    for (name, fact) in &results.facts {
        let fact = fact
            .as_str()
            .map_or_else(|| fact.to_string(), str::to_owned);
        text += &format!("{}\n", wrapped(WIDTH, &format!("{name}: {fact}")));
    }
    if let Some(note) = &results.note {
        text += &format!("{}\n", wrapped(WIDTH, note));
    }
    text += &format!("\n{}", case_tables(results)?);
    for case in &results.cases {
        let of = label(&case.parameters);
        if let (Some(flaw), 1..) = (&case.flaw, case.flawed) {
            text += &format!(
                "! {} of {} rounds of {of} do not count: {flaw}\n",
                case.flawed, case.rounds
            );
        }
        text += &case
            .notes
            .iter()
            .map(|note| format!("{of}: {note}\n"))
            .collect::<String>();
    }
    Ok(text + &claims(results))
}

/// Cases with different parameters have a table each: theirs are other columns.
fn case_tables(results: &Results) -> Result<String> {
    let names = |case: &Case| case.parameters.keys().cloned().collect::<Vec<_>>();
    let mut text = String::new();
    let mut cases = results.cases.iter().peekable();
    while let Some(first) = cases.next() {
        let mut of_table = vec![first];
        while let Some(next) = cases.next_if(|next| names(next) == names(first)) {
            of_table.push(next);
        }
        let rows = of_table.into_iter().map(|case| cells(results, case));
        let rows: Vec<Vec<String>> = rows.collect::<Result<_>>()?;
        let used = |column: &usize| rows.iter().any(|row| row[*column] != "-");
        let used: Vec<usize> = (0..results.show.columns.len()).filter(used).collect();
        let pick = |row: &Vec<String>| used.iter().map(|&column| row[column].clone()).collect();
        let head: Vec<String> = used
            .iter()
            .map(|&column| results.show.columns[column].0.clone())
            .collect();
        text += &format!(
            "{}\n",
            table(&head, &rows.iter().map(pick).collect::<Vec<Vec<String>>>())
        );
    }
    Ok(text)
}

fn claims(results: &Results) -> String {
    if results.claims.is_empty() {
        return String::new();
    }
    let head = ["claim", "of", "median", "quartiles", ""].map(str::to_owned);
    let row = |claim: &crate::run::results::Claim| {
        let number = |value: f64| super::format::significant(value, 3);
        let quartiles = claim.value.map(|value| {
            format!(
                "{}–{}",
                number(value.quartiles.0),
                number(value.quartiles.1)
            )
        });
        vec![
            claim.claim.clone(),
            label(&claim.parameters),
            claim.value.map_or("-".into(), |value| number(value.median)),
            quartiles.unwrap_or("-".into()),
            match (claim.verdict, &claim.because) {
                (Verdict::Held, _) => "held".into(),
                (Verdict::NotHeld, _) => "NOT HELD".into(),
                (Verdict::NotJudged, because) => {
                    format!("not judged: {}", because.as_deref().unwrap_or_default())
                }
            },
        ]
    };
    let rows: Vec<Vec<String>> = results.claims.iter().map(row).collect();
    format!("What is claimed:\n{}", table(&head, &rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_by_characters() {
        let text = table(&["a".into(), "bb".into()], &[vec!["×é".into(), "1".into()]]);
        assert_eq!(text, "a   bb\n×é   1\n");
    }
}
