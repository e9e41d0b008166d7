//! Programs: where the project's own are, and Debian's with a version in their path; one that runs beside the experiment.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::error::{Context, Error, Result};

const STOP_LIMIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(5);

/// As [`find`], for tests of other crates than the program's own: from cargo's target folder, in the profile of
/// the caller; built by cargo where it is missing or older than its sources. (A program's own tests have
/// `CARGO_BIN_EXE_…`, which cargo builds before them.)
///
/// # Errors
/// cargo cannot build it.
pub fn find_or_build(package: &str) -> Result<PathBuf> {
    let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(path) = found.get(package) {
        return Ok(path.clone());
    }
    let is_current = |path: &PathBuf| newer_source(path).is_none();
    let path = match beside_this_program(package)?.filter(is_current) {
        Some(path) => path,
        None => build(package)?,
    };
    found.insert(package.to_owned(), path.clone());
    Ok(path)
}

/// Programs that were found, by name. A long experiment goes on with the program that it began with, even where
/// its sources are edited meanwhile.
static FOUND: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());

fn build(package: &str) -> Result<PathBuf> {
    let what = || format!("cannot build {package}");
    // Not env!(): it would put the folder that this was built in into the binary (scripts/reproducible). Tests run
    // in their package's folder, where cargo finds the workspace.
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--quiet", "--locked", "--package", package]);
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    let status = cargo.status().context("cannot run cargo")?;
    if !status.success() {
        return Err(Error::failed(what(), status));
    }
    beside_this_program(package)?
        .ok_or_else(|| Error::failed(what(), "cargo did not put it beside this program"))
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
///
/// # Errors
/// There is none, or one that cargo has built from older sources than those that are there now.
pub fn find(name: &str) -> Result<PathBuf> {
    let mut all_found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(path) = all_found.get(name) {
        return Ok(path.clone());
    }
    let hint = format!("build it: cargo build --release -p {name}");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut in_path = std::env::split_paths(&path).map(|folder| folder.join(name));
    let found = beside_this_program(name)?.or_else(|| in_path.find(|path| path.is_file()));
    let Some(found) = found else {
        let cause = "neither beside this program nor in PATH";
        return Err(Error::failed(format!("cannot find the program {name}"), cause).hint(hint));
    };
    if let Some(source) = newer_source(&found) {
        let what = format!("cannot use the program {}", found.display());
        let cause = format!("it is older than its source {}", source.display());
        return Err(Error::failed(what, cause).hint(hint));
    }
    all_found.insert(name.to_owned(), found.clone());
    Ok(found)
}

/// The newest of the programs in a folder that have their version in their path; `is_it` gives the program of an entry.
pub fn versioned(folder: &str, is_it: impl Fn(&Path) -> Option<PathBuf>) -> Option<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| is_it(&entry.path())).max()
}

/// Debian's PHP-FPM.
pub fn php_fpm() -> Option<PathBuf> {
    versioned("/usr/sbin", |path| {
        let name = path.file_name()?.to_str()?;
        name.starts_with("php-fpm").then(|| path.to_owned())
    })
}

fn beside_this_program(name: &str) -> Result<Option<PathBuf>> {
    let running = std::env::current_exe().context("cannot tell which program runs")?;
    let folders = running.ancestors().skip(1).take(2);
    let mut candidates = folders.map(|folder| folder.join(name));
    Ok(candidates.find(|candidate| candidate.is_file()))
}

/// A source that was changed after the program had been built from it, by the list of sources that cargo leaves
/// beside a program (`weir.d`). `None` where there is no such list, as beside an installed program.
fn newer_source(program: &Path) -> Option<PathBuf> {
    let list = std::fs::read_to_string(program.with_extension("d")).ok()?;
    let built = program.metadata().and_then(|meta| meta.modified()).ok()?;
    let is_newer = |source: &PathBuf| {
        let changed = source.metadata().and_then(|meta| meta.modified());
        // `cargo test` builds the program and leaves the list as it was, so one that is gone may have gone before. Who
        // removes one changes another that named it.
        changed.is_ok_and(|changed| changed > built)
    };
    sources(&list).into_iter().find(is_newer)
}

/// The files behind the colon of a make rule; a space in a name is written `\ `.
fn sources(rule: &str) -> Vec<PathBuf> {
    const SPACE: &str = "\0";
    let rule = rule.lines().next().unwrap_or_default();
    let rule = rule.replace("\\ ", SPACE);
    let files = rule.split_once(": ").map_or("", |(_, files)| files);
    let files = files.split_whitespace();
    files.map(|file| file.replace(SPACE, " ").into()).collect()
}

#[cfg(test)]
mod tests {
    use std::fs::{File, FileTimes};
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn a_program_older_than_one_of_its_sources_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let touch = |name: &str, seconds: u64| {
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            let file = File::create(at(name)).unwrap();
            file.set_times(FileTimes::new().set_modified(time)).unwrap();
        };
        touch("weir", 100);
        assert_eq!(newer_source(&at("weir")), None, "without a list");
        let show = |name: &str| at(name).display().to_string().replace(' ', "\\ ");
        let rule = format!("{}: {} {}\n", show("weir"), show("a.rs"), show("b c.rs"));
        std::fs::write(at("weir.d"), rule).unwrap();
        touch("a.rs", 99);
        touch("b c.rs", 100);
        assert_eq!(newer_source(&at("weir")), None);
        touch("b c.rs", 101);
        assert_eq!(newer_source(&at("weir")), Some(at("b c.rs")));
        std::fs::remove_file(at("b c.rs")).unwrap();
        assert_eq!(newer_source(&at("weir")), None, "it may have gone before");
        touch("a.rs", 101);
        assert_eq!(newer_source(&at("weir")), Some(at("a.rs")));
    }
}
