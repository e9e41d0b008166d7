//! Verdicts of the stored results, for a page of the repository.

use std::path::Path;

use super::command::stored;
use super::judge::JudgedPart;
use super::list::List;
use super::report::Report;
use super::verdict::Verdict;
use crate::error::Result;

/// A table of one paper's parts with one number each, and a line with the parts that report no result.
pub fn of_stored(experiments: &Path, paper: &str) -> Result<String> {
    let mut list = List::committed()?;
    list.keep_only(&[paper.to_owned()])?;
    let outcomes = stored(&list, experiments)?;
    let report = Report::of("stored", list, outcomes)?;
    let (without, parts): (Vec<_>, Vec<_>) = report
        .parts
        .iter()
        .partition(|part| part.verdict == Verdict::NothingToCompare);
    let mut text = String::from("| part | verdict | one of its numbers | the paper | here |\n");
    text += "|---|---|---|---|---|\n";
    text += &parts.into_iter().map(row).collect::<String>();
    let without: Vec<&str> = without.iter().map(|part| part.part.as_str()).collect();
    if !without.is_empty() {
        text += &format!("\nNothing to compare: {}.\n", without.join(", "));
    }
    Ok(text)
}

fn row(part: &JudgedPart) -> String {
    let [what, paper, here] = match part.telling() {
        Some(figure) => [&figure.what, &figure.paper, &figure.ours].map(String::as_str),
        None => [part.why.as_deref().unwrap_or_default(), "", ""],
    };
    let cells = [part.part.as_str(), &part.in_words(), what, paper, here];
    let cell = |cell: &str| match cell {
        "" => " |".to_owned(),
        cell => format!(" {cell} |"),
    };
    format!("|{}\n", cells.map(cell).concat())
}
