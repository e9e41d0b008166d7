//! Verdicts in a terminal, and as JSON.

use std::time::Duration;

use serde_json::json;

use super::clock::in_words;
use super::judge::JudgedPart;
use super::list::{List, Scale};
use super::measured::{Outcome, estimate_s};
use super::report::Report;
use super::verdict::Verdict;
use crate::error::{Context, Result};
use crate::show::format::{WIDTH, wrapped};
use crate::show::table::table;

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// The parts, what answers each, and how long that takes.
pub fn list(list: &List) -> Result<String> {
    let rows = list.parts.iter().map(|part| {
        let answer = match (&part.not_reproduced, &part.nothing_to_compare) {
            (Some(_), _) => Verdict::NotReproduced.words().into(),
            (None, Some(_)) => Verdict::NothingToCompare.words().into(),
            (None, None) => part.runs.join(", "),
        };
        vec![
            part.key.clone(),
            format!("{} {}", part.paper, part.part),
            answer,
        ]
    });
    let parts = table(&words(&["part", "of", "run"]), &rows.collect::<Vec<_>>());
    let mut rows = Vec::new();
    let mut sums = [0.0; 2];
    for name in list.needed() {
        let run = list.run(name)?;
        let times = [
            estimate_s(list, run, Scale::Quick)?,
            estimate_s(list, run, Scale::Full)?,
        ];
        for (sum, time) in sums.iter_mut().zip(times) {
            *sum += time;
        }
        let [quick, full] = times.map(|s| in_words(Duration::from_secs_f64(s)));
        rows.push(vec![name.to_owned(), run.experiment.clone(), quick, full]);
    }
    let [quick, full] = sums.map(|s| in_words(Duration::from_secs_f64(s)));
    rows.push(vec!["all".into(), String::new(), quick, full]);
    let runs = table(&words(&["run", "experiment", "--quick", "--full"]), &rows);
    Ok(format!("{parts}\n{runs}"))
}

/// The same as JSON.
pub fn list_as_json(list: &List) -> Result<String> {
    let mut runs = Vec::new();
    for name in list.needed() {
        let run = list.run(name)?;
        runs.push(json!({
            "run": name,
            "experiment": run.experiment,
            "quick": run.quick,
            "quick_s": estimate_s(list, run, Scale::Quick)?.round(),
            "full": run.full,
            "full_s": estimate_s(list, run, Scale::Full)?.round(),
            "stored": run.stored,
        }));
    }
    let parts = list.parts.iter().map(|part| {
        json!({
            "key": part.key,
            "paper": part.paper,
            "part": part.part,
            "says": part.says,
            "runs": part.runs,
            "not_reproduced": part.not_reproduced,
            "nothing_to_compare": part.nothing_to_compare,
        })
    });
    let value = json!({ "parts": parts.collect::<Vec<_>>(), "runs": runs });
    let text = serde_json::to_string_pretty(&value).context("cannot write JSON")?;
    Ok(text + "\n")
}

/// All verdicts with their numbers, and where they were measured.
pub fn as_json(report: &Report) -> Result<String> {
    let run = |(name, outcome): (&String, &Outcome)| {
        let value = match outcome {
            Outcome::Measured(measured) => {
                let results = &measured.results;
                json!({
                    "command": results.command,
                    "commit": results.commit,
                    "machine": results.machine,
                    "started": results.started,
                    "seed": results.seed,
                })
            }
            Outcome::Failed(why) => json!({ "failed": why }),
            Outcome::NotPossible(why) => json!({ "not_possible": why }),
            Outcome::NotMeasured(why) => json!({ "not_measured": why }),
        };
        (name.clone(), value)
    };
    let counts = report.counts().into_iter().map(|(verdict, count)| {
        let name = serde_json::to_value(verdict).unwrap_or_default();
        (name.as_str().unwrap_or_default().to_owned(), json!(count))
    });
    let value = json!({
        "kind": report.kind,
        "counts": counts.collect::<serde_json::Map<_, _>>(),
        "parts": report.parts,
        "runs": report.outcomes.iter().map(run).collect::<serde_json::Map<_, _>>(),
    });
    let text = serde_json::to_string_pretty(&value).context("cannot write JSON")?;
    Ok(text + "\n")
}

/// A line for each part and for each of its numbers, and the counts.
pub fn summary(report: &Report) -> String {
    let mut text = String::new();
    for paper in &report.list.papers {
        text += &format!(
            "{}\n",
            wrapped(WIDTH, &format!("{}: {}", paper.key, paper.title))
        );
        for part in report.parts.iter().filter(|part| part.paper == paper.key) {
            text += &of_part(part);
        }
        text += "\n";
    }
    text + &format!("{}\n", wrapped(WIDTH, &counts(report)))
}

fn of_part(part: &JudgedPart) -> String {
    let mut text = format!("  {:<10} {}\n", part.part, part.in_words());
    let is_told = matches!(part.verdict, Verdict::Failed | Verdict::NotPossible);
    if let (true, Some(why)) = (is_told, &part.why) {
        text += &indented(why);
    }
    for figure in part.figures.iter().filter(|figure| figure.value.is_some()) {
        let certainty = &figure.certainty_in_words;
        text += &indented(&format!(
            "{}: {} (paper: {}; {certainty}): {}",
            figure.what,
            figure.ours,
            figure.paper,
            figure.verdict.words()
        ));
    }
    text
}

fn indented(words: &str) -> String {
    const INDENT: usize = 13;
    let lines = wrapped(WIDTH - INDENT, words);
    let lines = lines.lines().map(|line| format!("{:INDENT$}{line}\n", ""));
    lines.collect()
}

/// How many parts have each verdict.
fn counts(report: &Report) -> String {
    let counts = report.counts().into_iter();
    let counts = counts.map(|(verdict, count)| format!("{}: {count}", verdict.words()));
    let parts = report.parts.len();
    format!("{parts} parts. {}", counts.collect::<Vec<_>>().join(", "))
}
