//! The project's own programs: where they are, and one that runs beside the experiment.

use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::error::{Context, Error, Result};

const STOP_LIMIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(5);

/// As [`find`], for tests: built by cargo, in the profile of the caller, if it has not been built yet.
///
/// # Errors
/// cargo cannot build it.
pub fn find_or_build(package: &str) -> Result<PathBuf> {
    if let Ok(found) = find(package) {
        return Ok(found);
    }
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--package", package]);
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    let status = cargo.status().context("cannot run cargo")?;
    if !status.success() {
        return Err(Error::failed(format!("cannot build {package}"), status));
    }
    find(package)
}

/// A program that protects while it runs; killed on drop.
#[derive(Debug)]
pub struct Running {
    child: Child,
    /// The command line, for people.
    shown: String,
    /// The file that its stderr goes to.
    stderr: PathBuf,
}

impl Running {
    /// `shown`: the command line that `child` was started with; `stderr`: the file that its stderr goes to.
    pub fn new(child: Child, shown: String, stderr: PathBuf) -> Running {
        Running {
            child,
            shown,
            stderr,
        }
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What went wrong, with what it said of it.
    pub fn failure(&self, what: &str) -> Error {
        let stderr = std::fs::read_to_string(&self.stderr).unwrap_or_default();
        Error::failed(
            format!("`{}` did not protect", self.shown),
            format!("{what}; stderr: {}", stderr.trim()),
        )
    }

    /// Fails if it has ended by itself.
    pub fn check_alive(&mut self) -> Result<()> {
        match self.child.try_wait().context("cannot look after weir")? {
            None => Ok(()),
            Some(status) => Err(self.failure(&format!("it ended with {status}"))),
        }
    }

    /// Has it end in order, by this signal.
    pub fn end(&mut self, signal: Signal) -> Result<()> {
        self.check_alive()?;
        kill(Pid::from_raw(self.pid() as i32), signal).context("cannot end weir")?;
        let begun = Instant::now();
        while self
            .child
            .try_wait()
            .context("cannot wait for weir")?
            .is_none()
        {
            if begun.elapsed() > STOP_LIMIT {
                let what = format!("it did not end {STOP_LIMIT:?} after {signal}");
                return Err(self.failure(&what));
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Ends it at once.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.kill();
        }
    }
}

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
