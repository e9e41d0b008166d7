//! The results as tables for people.

use super::Results;
use super::limits::{Quantity, Verdict};
use super::summary::Summary;
use crate::proxy::contender::Contender;
use crate::report::{count, table};

const HEAD: [&str; 12] = [
    "case",
    "contender",
    "CPU µs/reply",
    "quartiles",
    "own code",
    "/ weir",
    "/ copy",
    "core busy",
    "system µs",
    "replies/s",
    "p50 µs",
    "p99 µs",
];

/// "kernel": the ratio if weir's own code took no time.
const VERDICT_HEAD: [&str; 8] = [
    "case",
    "what",
    "against",
    "ratio",
    "quartiles",
    "kernel",
    "limit",
    "",
];

/// All that was measured, and what it says about weir.
pub fn tables(results: &Results) -> String {
    let mut text = format!("{}\n{}\n\n", results.machine, results.load);
    let rows: Vec<Vec<String>> = results
        .summaries
        .iter()
        .map(|summary| cells(summary, &results.summaries))
        .collect();
    text += &table(&HEAD, &rows);
    if !results.verdicts.is_empty() {
        text += "\nWhat weir must hold:\n";
        text += &table(
            &VERDICT_HEAD,
            &results
                .verdicts
                .iter()
                .map(verdict_cells)
                .collect::<Vec<_>>(),
        );
    }
    text
}

fn cells(summary: &Summary, all: &[Summary]) -> Vec<String> {
    let row = &summary.median;
    let over = |reference: Contender| {
        let found = all
            .iter()
            .find(|other| other.contender == reference && other.case == summary.case);
        found.map_or("-".into(), |other| {
            format!("{:.2}", summary.ratio(other, |row| row.cpu_us).median)
        })
    };
    let cpu_us = summary.cpu_us;
    vec![
        summary.case.to_string(),
        summary.contender.name().into(),
        micros(cpu_us.median),
        format!("{}–{}", micros(cpu_us.low), micros(cpu_us.high)),
        micros(row.user_us),
        over(Contender::Weir),
        over(Contender::Copy),
        format!("{:.0} %", row.busy * 100.0),
        micros(row.system_us),
        count(row.replies_per_s),
        count(row.p50_us),
        count(row.p99_us),
    ]
}

fn verdict_cells(verdict: &Verdict) -> Vec<String> {
    let what = match verdict.limit.quantity {
        Quantity::Cpu => "CPU",
        Quantity::P50 => "p50",
        Quantity::P99 => "p99",
    };
    let word = if verdict.held { "held" } else { "NOT HELD" };
    vec![
        verdict.case.to_string(),
        what.into(),
        verdict.contender.name().into(),
        format!("{:.2}", verdict.ratio.median),
        format!("{:.2}–{:.2}", verdict.ratio.low, verdict.ratio.high),
        verdict
            .floor
            .map_or("-".into(), |floor| format!("{floor:.2}")),
        format!("{:.2}", verdict.limit.most),
        word.into(),
    ]
}

/// µs with about three digits.
fn micros(value: f64) -> String {
    if value < 99.95 {
        format!("{value:.1}")
    } else {
        count(value)
    }
}
