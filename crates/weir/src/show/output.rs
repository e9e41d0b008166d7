//! Data goes to stdout, everything else to stderr.

use std::fmt;
use std::io::{ErrorKind, Write};

use serde::Serialize;
use weir_config::Warning;

use crate::failure::{Failure, Result};
use crate::show::log;

/// Writes data to stdout. A reader that has gone (`weir status | head -1`) is no failure.
///
/// # Errors
/// stdout cannot be written.
pub fn print(text: &str) -> Result<()> {
    print_live(text).map(drop)
}

/// As [`print()`]; `false` if the reader has gone.
///
/// # Errors
/// stdout cannot be written.
pub fn print_live(text: &str) -> Result<bool> {
    let mut stdout = std::io::stdout().lock();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::io("write to stdout", error))
        }
        written => Ok(written.is_ok()),
    }
}

/// Writes a value as indented JSON and a newline to stdout.
///
/// # Errors
/// stdout cannot be written.
pub fn print_json(value: &impl Serialize) -> Result<()> {
    let json = serde_json::to_string_pretty(value).expect("reports are JSON");
    print(&(json + "\n"))
}

/// Writes a warning about a config file or flags to stderr.
pub fn warn(warning: &Warning) {
    warn_text(warning);
}

/// Writes a warning to stderr.
pub fn warn_text(text: impl fmt::Display) {
    log::line(format_args!("warning: {text}"));
}
