//! How long answers took, in classes.

/// Classes of how long an answer took; the class n begins at 2^n - 1 ticks.
pub const ANSWER_CLASSES: usize = crate::abi::ANSWER_CLASSES as usize;
