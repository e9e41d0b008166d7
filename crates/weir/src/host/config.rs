//! The config file, read and checked.

use std::path::{Path, PathBuf};

use weir_config::{Config, parse};

use super::file::read_text;
use crate::failure::{Code, Failure, Result};

/// Bytes of a config file at most: twice what the most classes of all need.
const MOST_BYTES: u64 = 16 << 20;

/// Reads and checks a config file.
///
/// # Errors
/// It cannot be read, or what is wrong in it; exit code 2.
pub fn read(file: &Path) -> Result<Config> {
    Source::read(file)?.parse()
}

/// A config file as it was read. A running process keeps that of what is in force.
#[derive(Debug, Clone)]
pub struct Source {
    /// Where it was read.
    pub file: PathBuf,
    /// What stood there.
    pub text: String,
}

impl Source {
    /// Reads the file.
    ///
    /// # Errors
    /// It cannot be read; exit code 2.
    pub fn read(file: &Path) -> Result<Source> {
        let text = read_text(file, MOST_BYTES).map_err(|error| {
            let hint = "`weir check --example` prints a config file to start from";
            let message = format!("cannot read {}: {error}", file.display());
            let mut failure = Failure::failed(message, hint);
            failure.code = Code::Usage;
            failure
        })?;
        let file = file.to_owned();
        Ok(Source { file, text })
    }

    /// Checks it.
    ///
    /// # Errors
    /// What is wrong in it; exit code 2.
    pub fn parse(&self) -> Result<Config> {
        Ok(parse(&self.file.display().to_string(), &self.text)?)
    }
}

/// A file's path that stays the same when the working directory changes: reloads read the same file.
///
/// # Errors
/// There is no working directory.
pub fn absolute(file: &Path) -> Result<std::path::PathBuf> {
    std::path::absolute(file)
        .map_err(|error| Failure::io(format_args!("find {}", file.display()), error))
}
