//! What a test needs of the machine. A test whose need is not met prints `SKIP: reason` and returns;
//! `scripts/test` counts these lines, and fails on them where everything is supported.

use std::ffi::OsString;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::netns::{self, Netns};
use crate::pages;

/// Folders in which Debian and go.dev put programs that are not in every user's PATH. Go's comes before
/// PATH, because Debian's Go may be too old.
const BEFORE_PATH: &str = "/usr/local/go/bin";
const BEHIND_PATH: [&str; 2] = ["/usr/sbin", "/sbin"];

/// Says why a test cannot run here.
pub fn skip(reason: impl Display) {
    println!("SKIP: {reason}");
}

/// Whether this process is root; says so if not. `what` names what needs it, as in `parking`.
pub fn root(what: &str) -> bool {
    let is_root = nix::unistd::geteuid().is_root();
    if !is_root {
        skip(format_args!("{what} needs root"));
    }
    is_root
}

/// Whether all these programs are installed; says which one is not.
pub fn programs(names: &[&str]) -> bool {
    let missing = names.iter().find(|name| find_program(name).is_none());
    if let Some(name) = missing {
        skip(format_args!("{name} is not installed"));
    }
    missing.is_none()
}

/// Where a program is, in [`path`].
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = path();
    let mut candidates = std::env::split_paths(&path).map(|folder| folder.join(name));
    candidates.find(|candidate| Path::is_file(candidate))
}

/// The root of the Debian 13 that `scripts/quic-system` makes, with programs that speak HTTP/3; says so if it is not there,
/// or without root, which alone can run programs in it.
pub fn debian_13() -> Option<PathBuf> {
    if !root("a program of Debian 13") {
        return None;
    }
    let folder = pages::root().unwrap_or_default().join("out/systems/trixie");
    // It is written when all is installed.
    if folder.join("quic-packages").is_file() {
        return Some(folder.join("root"));
    }
    skip("there is no Debian 13 in out/systems: scripts/setup test makes it");
    None
}

/// Chromium by one of its names, as `scripts/setup` looks for it.
pub fn find_browser() -> Option<PathBuf> {
    let names = [
        "chromium-headless-shell",
        "chromium-shell",
        "chromium",
        "google-chrome",
    ];
    names.iter().find_map(|name| find_program(name))
}

/// How tests start it: without the sandbox, which root cannot have; without what asks other hosts by itself.
pub const BROWSER_FLAGS: [&str; 7] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
];

/// The PATH for programs that a test runs.
pub fn path() -> OsString {
    let own = std::env::var_os("PATH").unwrap_or_default();
    let own = std::env::split_paths(&own);
    let folders = std::iter::once(PathBuf::from(BEFORE_PATH))
        .chain(own)
        .chain(BEHIND_PATH.map(PathBuf::from));
    std::env::join_paths(folders).unwrap_or_default()
}

/// A command that finds its program in [`path`], as do the programs that it starts.
pub fn command(program: &str) -> Command {
    let found = find_program(program).unwrap_or_else(|| program.into());
    let mut command = Command::new(found);
    command.env("PATH", path());
    command
}

/// Whether the kernel can do what a test is about; says why not.
pub fn mechanism<E: Display>(trial: Result<(), E>) -> bool {
    trial.map_err(skip).is_ok()
}

/// The skip of a test for what this machine has not: `scripts/test-one` knows it by its first words, and does not
/// count it as a failure.
pub fn lacking(option: impl Display) {
    skip(format_args!("kernel without {option}"));
}

/// Whether this kernel is of that version or a later one.
///
/// # Panics
/// Its version has no two numbers.
pub fn linux_is_at_least(major: u32, minor: u32) -> bool {
    let name = nix::sys::utsname::uname().expect("the kernel says its version");
    let release = name.release().to_string_lossy().into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next().and_then(|text| text.parse::<u32>().ok());
    let version = (number().expect(&release), number().expect(&release));
    version >= (major, minor)
}

/// Runs an `ip` command that needs this option of the kernel; false where it lacks it, and says so.
///
/// # Panics
/// The command fails for another reason.
pub fn kernel_can(netns: &Netns, option: &str, command: &str) -> bool {
    let words: Vec<&str> = command.split_whitespace().collect();
    let Err(error) = netns.ip(&words) else {
        return true;
    };
    let error = error.to_string();
    let lacks = ["Unknown device type", "not supported"];
    assert!(lacks.iter().any(|l| error.contains(l)), "{error}");
    lacking(option);
    false
}

/// A network namespace for one test; `None` without root, and says so.
///
/// # Panics
/// It cannot be created although this is root.
pub fn namespace(role: &str) -> Option<Netns> {
    if !root("a network namespace") {
        return None;
    }
    let netns = Netns::create(role);
    Some(netns.unwrap_or_else(|error| panic!("{error}")))
}

/// Moves the calling thread into a network namespace of its own; false without root, and says so.
///
/// # Panics
/// It cannot be created although this is root.
pub fn own_namespace() -> bool {
    if !root("a network namespace") {
        return false;
    }
    netns::enter_new().unwrap_or_else(|error| panic!("{error}"));
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_by_name_and_missing_ones_are_not() {
        assert!(find_program("sh").is_some_and(|path| path.ends_with("sh")));
        assert_eq!(find_program("no program has this name"), None);
    }
}
