//! `weir status`: queues, policy and verdicts of every listener under guard, and every proxy.

use std::path::Path;

use crate::cli::Status;
use crate::daemon::proxies::Peers;
use crate::failure::{Failure, Result};
use crate::ipc::control::{Answer, Request, ask, namespace};
use crate::show::output::{print, print_json, warn_text};
use crate::show::report;

/// Runs the command.
pub fn run(runtime_dir: &Path, args: &Status) -> Result<()> {
    let mut report = match ask(runtime_dir, namespace()?, Request::Status)? {
        Some(Answer::Status(report)) => *report,
        Some(_) => return Err(Failure::failed("the running weir gave another answer", "")),
        None => weir_api::Status::default(),
    };
    report.proxies = proxies(runtime_dir)?;
    match args.json {
        true => print_json(&report),
        false => print(&report::text(&report, args.all)),
    }
}

/// The proxies of all processes. One that does not answer is told of, and does not hide the others.
fn proxies(runtime_dir: &Path) -> Result<Vec<weir_api::Proxy>> {
    let mut proxies = Vec::new();
    for answer in Peers::find(runtime_dir)?.ask(&Request::Status) {
        match answer {
            Ok(Answer::Status(report)) => proxies.extend(report.proxies),
            Ok(_) => warn_text("a running weir gave another answer"),
            Err(failure) => warn_text(failure),
        }
    }
    Ok(proxies)
}
