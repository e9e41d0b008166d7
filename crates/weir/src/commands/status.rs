//! `weir status`: queues, policy and verdicts of every listener under guard, and every proxy. It exits with 4 if
//! there is neither.

pub mod narrow;

use std::io::IsTerminal;
use std::path::Path;
use std::time::{Duration, Instant};

use weir_api::Question;

use crate::cli::Status;
use crate::daemon::proxies;
use crate::failure::{Failure, Result};
use crate::host::containers;
use crate::host::namespaces::Space;
use crate::ipc::control::{ask, guarded, namespace};
use crate::show::output::{print, print_json, print_live, warn_text};
use crate::show::report::{self, View};

/// Moves to the first place of the screen.
const HOME: &str = "\x1b[H";
/// Clears from here to the end of the line, and to the end of the screen (ECMA-48: EL, ED).
const CLEAR_LINE: &str = "\x1b[K\n";
const CLEAR_BELOW: &str = "\x1b[J";

/// Runs the command.
pub fn run(runtime_dir: &Path, args: &Status) -> Result<()> {
    if let Some(every) = args.watch {
        return watch(runtime_dir, args, Duration::from_secs(every));
    }
    let mut status = status(runtime_dir)?;
    let runs = runs(&status);
    if let (true, Some(place)) = (runs, &args.place) {
        narrow::to(&mut status, place)?;
    }
    match args.json {
        true => print_json(&status)?,
        false if runs => print(&report::text(&status, &view(args)))?,
        false => {}
    }
    match runs {
        true => Ok(()),
        false => Err(not_running(runtime_dir, "status")),
    }
}

fn view(args: &Status) -> View<'static> {
    View {
        all: args.all,
        explain: args.explain,
        before: None,
    }
}

/// Shows the status again and again, until the reader has gone or Ctrl-C. It goes on while no weir runs, but does not
/// begin then.
fn watch(runtime_dir: &Path, args: &Status, every: Duration) -> Result<()> {
    let screen = std::io::stdout().is_terminal();
    let mut before: Option<(weir_api::Status, Instant)> = None;
    loop {
        let (mut status, now) = (status(runtime_dir)?, Instant::now());
        // What is there no more may come again.
        let there = args
            .place
            .as_ref()
            .map_or(Ok(()), |place| narrow::to(&mut status, place));
        if before.is_none() && runs(&status) {
            there?;
        }
        if before.is_none() && !runs(&status) {
            return Err(not_running(runtime_dir, "status"));
        }
        let view = View {
            before: before.as_ref().map(|(status, at)| (status, now - *at)),
            ..view(args)
        };
        let text = match args.json {
            true => serde_json::to_string(&status).expect("a status is JSON") + "\n",
            false => report::text(&status, &view) + "\n",
        };
        let shown = match screen && !args.json {
            true => format!("{HOME}{}{CLEAR_BELOW}", text.replace('\n', CLEAR_LINE)),
            false => text,
        };
        if !print_live(&shown)? {
            return Ok(());
        }
        before = Some((status, now));
        std::thread::sleep(every);
    }
}

fn status(runtime_dir: &Path) -> Result<weir_api::Status> {
    let (status, silent) = collect(runtime_dir)?;
    for failure in silent {
        warn_text(failure);
    }
    Ok(status)
}

/// The guard and all proxies of this network namespace. A process of proxies that does not answer does not hide the
/// others: why it does not comes beside the report.
///
/// # Errors
/// The guard does not answer.
pub fn collect(runtime_dir: &Path) -> Result<(weir_api::Status, Vec<Failure>)> {
    let status = ask(runtime_dir, namespace()?, &Question::Status)?;
    let mut status: weir_api::Status = status.unwrap_or_default();
    let (proxies, silent) = proxies::reports_of_all(runtime_dir)?;
    status.proxies.extend(proxies);
    Ok((status, silent))
}

/// Whether a guard or a proxy runs.
pub fn runs(status: &weir_api::Status) -> bool {
    status.running || !status.proxies.is_empty()
}

/// No weir runs here; how to give the command to one that runs in another network namespace.
pub fn not_running(runtime_dir: &Path, command: &str) -> Failure {
    let hint = elsewhere(runtime_dir, command);
    let hint =
        hint.unwrap_or_else(|| "start it: `weir protect PORT` or `weir run --config FILE`".into());
    Failure::not_running("no weir is running in this network namespace", hint)
}

/// How to give the command to a weir that guards another network namespace; `None`: there is none.
pub fn elsewhere(runtime_dir: &Path, command: &str) -> Option<String> {
    let guarded = guarded(runtime_dir);
    let (inode, more) = guarded.split_first()?;
    let mut others = containers::spaces().into_iter();
    let found = others.find(|space| space.inode == *inode);
    let space = found.unwrap_or_else(|| Space::new(*inode));
    let more = match more.len() {
        0 => String::new(),
        n => format!(" (and others guard {n} more)"),
    };
    let (name, enter) = (space.describe(), space.enter());
    Some(format!("one guards {name}{more}: `{enter} weir {command}`"))
}
