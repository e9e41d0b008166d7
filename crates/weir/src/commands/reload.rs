//! `weir reload`: the running `weir run` reads its config file again.

use std::path::Path;

use crate::control::{Answer, Request, ask, namespace};
use crate::describe::count;
use crate::failure::{Failure, Result};
use crate::output::{print, warn_text};

/// Runs the command.
pub fn run(runtime_dir: &Path) -> Result<()> {
    match ask(runtime_dir, namespace()?, Request::Reload)? {
        Some(Answer::Reloaded {
            listeners,
            warnings,
        }) => {
            warnings.iter().for_each(warn_text);
            print(&format!("{} in force\n", count(listeners, "listener")))
        }
        Some(_) => Err(Failure::failed("the running weir gave another answer", "")),
        None => Err(Failure::failed(
            "no weir is running in this network namespace",
            "start it: `weir run --config FILE`",
        )),
    }
}
