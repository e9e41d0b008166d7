//! A run for people and for programs.

use std::collections::BTreeMap;

use serde::Serialize;

use super::clients::Outcome;
use super::tally::Step;
use crate::show::format::{count, ms, significant};
use crate::show::table::table;

/// Share of late clients above which the figures say more about this machine than about the server.
const MOST_LATE: f64 = 0.01;

/// What `--json` prints.
#[derive(Debug, Serialize)]
pub struct Report {
    target: String,
    seconds_per_step: f64,
    patience_s: f64,
    steps: Vec<StepReport>,
    /// Share of the clients that began more than 10 ms after they were due.
    late_share: f64,
    interrupted: bool,
    /// Why the figures may be wrong.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    flaws: Vec<String>,
}

#[derive(Debug, Serialize)]
struct StepReport {
    rate_per_s: f64,
    begun: u64,
    /// Whole replies that came in the step's time, over that time.
    served_per_s: f64,
    served: u64,
    refused: u64,
    reset: u64,
    cut_short: u64,
    timed_out: u64,
    unreachable: u64,
    not_begun: u64,
    errors: BTreeMap<u16, u64>,
    /// From due to the end of the reply, of the served; absent if nobody was.
    #[serde(skip_serializing_if = "Option::is_none")]
    response_ms: Option<Quantiles>,
    /// From due to the RST, of the refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    refusal_p99_ms: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Quantiles {
    p50: f64,
    p90: f64,
    p99: f64,
    max: f64,
}

impl Report {
    /// Of a run at this target.
    pub fn of(target: String, patience_s: f64, outcome: &Outcome) -> Report {
        let steps = &outcome.tally.steps;
        Report {
            target,
            seconds_per_step: steps.first().map_or(0.0, |step| step.length.as_secs_f64()),
            patience_s,
            steps: steps.iter().map(step_report).collect(),
            late_share: outcome.late_share,
            interrupted: outcome.interrupted,
            flaws: flaws(outcome),
        }
    }

    /// A table, and what a reader should know of it.
    pub fn text(&self, outcome: &Outcome) -> String {
        let head = [
            "rate/s",
            "clients",
            "served/s",
            "served",
            "refused",
            "reset",
            "timed out",
            "other",
            "p50 ms",
            "p90",
            "p99",
            "longest",
        ];
        let rows: Vec<Vec<String>> = outcome.tally.steps.iter().map(row).collect();
        let mut text = table(&head.map(str::to_owned), &rows);
        for line in self.flaws.iter().cloned().chain(others(outcome)) {
            text += &format!("{line}\n");
        }
        text
    }
}

fn step_report(step: &Step) -> StepReport {
    let at = |share| step.response_ms(share);
    let response_ms = at(0.5).zip(at(0.9)).zip(at(0.99)).zip(at(1.0));
    let refusal_us = step.refusal_us.value_at_quantile(0.99);
    StepReport {
        rate_per_s: step.rate_per_s,
        begun: step.begun,
        served_per_s: step.served_in_time as f64 / step.length.as_secs_f64(),
        served: step.served,
        refused: step.refused,
        reset: step.reset,
        cut_short: step.cut_short,
        timed_out: step.timed_out,
        unreachable: step.unreachable,
        not_begun: step.not_begun,
        errors: step.errors.clone(),
        response_ms: response_ms.map(|(((p50, p90), p99), max)| Quantiles { p50, p90, p99, max }),
        refusal_p99_ms: (step.refused > 0).then_some(refusal_us as f64 / 1e3),
    }
}

fn row(step: &Step) -> Vec<String> {
    let share = |count| match count {
        0 => "0".to_owned(),
        _ => format!("{:.1} %", step.share(count) * 100.0),
    };
    let at = |share| step.response_ms(share).map_or("-".to_owned(), ms);
    let other = step.error_replies() + step.cut_short + step.unreachable;
    vec![
        significant(step.rate_per_s, 3),
        count(step.begun as f64),
        significant(step.served_in_time as f64 / step.length.as_secs_f64(), 3),
        share(step.served),
        share(step.refused),
        share(step.reset),
        share(step.timed_out),
        share(other),
        at(0.5),
        at(0.9),
        at(0.99),
        at(1.0),
    ]
}

/// What the column `other` is made of.
fn others(outcome: &Outcome) -> Vec<String> {
    let mut all: BTreeMap<String, u64> = BTreeMap::new();
    for step in &outcome.tally.steps {
        for (status, count) in &step.errors {
            *all.entry(format!("replies with status {status}"))
                .or_default() += count;
        }
        *all.entry("cut short before the end of the reply".to_owned())
            .or_default() += step.cut_short;
        *all.entry("without a way to the server".to_owned())
            .or_default() += step.unreachable;
    }
    let seen = all.into_iter().filter(|(_, count)| *count > 0);
    seen.map(|(what, count)| format!("other: {count} {what}"))
        .collect()
}

fn flaws(outcome: &Outcome) -> Vec<String> {
    let mut flaws = Vec::new();
    if outcome.late_share > MOST_LATE {
        flaws.push(format!(
            "this machine was late: {:.1} % of the clients began more than 10 ms after they were due",
            outcome.late_share * 100.0
        ));
    }
    let not_begun: u64 = outcome.tally.steps.iter().map(|step| step.not_begun).sum();
    if not_begun > 0 {
        flaws.push(format!(
            "this machine had no port or descriptor for {not_begun} clients, which are in no other count: \
             see --from, and ulimit -n"
        ));
    }
    if outcome.interrupted {
        flaws.push("interrupted: clients that waited at that time are in no count".to_owned());
    }
    flaws
}
