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
    /// The same in µs, as RR02 measures growth: the growth of the hits' latency less that of the passed
    /// transfers'. A hit takes half as long or less, so the same wait makes it more times as long. It holds where the
    /// quartiles are on both sides of zero: the rounds do not agree on whose latency grew more.
    FairInTime,
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
    let compared = compare(own, copy, |own, copy| own.in_us() - copy.in_us());
    let held = |value: Spread| value.median <= 0.0;
    verdicts(Claim::SlowedLess, own, compared, held)
}

fn fair(hits: &Summary, passed: &Summary) -> Vec<Verdict> {
    let times = compare(hits, passed, |hits, passed| hits.times() / passed.times());
    let us = compare(hits, passed, |hits, passed| hits.in_us() - passed.in_us());
    let is_fair = |value: Spread| (1.0 / FAIR..=FAIR).contains(&value.median);
    let is_either = |value: Spread| (value.low..=value.high).contains(&0.0);
    let mut all = verdicts(Claim::Fair, passed, times, is_fair);
    all.extend(verdicts(Claim::FairInTime, passed, us, is_either));
    all
}

/// What has become of a median latency in one round.
struct Growth {
    alone_us: f64,
    with_us: f64,
}

impl Growth {
    fn in_us(&self) -> f64 {
        self.with_us - self.alone_us
    }

    fn times(&self) -> f64 {
        self.with_us / self.alone_us
    }
}

/// Two lines' growths against each other, for each amount but nothing, round by round.
fn compare(
    one: &Summary,
    other: &Summary,
    value: impl Fn(Growth, Growth) -> f64,
) -> Vec<(f64, Spread)> {
    let growth = |summary: &Summary, step: &Step, round: usize| Growth {
        alone_us: summary.steps[0].rounds[round].p50_us,
        with_us: step.rounds[round].p50_us,
    };
    let steps = one.steps.iter().zip(&other.steps).skip(1);
    let compared = steps.map(|(step, of_other)| {
        let rounds = 0..step.rounds.len().min(of_other.rounds.len());
        let values =
            rounds.map(|round| value(growth(one, step, round), growth(other, of_other, round)));
        (step.added, Spread::of(values))
    });
    compared.collect()
}

fn verdicts(
    claim: Claim,
    of: &Summary,
    compared: Vec<(f64, Spread)>,
    held: impl Fn(Spread) -> bool,
) -> Vec<Verdict> {
    let verdict = |(added, value)| Verdict {
        claim,
        contender: of.line.contender,
        pace: of.line.pace,
        size: of.line.size,
        added,
        value,
        held: held(value),
    };
    compared.into_iter().map(verdict).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::proxy_mixed::{Line, Row};

    /// A line whose latency alone is `alone`, and in each round grows by one of `grows`, in µs.
    fn summary(watched: Side, alone: f64, grows: &[f64]) -> Summary {
        let line = Line {
            watched,
            pace: Pace::Paced,
            size: Size(1024),
            contender: Contender::Weir,
        };
        let rounds = grows
            .iter()
            .map(|grow| vec![Row::of(0.0, alone), Row::of(0.3, alone + grow)]);
        Summary::of(line, &rounds.collect::<Vec<_>>())
    }

    fn fairness(hits: &[f64], passed: &[f64]) -> [(bool, f64); 2] {
        let summaries = [
            summary(Side::Hits, 100.0, hits),
            summary(Side::Passed, 200.0, passed),
        ];
        let verdicts = check(&summaries);
        [Claim::Fair, Claim::FairInTime].map(|claim| {
            let of_claim = verdicts.iter().find(|verdict| verdict.claim == claim);
            let verdict = of_claim.expect("both sides were measured");
            (verdict.held, verdict.value.median)
        })
    }

    #[test]
    fn the_same_wait_is_fair_in_time_and_more_times_of_what_is_short() {
        let grows = [100.0; 4];
        let [(fair, times), (fair_in_time, us)] = fairness(&grows, &grows);
        assert!((times - 2.0 / 1.5).abs() < 1e-9);
        assert_eq!((fair, fair_in_time, us), (false, true, 0.0));
    }

    #[test]
    fn who_grows_more_in_most_rounds_is_not_treated_fairly() {
        let (more, less) = ([40.0, 42.0, 38.0, 41.0], [20.0; 4]);
        assert!(!fairness(&more, &less)[1].0);
        assert!(!fairness(&less, &more)[1].0);
        let (one, other) = ([10.0, 30.0, 10.0, 30.0], [20.0; 4]);
        assert!(fairness(&one, &other)[1].0);
    }
}
