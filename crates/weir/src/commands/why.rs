//! `weir why`: why a client was refused, from what the guard of this network namespace keeps. It exits with 6 if no refusal
//! of the client is kept.

use std::path::Path;

use weir_api::TopSources;

use crate::cli::Why;
use crate::commands::status::not_running;
use crate::failure::{Code, Failure, Result};
use crate::ipc::control::{Answer, Request, another_answer, ask, namespace};
use crate::show::output::{print, print_json};
use crate::show::why;

/// Runs the command.
pub fn run(runtime_dir: &Path, args: &Why) -> Result<()> {
    let Some(address) = args.address else {
        return top(runtime_dir, args);
    };
    let answer = match ask(runtime_dir, namespace()?, Request::Why { address })? {
        Some(Answer::Why(answer)) => answer,
        Some(_) => return Err(another_answer()),
        None => return Err(not_running(runtime_dir)),
    };
    match args.json {
        true => print_json(&answer)?,
        false => print(&why::text(&answer))?,
    }
    match answer.refusals.is_empty() {
        false => Ok(()),
        true => Err(Failure {
            code: Code::NotKept,
            ..Failure::failed(
                format!("no refusal of {address} is kept"),
                "is it weir? `weir status` counts every refusal; a client of `weir proxy` is in its access log",
            )
        }),
    }
}

fn top(runtime_dir: &Path, args: &Why) -> Result<()> {
    match top_sources(runtime_dir)? {
        Some(sources) if args.json => print_json(&sources),
        Some(sources) => print(&why::top(&sources)),
        None => Err(not_running(runtime_dir)),
    }
}

/// The sources that are refused most; `None` if no guard runs in this network namespace.
///
/// # Errors
/// The guard does not answer, or does not know the question.
pub fn top_sources(runtime_dir: &Path) -> Result<Option<TopSources>> {
    match ask(runtime_dir, namespace()?, Request::Sources)? {
        Some(Answer::Sources(sources)) => Ok(Some(*sources)),
        Some(_) => Err(another_answer()),
        None => Ok(None),
    }
}
