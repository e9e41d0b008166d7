//! `weir status`: queues, policy and verdicts of every listener under guard.

use std::path::Path;

use crate::cli::Status;
use crate::control::{Answer, Request, ask, namespace};
use crate::failure::{Failure, Result};
use crate::output::{print, print_json};
use crate::report::Report;

/// Runs the command.
pub fn run(runtime_dir: &Path, args: &Status) -> Result<()> {
    let report = match ask(runtime_dir, namespace()?, Request::Status)? {
        Some(Answer::Status(report)) => *report,
        Some(_) => return Err(Failure::failed("the running weir gave another answer", "")),
        None => Report::default(),
    };
    match args.json {
        true => print_json(&report),
        false => print(&report.text(args.all)),
    }
}
