//! Verdicts: whether what a paper reports holds, from its number, ours, and limits that were written down before.

use serde::Serialize;

use super::list::{Figure, List, Paper, Part};
use super::measured::{Measured, Outcome, Outcomes};
use super::verdict::{Limits, Verdict};
use crate::error::Result;
use crate::run::statistics::{Spread, interval};
use crate::show::template::{formatted, quantity};

/// How far a number is from certain.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Certainty {
    /// Confidence interval of the median.
    Interval {
        /// Confidence, 0 to 1.
        confidence: f64,
        /// Lower end.
        low: f64,
        /// Upper end.
        high: f64,
        /// Rounds that count.
        rounds: usize,
    },
    /// Least and most: too few rounds for an interval.
    Range {
        /// Least.
        low: f64,
        /// Most.
        high: f64,
        /// Rounds that count.
        rounds: usize,
    },
    /// One round has no interval.
    OneRound,
    /// A quotient of results that keep no single rounds.
    RoundsNotKept,
}

/// A figure with its number.
#[derive(Debug, Clone, Serialize)]
pub struct JudgedFigure {
    /// What it is.
    pub what: String,
    /// The paper's number.
    pub paper: String,
    /// Ours: the median over the rounds. `None` if it was not measured.
    pub value: Option<f64>,
    /// Ours, for people.
    pub ours: String,
    /// How certain it is.
    pub certainty: Option<Certainty>,
    /// The same, for people.
    pub certainty_in_words: String,
    /// The limits, for people.
    pub limits: String,
    /// What it comes to.
    pub verdict: Verdict,
    /// Other verdicts that values within the interval or range would have.
    pub also_possible: Vec<Verdict>,
    /// Why it was not judged.
    pub because: Option<String>,
}

/// A part with its figures.
#[derive(Debug, Clone, Serialize)]
pub struct JudgedPart {
    /// Its key.
    pub key: String,
    /// The paper's key.
    pub paper: String,
    /// Its name in the paper.
    pub part: String,
    /// What the paper says.
    pub says: String,
    /// What it comes to.
    pub verdict: Verdict,
    /// Why there is no verdict, or what is known of the causes of a difference.
    pub why: Option<String>,
    /// Page of the repository that has more.
    pub see: Option<String>,
    /// The numbers.
    pub figures: Vec<JudgedFigure>,
    /// Runs whose results it has.
    pub runs: Vec<String>,
}

impl JudgedPart {
    /// By how many of its numbers it was judged, if some have no result: a verdict of two of six is not one of all.
    pub fn judged_by(&self) -> Option<String> {
        let is_judged = |figure: &&JudgedFigure| figure.verdict.is_judged();
        let judged = self.figures.iter().filter(is_judged).count();
        let all = self.figures.len();
        (0 < judged && judged < all).then(|| format!("by {judged} of {all} numbers"))
    }

    /// The verdict in words: *holds, by 2 of 6 numbers*.
    pub fn in_words(&self) -> String {
        let by = self.judged_by();
        let by = by.map_or(String::new(), |by| format!(", {by}"));
        format!("{}{by}", self.verdict.words())
    }

    /// A number to show for all: one with the part's own verdict if there is one, else the first that was measured, if any.
    pub fn telling(&self) -> Option<&JudgedFigure> {
        let mut measured = self.figures.iter().filter(|figure| figure.value.is_some());
        let first = measured.clone().next();
        measured
            .find(|figure| figure.verdict == self.verdict)
            .or(first)
    }
}

/// Judges all parts.
pub fn judge(list: &List, outcomes: &Outcomes) -> Result<Vec<JudgedPart>> {
    let parts = list.parts.iter();
    parts
        .map(|part| judge_part(part, list.paper(part)?, outcomes))
        .collect()
}

fn judge_part(part: &Part, paper: &Paper, outcomes: &Outcomes) -> Result<JudgedPart> {
    let mut figures = Vec::new();
    for figure in &part.figures {
        let outcome = part.run_of(figure).and_then(|run| outcomes.get(run));
        figures.push(judge_figure(figure, paper, outcome)?);
    }
    let verdicts: Vec<Verdict> = figures.iter().map(|figure| figure.verdict).collect();
    let (verdict, instead) = match (&part.not_reproduced, &part.nothing_to_compare) {
        (Some(why), _) => (Verdict::NotReproduced, Some(why.clone())),
        (None, Some(why)) => (Verdict::NothingToCompare, Some(why.clone())),
        (None, None) => match Verdict::of_all(&verdicts) {
            Some(verdict) => (verdict, None),
            None => unjudged(&figures),
        },
    };
    let measured = part.runs.iter();
    let measured = measured.filter(|run| matches!(outcomes.get(*run), Some(Outcome::Measured(_))));
    Ok(JudgedPart {
        key: part.key.clone(),
        paper: part.paper.clone(),
        part: part.part.clone(),
        says: part.says.clone(),
        verdict,
        why: instead.or_else(|| part.why.clone()),
        see: part.see.clone(),
        figures,
        runs: measured.cloned().collect(),
    })
}

