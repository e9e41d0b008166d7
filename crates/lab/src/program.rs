//! Finds the project's own programs.

use std::path::PathBuf;

use crate::error::{Context, Error, Result};

/// The program of this name next to the running one (or one folder up, where cargo puts programs
/// for its tests), else from PATH.
pub fn find(name: &str) -> Result<PathBuf> {
    let running = std::env::current_exe().context("cannot tell which program runs")?;
    let folders = running.ancestors().skip(1).take(2).map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let candidates = folders
        .chain(std::env::split_paths(&path))
        .map(|folder| folder.join(name));
    let found = candidates.into_iter().find(|candidate| candidate.is_file());
    found.ok_or_else(|| {
        Error::failed(
            format!("cannot find the program {name}"),
            "neither beside this program nor in PATH",
        )
        .hint(format!("build it: cargo build --release -p {name}"))
    })
}
