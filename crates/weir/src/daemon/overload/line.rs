//! A line of the log.

use weir_api::Event;

/// What is to be said of a listener.
#[derive(Debug, PartialEq)]
pub struct Line {
    /// In a sentence.
    pub text: String,
    /// Nothing is wrong any more.
    pub good: bool,
    /// The same for `weir events`.
    pub event: Event,
}