/// Of a part of which no figure was judged: what the gravest is, and why.
fn unjudged(figures: &[JudgedFigure]) -> (Verdict, Option<String>) {
    let gravest = [
        Verdict::Failed,
        Verdict::NotPossible,
        Verdict::NotJudged,
        Verdict::NotMeasured,
    ];
    let of = |verdict| figures.iter().find(|figure| figure.verdict == verdict);
    let found = gravest.into_iter().find_map(of);
    found.map_or((Verdict::NotMeasured, None), |figure| {
        (figure.verdict, figure.because.clone())
    })
}

fn judge_figure(figure: &Figure, paper: &Paper, outcome: Option<&Outcome>) -> Result<JudgedFigure> {
    let mut judged = JudgedFigure {
        what: figure.what.clone(),
        paper: figure.paper.clone(),
        value: None,
        ours: "–".into(),
        certainty: None,
        certainty_in_words: String::new(),
        limits: figure.limits().to_string(),
        verdict: Verdict::NotMeasured,
        also_possible: Vec::new(),
        because: None,
    };
    let measured = match outcome {
        Some(Outcome::Measured(measured)) => measured,
        Some(Outcome::Failed(why)) => return Ok(judged.without(Verdict::Failed, why)),
        Some(Outcome::NotPossible(why)) => return Ok(judged.without(Verdict::NotPossible, why)),
        Some(Outcome::NotMeasured(why)) => return Ok(judged.without(Verdict::NotMeasured, why)),
        None => return Ok(judged.without(Verdict::NotMeasured, "it was not chosen")),
    };
    let (reference, format) = figure.reference();
    let Some(number) = number(reference, measured, paper.confidence)? else {
        return Ok(judged.without(Verdict::NotMeasured, "these results do not have the case"));
    };
    let text = |value: f64| formatted(value, format);
    judged.value = Some(number.value);
    judged.ours = text(number.value)?;
    judged.certainty_in_words = in_words(number.certainty, &text)?;
    judged.certainty = Some(number.certainty);
    if let Some(flaw) = number.flaw {
        return Ok(judged.without(Verdict::NotJudged, &format!("no round counts: {flaw}")));
    }
    judged.verdict = figure.limits().verdict(number.value);
    judged.also_possible = also_possible(figure.limits(), judged.verdict, number.certainty);
    Ok(judged)
}

impl JudgedFigure {
    fn without(self, verdict: Verdict, why: &str) -> JudgedFigure {
        JudgedFigure {
            verdict,
            because: Some(why.to_owned()),
            ..self
        }
    }
}

/// A value over the rounds.
struct Number {
    value: f64,
    certainty: Certainty,
    flaw: Option<String>,
}

/// The median over the rounds, if they were kept; else what the summary has. `None` if it was not measured.
fn number(reference: &str, measured: &Measured, confidence: f64) -> Result<Option<Number>> {
    let Some(summary) = quantity(reference, &measured.results)? else {
        return Ok(None);
    };
    let mut values = Vec::new();
    for round in &measured.rounds {
        let of_round = quantity(reference, round)?;
        values.extend(of_round.filter(|one| one.flaw.is_none()));
    }
    let of_rounds = Spread::of(values.iter().map(|one| one.spread.median));
    Ok(Some(match of_rounds {
        Some(spread) => {
            let values = values.iter().map(|one| one.spread.median);
            Number {
                value: spread.median,
                certainty: certainty(&spread, interval(values, confidence), confidence),
                flaw: None,
            }
        }
        None => Number {
            value: summary.spread.median,
            certainty: match summary.quotient_of {
                Some(2..) => Certainty::RoundsNotKept,
                Some(_) => Certainty::OneRound,
                // A summary keeps the interval of 95 % only, whatever the paper's is.
                None => certainty(&summary.spread, summary.spread.ci95, 0.95),
            },
            flaw: summary.flaw,
        },
    }))
}

fn certainty(spread: &Spread, interval: Option<(f64, f64)>, confidence: f64) -> Certainty {
    let rounds = spread.n;
    match (interval, spread.range) {
        (Some((low, high)), _) => Certainty::Interval {
            confidence,
            low,
            high,
            rounds,
        },
        (None, (low, high)) if rounds > 1 => Certainty::Range { low, high, rounds },
        (None, _) => Certainty::OneRound,
    }
}

fn in_words(certainty: Certainty, text: &dyn Fn(f64) -> Result<String>) -> Result<String> {
    Ok(match certainty {
        Certainty::Interval {
            confidence,
            low,
            high,
            rounds,
        } => format!(
            "{} to {}: {:.0} % interval of {rounds} rounds",
            text(low)?,
            text(high)?,
            confidence * 100.0
        ),
        Certainty::Range { low, high, rounds } => format!(
            "{} to {} in {rounds} rounds, too few for an interval",
            text(low)?,
            text(high)?
        ),
        Certainty::OneRound => "no interval: one round".into(),
        Certainty::RoundsNotKept => "no interval: single rounds are not kept".into(),
    })
}

fn also_possible(limits: Limits, verdict: Verdict, certainty: Certainty) -> Vec<Verdict> {
    let (Certainty::Interval { low, high, .. } | Certainty::Range { low, high, .. }) = certainty
    else {
        return Vec::new();
    };
    let mut others: Vec<Verdict> = [low, high].map(|end| limits.verdict(end)).into();
    others.retain(|other| *other != verdict);
    others.sort();
    others.dedup();
    others
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
