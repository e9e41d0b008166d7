//! `weir exec`: becomes a server whose waiting connections are accepted in the order of their classes.

use std::convert::Infallible;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use weir_api::{Question, Status};
use weir_config::Config;
use weir_kernel::exec::{can_park, refuse_mptcp, restore_sigpipe};

use crate::cli::{Exec, Order};
use crate::exec::{self, Policy, Source};
use crate::failure::{Failure, Result};
use crate::host::config;
use crate::ipc::control::{ask, namespace};
use crate::show::output::{warn, warn_text};

/// Where the administrator's config file is.
const CONFIG: &str = "/etc/weir/weir.toml";

/// Runs the command; returns only if the server cannot be started.
pub fn run(runtime_dir: &Path, args: &Exec) -> Result<()> {
    let server = words(args)?;
    match args.order {
        Order::Parking => park(runtime_dir, args)?,
        Order::Exact => exact(runtime_dir, args)?,
        Order::Auto => match can_park() {
            Ok(()) => park(runtime_dir, args)?,
            Err(no_parking) => {
                if let Err(failure) = exact(runtime_dir, args) {
                    warn_text(format!(
                        "{no_parking}\nerror: {failure}\nthe server accepts first come first served"
                    ));
                }
            }
        },
    }
    restore_sigpipe();
    let errno = match nix::unistd::execvp(&server[0], &server) {
        Ok::<Infallible, _>(never) => match never {},
        Err(errno) => errno,
    };
    Err(Failure::failed(
        format!("cannot run {}: {}", args.server[0].display(), errno.desc()),
        "after -- comes the program, by path or as found in PATH, and its arguments",
    ))
}

fn words(args: &Exec) -> Result<Vec<CString>> {
    let words = args.server.iter().map(|word| CString::new(word.as_bytes()));
    words.collect::<std::result::Result<_, _>>().map_err(|_| {
        Failure::usage(
            "a word of the server's command line has a zero byte",
            "no program can be given one",
        )
    })
}

/// weir's daemon parks; all that may stand in its way is MPTCP.
fn park(runtime_dir: &Path, args: &Exec) -> Result<()> {
    refuse_mptcp().map_err(Failure::from)?;
    if let Some(given) = &args.config {
        config(Some(given));
    }
    if let Some(text) = no_parking(runtime_dir, args.config.as_deref()) {
        warn_text(text);
    }
    Ok(())
}

/// Why nobody parks for the server so far, or not by the classes of the given file. `None` too where the
/// running weir may not be asked.
fn no_parking(runtime_dir: &Path, given: Option<&Path>) -> Option<String> {
    let file = absolute(given.unwrap_or(Path::new(CONFIG)));
    let status: Status = match ask(runtime_dir, namespace().ok()?, &Question::Status) {
        Ok(None) => {
            return Some(format!(
                "no weir runs in this network namespace: the server accepts first come first served until \
                 `weir run --config {}` does, or use --order exact",
                file.display()
            ));
        }
        Ok(Some(status)) => status,
        Err(_) => return None,
    };
    let by_priority =
        |l: &weir_api::Listener| l.settings.get("queue").is_some_and(|v| v == "priority");
    let in_force = status.process.and_then(|process| process.config);
    match (given, in_force) {
        _ if !status.listeners.iter().any(by_priority) => Some(
            "no listener of the running weir has queue = \"priority\": the server accepts first come first \
             served until one has, or use --order exact"
                .to_owned(),
        ),
        (Some(_), Some(other)) if Path::new(&other) != file => Some(format!(
            "the classes are those of the running weir ({other}), not of {}",
            file.display()
        )),
        _ => None,
    }
}

fn absolute(file: &Path) -> PathBuf {
    std::path::absolute(file).unwrap_or_else(|_| file.to_owned())
}

fn exact(runtime_dir: &Path, args: &Exec) -> Result<()> {
    let (file, config) = config(args.config.as_deref());
    let source = Source {
        server: std::process::id(),
        runtime_dir: runtime_dir.to_owned(),
        file,
    };
    exec::start(source, Policy::of(config))
}

/// The server is more important than its classes: without a good file it has none, until there is one.
fn config(given: Option<&Path>) -> (PathBuf, Option<Config>) {
    let file = given.unwrap_or(Path::new(CONFIG));
    let absolute = absolute(file);
    if given.is_none() && !file.exists() {
        return (absolute, None);
    }
    match config::read(file) {
        Ok(config) => {
            config.warnings.iter().for_each(warn);
            (absolute, Some(config))
        }
        Err(failure) => {
            warn_text(format!("no class until the file is good\nerror: {failure}"));
            (absolute, None)
        }
    }
}
