//! What is wrong in a config file, where, and what to do about it.
//!
//! A [`Fault`] is of one value, wherever it came from: file, flag or API. The file's reader makes it a
//! [`Problem`] with its [`Location`] and its key, and collects all of them ([`Problems`]): a user mends a
//! file in one go.

use std::fmt;
use std::ops::Range;

use weir_core::prefix::PrefixError;

/// What is wrong with a value, wherever it came from (file or flag).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{cause}")]
pub struct Fault {
    /// What is wrong.
    pub cause: String,
    /// What to write instead.
    pub hint: String,
}

impl Fault {
    /// A fault with its hint.
    pub fn new(cause: impl Into<String>, hint: impl Into<String>) -> Fault {
        Fault {
            cause: cause.into(),
            hint: hint.into(),
        }
    }
}

impl From<PrefixError> for Fault {
    fn from(error: PrefixError) -> Fault {
        Fault::new(error.to_string(), error.hint())
    }
}

/// A position in a file; lines and columns (in characters) count from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// The file's name as the user gave it.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
}

impl Location {
    /// The location of a byte range of the source; without one, the file's first character.
    pub(crate) fn of(file: &str, source: &str, span: Option<Range<usize>>) -> Location {
        let start = span.map_or(0, |s| s.start).min(source.len());
        let before = &source[..source.floor_char_boundary_compat(start)];
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        Location {
            file: file.to_owned(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }
}

/// `str::floor_char_boundary` is newer than the workspace's rust-version.
trait FloorCharBoundary {
    fn floor_char_boundary_compat(&self, at: usize) -> usize;
}

impl FloorCharBoundary for str {
    fn floor_char_boundary_compat(&self, at: usize) -> usize {
        (0..=at)
            .rev()
            .find(|at| self.is_char_boundary(*at))
            .unwrap_or(0)
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

/// One thing that is wrong in a config file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{location}: {object}{cause}")]
pub struct Problem {
    /// Where.
    pub location: Location,
    /// Which key of which listener, as a prefix that ends in `": "`; empty for the whole file.
    pub object: String,
    /// What is wrong.
    pub cause: String,
    /// What to do about it; may be empty.
    pub hint: String,
}

/// Everything that is wrong in a config file, in the order of its lines. Never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.0.iter().enumerate() {
            let end = if i == 0 { "" } else { "\n" };
            write!(f, "{end}{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}
