//! `weir why`: why a client was refused, from what the guard of this network namespace keeps. It exits with 6 if no refusal
//! of the client is kept.

use std::path::Path;
use std::process::ExitCode;

use weir_api::{Question, TopSources};

use crate::cli::Why;
use crate::commands::status::not_running;
use crate::failure::{Code, Result};
use crate::ipc::control::{ask, namespace};
use crate::show::output::{print, print_json};
use crate::show::why;

/// Runs the command. Gives the exit code of an answer: that no refusal is kept is one, and no error.
///
/// # Errors
/// There is no answer.
pub fn run(runtime_dir: &Path, args: &Why) -> Result<ExitCode> {
    let Some(address) = args.address else {
        return top(runtime_dir, args).map(|()| ExitCode::SUCCESS);
    };
    let answer = ask(runtime_dir, namespace()?, &Question::Why { address })?;
    let command = || format!("why {address}");
    let answer: weir_api::Why = answer.ok_or_else(|| not_running(runtime_dir, &command()))?;
    match args.json {
        true => print_json(&answer)?,
        false => print(&why::text(&answer))?,
    }
    Ok(match answer.refusals.is_empty() {
        false => ExitCode::SUCCESS,
        true => ExitCode::from(Code::NotKept.number()),
    })
}

fn top(runtime_dir: &Path, args: &Why) -> Result<()> {
    match top_sources(runtime_dir)? {
        Some(sources) if args.json => print_json(&sources),
        Some(sources) => print(&why::top(&sources)),
        None => Err(not_running(runtime_dir, "why --top")),
    }
}

/// The sources that are refused most; `None` if no guard runs in this network namespace.
///
/// # Errors
/// The guard does not answer, or does not know the question.
pub fn top_sources(runtime_dir: &Path) -> Result<Option<TopSources>> {
    ask(runtime_dir, namespace()?, &Question::Sources)
}
