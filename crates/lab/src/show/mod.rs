//! What people read: numbers ([`mod@format`]), cells ([`template`]), tables ([`table`]), and the tables and the sentences in
//! the documents ([`documents`], [`quotes`]). All of it is made from results alone.

use std::io::Write as _;

pub mod documents;
pub mod format;
pub mod quotes;
pub mod table;
pub mod template;

/// Prints to stdout. A reader that has seen enough and has closed the pipe, as `head` does, is not an error.
pub fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}
