//! `weir exec`: becomes a server whose waiting connections are accepted in the order of their classes.

use std::convert::Infallible;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use weir_core::config::Config;
use weir_kernel::exec::{can_park, refuse_mptcp, restore_sigpipe};

use crate::cli::{Exec, Order};
use crate::commands::check;
use crate::exec::{self, Policy, Source};
use crate::failure::{Failure, Result};
use crate::output::{warn, warn_text};

/// Where the administrator's config file is.
const CONFIG: &str = "/etc/weir/weir.toml";

/// Runs the command; returns only if the server cannot be started.
pub fn run(runtime_dir: &Path, args: &Exec) -> Result<()> {
    let server = words(args)?;
    match args.order {
        Order::Parking => park()?,
        Order::Exact => exact(runtime_dir, args)?,
        Order::Auto => match can_park() {
            Ok(()) => park()?,
            Err(no_parking) => {
                if let Err(failure) = exact(runtime_dir, args) {
                    warn_text(format!(
                        "{no_parking}\n{failure}\nthe server accepts first come first served"
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
fn park() -> Result<()> {
    refuse_mptcp().map_err(Failure::from)
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
    let absolute = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    if given.is_none() && !file.exists() {
        return (absolute, None);
    }
    match check::read(file) {
        Ok(config) => {
            config.warnings.iter().for_each(warn);
            (absolute, Some(config))
        }
        Err(failure) => {
            warn_text(format!("no class until the file is good\n{failure}"));
            (absolute, None)
        }
    }
}
