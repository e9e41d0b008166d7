//! `weir reload`: the running `weir run` and every `weir proxy` read their config files again, or only those
//! that are named. It exits with 5 if a listener of theirs is not in force then.

use std::path::{Path, PathBuf};

use serde::Serialize;
use weir_api::{Question, Status};

use crate::cli::Reload;
use crate::daemon::proxies::Peers;
use crate::failure::{Cause, Code, Failure, Result};
use crate::ipc::control::{ask, ask_at, namespace};
use crate::show::describe::part;
use crate::show::output::{print, print_json, warn_text};

/// Runs the command. Each process is asked, whatever another one says.
pub fn run(runtime_dir: &Path, args: &Reload) -> Result<()> {
    let mut running = find(runtime_dir)?;
    if running.is_empty() {
        return Err(Failure::not_running(
            "no weir is running in this network namespace",
            "start it: `weir run --config FILE` or `weir proxy --config FILE`",
        ));
    }
    if !args.processes.is_empty() {
        running = named(running, &args.processes)?;
    }
    let alone = running.len() == 1;
    // One that was started with flags has nothing to read (but opens its logs again): no failure beside others that have.
    let some_have_files = running.iter().any(Running::has_file);
    let pass_over = args.processes.is_empty() && some_have_files;
    let confirm_s = args.confirm.map(|time| time.as_secs());
    let mut reloads = Vec::new();
    let mut failed = Vec::new();
    for process in running {
        let has_no_file = process.identity.is_ok() && !process.has_file();
        let (reload, failure) = process.reload(runtime_dir, confirm_s);
        if pass_over && has_no_file {
            reload
                .errors
                .iter()
                .for_each(|cause| warn_text(&cause.message));
            reloads.push(reload);
            continue;
        }
        if !args.json && failure.is_none() {
            reload.tell(alone)?;
        }
        failed.extend(failure);
        failed.extend(reload.in_part());
        reloads.push(reload);
    }
    if args.json {
        print_json(&reloads)?;
    }
    Failure::all(failed).map_or(Ok(()), Err)
}

/// A process that can reload.
struct Running {
    /// The socket of one of proxies; that of the guard has its own name.
    proxies_at: Option<PathBuf>,
    /// Who it is, as it says itself.
    identity: Result<Identity>,
}

#[derive(Debug, Default, Clone)]
struct Identity {
    pid: u32,
    config: Option<String>,
    /// Of its listeners, QUIC listeners, destinations and proxies.
    names: Vec<String>,
}

/// What became of it, for `--json`.
#[derive(Debug, Serialize)]
struct Reloaded {
    /// The process; null if it does not say.
    pid: Option<u32>,
    /// Its config file.
    config: Option<String>,
    /// Listeners of the file, those that are not in force too; null if nothing has changed.
    listeners: Option<usize>,
    /// QUIC listeners, likewise.
    quic: Option<usize>,
    /// Those of them that are not in force.
    quic_not_in_force: usize,
    /// Destinations in force, likewise.
    destinations: Option<usize>,
    /// Proxies in force, likewise.
    proxies: Option<usize>,
    /// Listeners that are not in force, and why.
    not_in_force: Vec<Cause>,
    /// What is hardly meant in the file, and what is in force otherwise than asked.
    warnings: Vec<String>,
    /// Seconds after which the file before is in force again; null: this one is in force for good.
    confirm_s: Option<u64>,
    /// Why nothing has changed; empty if it has.
    errors: Vec<Cause>,
}

/// All of this network namespace; who has ended is passed over.
fn find(runtime_dir: &Path) -> Result<Vec<Running>> {
    let guard = ask(runtime_dir, namespace()?, &Question::Status).transpose();
    let guard = guard.map(|answer| Running {
        proxies_at: None,
        identity: answer.map(identity),
    });
    let peers = Peers::find(runtime_dir)?;
    let proxies = peers.paths().iter().filter_map(|path| {
        let answer = ask_at(path, &Question::Status).transpose()?;
        Some(Running {
            proxies_at: Some(path.clone()),
            identity: answer.map(identity),
        })
    });
    Ok(guard.into_iter().chain(proxies).collect())
}

fn identity(report: Status) -> Identity {
    let Status {
        process,
        listeners,
        quic,
        destinations,
        proxies,
        ..
    } = report;
    let names = (listeners.into_iter().map(|listener| listener.name))
        .chain(quic.into_iter().map(|quic| quic.name))
        .chain(destinations.into_iter().map(|destination| destination.name));
    let first = proxies.first();
    match process {
        Some(process) => Identity {
            pid: process.pid,
            config: process.config,
            names: names.collect(),
        },
        None => Identity {
            pid: first.map_or(0, |proxy| proxy.pid),
            config: first.and_then(|proxy| proxy.config.clone()),
            names: proxies.into_iter().map(|proxy| proxy.name).collect(),
        },
    }
}

