//! All that the page and the terminal show.

use super::judge::{self, JudgedPart};
use super::list::List;
use super::measured::Outcomes;
use super::verdict::Verdict;
use crate::error::Result;

/// All that a report is made of.
#[derive(Debug)]
pub struct Report {
    /// `quick`, `full` or `stored`.
    pub kind: &'static str,
    /// The papers and parts.
    pub list: List,
    /// What came of the runs.
    pub outcomes: Outcomes,
    /// The parts with their verdicts, in the order of the list.
    pub parts: Vec<JudgedPart>,
}

impl Report {
    /// Judges.
    pub fn of(kind: &'static str, list: List, outcomes: Outcomes) -> Result<Report> {
        Ok(Report {
            kind,
            parts: judge::judge(&list, &outcomes)?,
            list,
            outcomes,
        })
    }

    /// How many parts have each verdict, those that none has left out.
    pub fn counts(&self) -> Vec<(Verdict, usize)> {
        let count = |verdict| {
            self.parts
                .iter()
                .filter(|part| part.verdict == verdict)
                .count()
        };
        let counts = Verdict::ALL
            .into_iter()
            .map(|verdict| (verdict, count(verdict)));
        counts.filter(|(_, count)| *count > 0).collect()
    }
}
