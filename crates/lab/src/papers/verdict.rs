//! What a part comes to, and the limits that decide it.

use serde::{Deserialize, Serialize};

/// What a part comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It is as the paper has it.
    Holds,
    /// The direction is there, but less of it, or not everywhere.
    HoldsWeaker,
    /// It is not.
    DoesNotHold,
    /// It was measured, but no round counts, or a figure is missing.
    NotJudged,
    /// The experiment failed.
    Failed,
    /// This machine lacks what the experiment needs.
    NotPossible,
    /// It was not measured this time.
    NotMeasured,
    /// There is no experiment.
    NotReproduced,
    /// The paper reports no result there.
    NothingToCompare,
}

impl Verdict {
    /// All, in the order of the report.
    pub const ALL: [Verdict; 9] = [
        Verdict::Holds,
        Verdict::HoldsWeaker,
        Verdict::DoesNotHold,
        Verdict::NotJudged,
        Verdict::Failed,
        Verdict::NotPossible,
        Verdict::NotMeasured,
        Verdict::NotReproduced,
        Verdict::NothingToCompare,
    ];

    /// For people.
    pub fn words(self) -> &'static str {
        match self {
            Verdict::Holds => "holds",
            Verdict::HoldsWeaker => "holds weaker",
            Verdict::DoesNotHold => "does not hold",
            Verdict::NotJudged => "not judged",
            Verdict::Failed => "failed",
            Verdict::NotPossible => "not possible here",
            Verdict::NotMeasured => "not measured",
            Verdict::NotReproduced => "not reproduced",
            Verdict::NothingToCompare => "nothing to compare",
        }
    }

    /// What the words mean.
    pub fn meaning(self) -> &'static str {
        match self {
            Verdict::Holds => "every number that was measured is within its limits",
            Verdict::HoldsWeaker => {
                "the direction is there, but less of it, or in some numbers only"
            }
            Verdict::DoesNotHold => "more than half of its numbers do not show even the direction",
            Verdict::NotJudged => "of most of its numbers no round counts",
            Verdict::Failed => "the experiment ended with an error",
            Verdict::NotPossible => "this machine lacks what the experiment needs",
            Verdict::NotMeasured => "there are no results of it yet",
            Verdict::NotReproduced => "no experiment answers it",
            Verdict::NothingToCompare => "a diagram or a set-up: the paper reports no result in it",
        }
    }

    /// Whether a number was compared with its limits.
    pub fn is_judged(self) -> bool {
        matches!(
            self,
            Verdict::Holds | Verdict::HoldsWeaker | Verdict::DoesNotHold
        )
    }

    /// Of a part, from those of its figures that were judged; `None` without any, or if of more no round counts. `Holds` if
    /// all hold, `DoesNotHold` if more than half do not, else `HoldsWeaker`.
    pub fn of_all(verdicts: &[Verdict]) -> Option<Verdict> {
        let count = |of| verdicts.iter().filter(|one| **one == of).count();
        let judged = verdicts.iter().filter(|one| one.is_judged()).count();
        match judged {
            0 => None,
            _ if count(Verdict::NotJudged) > judged => None,
            _ if count(Verdict::Holds) == judged => Some(Verdict::Holds),
            _ if 2 * count(Verdict::DoesNotHold) > judged => Some(Verdict::DoesNotHold),
            _ => Some(Verdict::HoldsWeaker),
        }
    }
}

/// From when to when; an end that is left out is open.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Range {
    /// At least.
    pub from: Option<f64>,
    /// At most.
    pub to: Option<f64>,
}

impl Range {
    /// Whether a value is in it, its ends included.
    pub fn has(self, value: f64) -> bool {
        self.from.is_none_or(|from| value >= from) && self.to.is_none_or(|to| value <= to)
    }
}

impl std::fmt::Display for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.from, self.to) {
            (Some(from), Some(to)) => write!(f, "{from} to {to}"),
            (Some(from), None) => write!(f, "at least {from}"),
            (None, Some(to)) => write!(f, "at most {to}"),
            (None, None) => write!(f, "anything"),
        }
    }
}

/// Limits of the verdict of a figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// It holds.
    pub holds: Range,
    /// It does not, but the direction is there.
    pub weaker: Option<Range>,
}

impl Limits {
    /// The verdict of a value.
    pub fn verdict(self, value: f64) -> Verdict {
        match (self.holds.has(value), self.weaker) {
            (true, _) => Verdict::Holds,
            (false, Some(weaker)) if weaker.has(value) => Verdict::HoldsWeaker,
            (false, _) => Verdict::DoesNotHold,
        }
    }
}

impl std::fmt::Display for Limits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "holds: {}", self.holds)?;
        match self.weaker {
            Some(weaker) => write!(f, "; weaker: {weaker}"),
            None => Ok(()),
        }
    }
}
