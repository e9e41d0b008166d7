//! `weir reload`: the running `weir run` and every `weir proxy` read their config files again.

use std::path::Path;

use crate::control::{Answer, Request, ask, namespace};
use crate::describe::count;
use crate::failure::{Failure, Result};
use crate::output::{print, warn_text};
use crate::proxies::Peers;

/// Runs the command. Each process is asked, whatever another one says.
pub fn run(runtime_dir: &Path) -> Result<()> {
    let guard = ask(runtime_dir, namespace()?, Request::Reload).transpose();
    let proxies = Peers::find(runtime_dir)?.ask(Request::Reload);
    let answers: Vec<Result<Answer>> = guard.into_iter().chain(proxies).collect();
    if answers.is_empty() {
        return Err(Failure::failed(
            "no weir is running in this network namespace",
            "start it: `weir run --config FILE` or `weir proxy --config FILE`",
        ));
    }
    let mut failed = Vec::new();
    for answer in answers {
        match answer {
            Ok(answer) => tell(answer)?,
            Err(failure) => failed.push(failure),
        }
    }
    Failure::all(failed).map_or(Ok(()), Err)
}

fn tell(answer: Answer) -> Result<()> {
    let Answer::Reloaded {
        listeners,
        proxies,
        warnings,
    } = answer
    else {
        return Err(Failure::failed("the running weir gave another answer", ""));
    };
    warnings.iter().for_each(warn_text);
    let in_force = [(listeners, "listener"), (proxies, "proxy")];
    let in_force = in_force.into_iter().filter(|(n, _)| *n > 0);
    in_force
        .into_iter()
        .try_for_each(|(n, thing)| print(&format!("{} in force\n", count(n, thing))))
}
