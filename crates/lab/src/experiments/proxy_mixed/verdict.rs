//! What RR02 and the plan claim of hits and passed transfers together, and whether it held.

use serde::Serialize;

use super::point::{Pace, Side, Step, Summary};
use crate::experiments::proxy_bench::{Size, Spread};
use crate::proxy::contender::Contender;

/// A claim about growing latencies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Claim {
    /// RR02, Figure 18: hits slow passed transfers less where these are spliced than where they are copied.
    /// The number is the growth of the engine's latency less that of the copying engine's, in µs.
    SlowedLess,
    /// The plan: neither side's latency grows more than the other's, in paces that take the same share of the
    /// core. The number is the growth of the hits' latency over that of the passed transfers', in times.
    Fair,
}

/// Whether a claim held at one amount.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Verdict {
    /// What is claimed.
    pub claim: Claim,
    /// Of whom.
    pub contender: Contender,
    /// How clients asked.
    pub pace: Pace,
    /// Bytes of each body.
    #[serde(rename = "bytes")]
    pub size: Size,
    /// What was added; the unit is the pace's.
    pub added: f64,
    /// See the claim; round by round.
    pub value: Spread,
    /// Whether it held.
    pub held: bool,
}

/// A growth that is this much larger than another counts as larger: less is within the noise of the quartiles.
const FAIR: f64 = 1.25;

/// Checks every claim whose lines were measured.
pub fn check(summaries: &[Summary]) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for passed in summaries {
        if passed.line.watched != Side::Passed {
            continue;
        }
        let find = |contender, watched| {
            summaries.iter().find(|other| {
                let (one, other) = (&passed.line, &other.line);
                (other.pace, other.size) == (one.pace, one.size)
                    && (other.contender, other.watched) == (contender, watched)
            })
        };
        let copy = find(Contender::Copy, Side::Passed);
        if passed.line.contender != Contender::Copy {
            verdicts.extend(copy.into_iter().flat_map(|copy| slowed_less(passed, copy)));
        }
        let hits = find(passed.line.contender, Side::Hits);
        if passed.line.pace == Pace::Paced {
            verdicts.extend(hits.into_iter().flat_map(|hits| fair(hits, passed)));
        }
    }
    verdicts
}

fn slowed_less(own: &Summary, copy: &Summary) -> Vec<Verdict> {
    let grown = |step: &Step, alone: &Step, round: usize| {
        step.rounds[round].p50_us - alone.rounds[round].p50_us
    };
    let steps = own.steps.iter().zip(&copy.steps).skip(1);
    let verdicts = steps.map(|(step, of_copy)| {
        let rounds = 0..step.rounds.len().min(of_copy.rounds.len());
        let value = Spread::of(rounds.map(|round| {
            grown(step, &own.steps[0], round) - grown(of_copy, &copy.steps[0], round)
        }));
        verdict(Claim::SlowedLess, own, step, value, value.median <= 0.0)
    });
    verdicts.collect()
}

fn fair(hits: &Summary, passed: &Summary) -> Vec<Verdict> {
    let steps = hits.steps.iter().zip(&passed.steps).skip(1);
    let verdicts = steps.map(|(hit, pass)| {
        let rounds = 0..hit.rounds.len().min(pass.rounds.len());
        let factor = |step: &Step, alone: &Step, round: usize| {
            step.rounds[round].p50_us / alone.rounds[round].p50_us
        };
        let value = Spread::of(rounds.map(|round| {
            factor(hit, &hits.steps[0], round) / factor(pass, &passed.steps[0], round)
        }));
        let held = (1.0 / FAIR..=FAIR).contains(&value.median);
        verdict(Claim::Fair, passed, pass, value, held)
    });
    verdicts.collect()
}

fn verdict(claim: Claim, of: &Summary, step: &Step, value: Spread, held: bool) -> Verdict {
    Verdict {
        claim,
        contender: of.line.contender,
        pace: of.line.pace,
        size: of.line.size,
        added: step.added,
        value,
        held,
    }
}
