//! A Debian 13 for servers and clients that this machine's own release has not. It is made once and kept: delete its folder
//! to have it made anew.

use std::path::{Path, PathBuf};

use crate::error::{Context, Error, Result};
use crate::needs;

/// Makes it where it is not there, and prints its root.
const SCRIPT: &str = "scripts/quic-system";

const CANNOT: &str = "cannot have the QUIC servers and clients of Debian 13";

/// The root folder of the system that is kept in this folder. Making it takes a minute, about 400 MB, root, mmdebstrap and
/// Debian's archive.
///
/// # Errors
/// Unsupported where this machine cannot make it.
pub fn root(systems: &Path) -> Result<PathBuf> {
    let mut script = needs::command("bash");
    script.arg(script_path()?);
    let is_there = script
        .arg("--check")
        .arg(systems)
        .output()
        .context(CANNOT)?;
    if !is_there.status.success() {
        if needs::find_program("mmdebstrap").is_none() {
            let error = Error::unsupported(CANNOT, "mmdebstrap is not installed");
            return Err(error.hint("scripts/setup quic"));
        }
        eprintln!(
            "weir-lab: making a Debian 13 in {}, once",
            systems.display()
        );
    }
    let mut script = needs::command("bash");
    script.arg(script_path()?).arg(systems);
    let shown = format!("{script:?}");
    let output = script.output().context(format!("cannot run {shown}"))?;
    if output.status.success() {
        let root = String::from_utf8_lossy(&output.stdout);
        return Ok(root.trim().into());
    }
    // What cannot be fetched or installed is a want of this machine.
    let said = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = said.trim().lines().collect();
    let last = lines[lines.len().saturating_sub(5)..].join("; ");
    let cause = format!("{shown} ended with {}: {last}", output.status);
    Err(Error::unsupported(CANNOT, cause))
}

/// In the repository: above the working folder or above this program.
fn script_path() -> Result<PathBuf> {
    let program = std::env::current_exe().unwrap_or_default();
    let folder = std::env::current_dir().unwrap_or_default();
    let above = folder.ancestors().chain(program.ancestors());
    let mut scripts = above.map(|folder| folder.join(SCRIPT));
    let found = scripts.find(|script| script.is_file());
    found.ok_or_else(|| {
        Error::unsupported(CANNOT, format!("{SCRIPT} is not here"))
            .hint("run weir-lab in weir's repository")
    })
}