/// Those that are meant.
///
/// # Errors
/// A word means none of them: then none is to be reloaded.
fn named(running: Vec<Running>, words: &[String]) -> Result<Vec<Running>> {
    let means = |word: &String, process: &Running| {
        let identity = process.identity.as_ref();
        identity.is_ok_and(|identity| identity.is(word))
    };
    for word in words {
        if !running.iter().any(|process| means(word, process)) {
            return Err(Failure::failed(
                format!(
                    "no process of weir here has the id, the config file, the listener, the destination or the proxy {word:?}"
                ),
                "`weir status --json` has their ids (pid), files (config) and names (name)",
            ));
        }
    }
    let is_meant = |process: &Running| words.iter().any(|word| means(word, process));
    Ok(running.into_iter().filter(is_meant).collect())
}

impl Identity {
    fn is(&self, word: &str) -> bool {
        word == self.pid.to_string()
            || self.names.iter().any(|name| name == word)
            || self
                .config
                .as_ref()
                .is_some_and(|own| Identity::is_file(own, word))
    }

    /// Whether the file that it calls `own` is the one that is called `word` here.
    fn is_file(own: &str, word: &str) -> bool {
        let same =
            || Some(Path::new(own).canonicalize().ok()? == Path::new(word).canonicalize().ok()?);
        own == word || same().unwrap_or(false)
    }
}

impl Running {
    /// Whether it is known to have a config file.
    fn has_file(&self) -> bool {
        let identity = self.identity.as_ref();
        identity.is_ok_and(|identity| identity.config.is_some())
    }

    fn reload(self, runtime_dir: &Path, confirm_s: Option<u64>) -> (Reloaded, Option<Failure>) {
        let question = Question::Reload { confirm_s };
        let answer: Result<Option<weir_api::Reloaded>> = match (&self.identity, &self.proxies_at) {
            // It has not answered the first time.
            (Err(failure), _) => Err(failure.clone()),
            (Ok(_), Some(path)) => ask_at(path, &question),
            (Ok(_), None) => namespace().and_then(|space| ask(runtime_dir, space, &question)),
        };
        let (in_force, failure) = match answer {
            Ok(Some(reloaded)) if reloaded.confirm_s == confirm_s => (Some(reloaded), None),
            Ok(Some(_)) => (None, Some(is_for_good())),
            Ok(None) => (
                None,
                Some(Failure::failed("the process has just ended", "")),
            ),
            Err(failure) => (None, Some(failure)),
        };
        let identity = self.identity.ok();
        let changed = in_force.is_some();
        let in_force = in_force.unwrap_or_default();
        let number = |number| changed.then_some(number);
        let reloaded = Reloaded {
            pid: identity.as_ref().map(|identity| identity.pid),
            config: identity.and_then(|identity| identity.config),
            listeners: number(in_force.listeners),
            quic: number(in_force.quic),
            quic_not_in_force: in_force.quic_not_in_force,
            destinations: number(in_force.destinations),
            proxies: number(in_force.proxies),
            not_in_force: in_force.not_in_force,
            warnings: in_force.warnings,
            confirm_s: confirm_s.filter(|_| changed),
            errors: failure
                .iter()
                .flat_map(|failure| failure.causes.clone())
                .collect(),
        };
        (reloaded, failure)
    }
}

impl Reloaded {
    /// The failure to put some listener in force, though the file is.
    fn in_part(&self) -> Option<Failure> {
        let causes = self.not_in_force.clone();
        (!causes.is_empty()).then_some(Failure {
            code: Code::NotInForce,
            causes,
        })
    }

    /// For people; which process it is, if there are others.
    fn tell(&self, alone: bool) -> Result<()> {
        self.warnings.iter().for_each(warn_text);
        let of = match (alone, self.pid) {
            (false, Some(pid)) => format!(
                "{}: ",
                self.config.as_ref().map_or_else(
                    || format!("pid {pid}"),
                    |config| format!("{config} (pid {pid})")
                )
            ),
            _ => String::new(),
        };
        let quic_off = self.quic_not_in_force;
        let off = self.not_in_force.len().saturating_sub(quic_off);
        let in_force = [
            (self.listeners, off, "listener"),
            (self.quic, quic_off, "QUIC listener"),
            (self.destinations, 0, "destination"),
            (self.proxies, 0, "proxy"),
        ];
        let in_force = in_force
            .into_iter()
            .filter_map(|(n, off, thing)| Some((n.filter(|n| *n > 0)?, off, thing)));
        in_force.into_iter().try_for_each(|(n, off, thing)| {
            print(&format!(
                "{of}{} in force\n",
                part(n.saturating_sub(off), n, thing)
            ))
        })?;
        let Some(s) = self.confirm_s else {
            return Ok(());
        };
        print(&format!(
            "{of}for {s} s: then the file before is in force again, unless `weir reload` confirms this one\n"
        ))
    }
}

/// An older process does not know of trials.
fn is_for_good() -> Failure {
    Failure::failed(
        "the running weir is older than this program: the file is in force for good",
        "start weir again, or put the file before in its place and `weir reload`",
    )
}
