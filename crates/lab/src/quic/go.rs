//! Programs in Go on quic-go, which are built where they are used.

use std::path::Path;

use crate::error::{Context, Error, Result};
use crate::needs;

/// The files of a program: name and text.
pub type Source = [(&'static str, &'static str); 3];

/// Builds a program to this path. It needs no library of the system that it runs in. The module proxy is asked for quic-go
/// the first time.
///
/// # Errors
/// Unsupported where this machine cannot build it.
pub fn build(source: Source, to: &Path) -> Result<()> {
    const CANNOT: &str = "cannot build a program on quic-go";
    if needs::find_program("go").is_none() {
        let error = Error::unsupported(CANNOT, "go is not installed");
        return Err(error.hint("scripts/setup quic"));
    }
    let folder = tempfile::TempDir::with_prefix("weir-lab-quic-go-").context(CANNOT)?;
    for (name, text) in source {
        let path = folder.path().join(name);
        std::fs::write(&path, text).context(format!("cannot write {}", path.display()))?;
    }
    let mut build = needs::command("go");
    build.env("CGO_ENABLED", "0");
    build.args(["build", "-o"]).arg(to);
    let output = build.current_dir(folder.path()).output().context(CANNOT)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Error::unsupported(CANNOT, said.trim()));
    }
    Ok(())
}
