//! `weir detach`: takes all protection off, whichever weir put it on.

use std::path::Path;

use crate::control::{Answer, Request, ask, namespace, sweep};
use crate::failure::{Failure, Result};
use crate::output::print;

/// Runs the command. The guard's BPF links live as long as their process: without one, nothing is
/// attached.
pub fn run(runtime_dir: &Path) -> Result<()> {
    let namespace = namespace()?;
    match ask(runtime_dir, namespace, Request::Detach)? {
        Some(Answer::Detached { pid }) => print(&format!(
            "weir (pid {pid}) has ended; nothing is attached any more\n"
        )),
        Some(_) => Err(Failure::failed("the running weir gave another answer", "")),
        None => {
            sweep(runtime_dir, namespace)?;
            print("no weir is running in this network namespace; nothing is attached\n")
        }
    }
}
