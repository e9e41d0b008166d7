//! How a connection went, as one of its ends saw it.

use super::plan::Leave;

/// How an end's connection went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Outcome {
    /// Its half was ended after all was sent.
    pub finished: bool,
    /// The other end's end was read.
    pub eof: bool,
    /// A RST came.
    pub reset: bool,
    /// It left before it was due.
    pub left: Option<Leave>,
    /// Its port, by which logs name it.
    pub port: u16,
}
