//! `weir observe`: the running `weir run` refuses nobody for a while.

use std::path::Path;

use weir_api::{Question, Reloaded};
use weir_core::units::whole_seconds;

use crate::cli::Observe;
use crate::commands::status::not_running;
use crate::failure::Result;
use crate::ipc::control::{ask, namespace};
use crate::show::output::{print, print_json, warn_text};

/// Runs the command.
pub fn run(runtime_dir: &Path, args: &Observe) -> Result<()> {
    let question = Question::Observe {
        for_s: args.time.as_secs(),
    };
    let answer: Option<Reloaded> = ask(runtime_dir, namespace()?, &question)?;
    let Some(reloaded) = answer else {
        let command = format!("observe --for {}s", args.time.as_secs());
        return Err(not_running(runtime_dir, &command));
    };
    if args.json {
        return print_json(&reloaded);
    }
    reloaded.warnings.iter().for_each(warn_text);
    print(&format!(
        "weir refuses nobody for {}; `weir reload` ends that\n",
        whole_seconds(args.time)
    ))
}
