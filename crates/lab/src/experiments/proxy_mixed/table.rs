//! The results as tables for people.

use super::Results;
use super::point::{Step, Summary};
use super::verdict::{Claim, Verdict};
use crate::experiments::proxy_bench::Spread;
use crate::report::{count, table};

const HEAD: [&str; 11] = [
    "pace",
    "size",
    "watched",
    "engine",
    "added",
    "p50 µs",
    "quartiles",
    "growth µs",
    "times",
    "p99 µs",
    "busy, lab",
];

/// All that was measured, and what it says about the claims.
pub fn tables(results: &Results) -> String {
    let mut text = format!("{}\n{}\n\n", results.machine, results.load);
    let rows: Vec<Vec<String>> = results
        .summaries
        .iter()
        .flat_map(|summary| summary.steps.iter().map(|step| cells(summary, step)))
        .collect();
    text += &table(&HEAD, &rows);
    if !results.verdicts.is_empty() {
        text += "\nWhat is claimed:\n";
        let rows: Vec<Vec<String>> = results.verdicts.iter().map(verdict_cells).collect();
        let head = [
            "claim",
            "engine",
            "pace",
            "size",
            "added",
            "value",
            "quartiles",
            "",
        ];
        text += &table(&head, &rows);
    }
    text
}

fn quartiles(spread: Spread) -> String {
    format!("{}–{}", count(spread.low), count(spread.high))
}

fn cells(summary: &Summary, step: &Step) -> Vec<String> {
    let line = &summary.line;
    let percent = |share: Spread| format!("{:.0} %", share.median * 100.0);
    vec![
        line.pace.name().into(),
        line.size.to_string(),
        line.watched.name().into(),
        line.contender.name().into(),
        line.pace.amount(step.added),
        count(step.p50_us.median),
        quartiles(step.p50_us),
        format!("{:+.0}", step.growth_us.median),
        format!("{:.2}", step.growth.median),
        count(step.p99_us.median),
        format!("{}, {}", percent(step.busy), percent(step.lab_busy)),
    ]
}

fn verdict_cells(verdict: &Verdict) -> Vec<String> {
    let value = verdict.value;
    let values = [value.median, value.low, value.high];
    let in_us = || values.map(|us| format!("{us:+.0}"));
    let (claim, [median, low, high]) = match verdict.claim {
        Claim::SlowedLess => ("slowed less than copied, µs", in_us()),
        Claim::FairInTime => ("hits' growth less passed's, µs", in_us()),
        Claim::Fair => (
            "hits' growth over passed's",
            values.map(|times| format!("{times:.2}")),
        ),
    };
    vec![
        claim.into(),
        verdict.contender.name().into(),
        verdict.pace.name().into(),
        verdict.size.to_string(),
        verdict.pace.amount(verdict.added),
        median,
        format!("{low} to {high}"),
        if verdict.held { "held" } else { "NOT HELD" }.into(),
    ]
}
