//! The answers to writes, and refusals.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A write that was carried out.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Done {
    /// What was done, in a sentence
    pub done: String,
}

/// Why a call was refused.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Problem {
    /// Each cause; never empty
    pub causes: Vec<Cause>,
}

/// What failed on which object and why, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Cause {
    /// What failed, in a sentence
    pub message: String,
    /// The next action; empty if there is none
    pub hint: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, Cause { message, hint }) in self.causes.iter().enumerate() {
            write!(f, "{}{message}", if i > 0 { "; " } else { "" })?;
            if !hint.is_empty() {
                write!(f, " (hint: {hint})")?;
            }
        }
        Ok(())
    }
}
