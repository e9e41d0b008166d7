//! The config file, read and checked.

use std::path::Path;

use weir_config::{Config, parse};

use crate::failure::{Code, Failure, Result};

/// Reads and checks a config file.
///
/// # Errors
/// It cannot be read, or what is wrong in it; exit code 2.
pub fn read(file: &Path) -> Result<Config> {
    let source = std::fs::read_to_string(file).map_err(|error| {
        let hint = "`weir check --example` prints a config file to start from";
        let mut failure = Failure::failed(format!("cannot read {}: {error}", file.display()), hint);
        failure.code = Code::Usage;
        failure
    })?;
    Ok(parse(&file.display().to_string(), &source)?)
}

/// A file's path that stays the same when the working directory changes: reloads read the same file.
///
/// # Errors
/// There is no working directory.
pub fn absolute(file: &Path) -> Result<std::path::PathBuf> {
    std::path::absolute(file)
        .map_err(|error| Failure::io(format_args!("find {}", file.display()), error))
}
