//! A Debian 13 for servers and clients that this machine's own release has not. It is made once and kept: delete its folder
//! to have it made anew.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::error::{Context, Error, Result};
use crate::needs;

/// Debian 13.
const SUITE: &str = "trixie";
/// Makes a system, with nginx in it.
const SCRIPT: &str = "scripts/deb/rootfs";
/// What the script does not install: a server, and clients.
const PACKAGES: [&str; 4] = ["haproxy", "curl", "ngtcp2-client", "python3-aioquic"];
/// Beside the system's root: what is installed.
const MADE: &str = "quic-packages";

const CANNOT: &str = "cannot have the QUIC servers and clients of Debian 13";

/// The root folder of the system that is kept in this folder. Making it takes a minute, about 400 MB, root, mmdebstrap and
/// Debian's archive.
///
/// # Errors
/// Unsupported where this machine cannot make it.
pub fn root(systems: &Path) -> Result<PathBuf> {
    let root = systems.join(SUITE).join("root");
    let made = systems.join(SUITE).join(MADE);
    let packages = PACKAGES.join("\n");
    if std::fs::read_to_string(&made).is_ok_and(|installed| installed == packages) {
        return root.canonicalize().context(CANNOT);
    }
    if needs::find_program("mmdebstrap").is_none() {
        let error = Error::unsupported(CANNOT, "mmdebstrap is not installed");
        return Err(error.hint("scripts/setup quic"));
    }
    eprintln!(
        "weir-lab: making a Debian 13 in {}, once",
        systems.display()
    );
    let mut script = needs::command("bash");
    script.arg(script_path()?).arg(SUITE).arg(systems);
    run(script)?;
    let mut install = needs::command("chroot");
    install.arg(&root).args(["apt-get", "-qq", "-y"]);
    install
        .args(["--no-install-recommends", "install"])
        .args(PACKAGES);
    install.env("DEBIAN_FRONTEND", "noninteractive");
    run(install)?;
    std::fs::write(&made, packages).context(format!("cannot write {}", made.display()))?;
    root.canonicalize().context(CANNOT)
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

/// What cannot be fetched or installed is a want of this machine.
fn run(mut command: Command) -> Result<Output> {
    let shown = format!("{command:?}");
    let output = command.output().context(format!("cannot run {shown}"))?;
    if output.status.success() {
        return Ok(output);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = said.trim().lines().collect();
    let last = lines[lines.len().saturating_sub(5)..].join("; ");
    let cause = format!("{shown} ended with {}: {last}", output.status);
    Err(Error::unsupported(CANNOT, cause))
}
