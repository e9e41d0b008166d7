//! Policies under test, in the papers' words, and the `weir protect` that carries them out.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Output, Stdio};
use std::str::FromStr;
use std::sync::mpsc;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::bed::Bed;
use crate::error::{Context, Error, Result};
use crate::interrupt;
use crate::program::Running;
use crate::run::results::Parameters;

const START_LIMIT: Duration = Duration::from_secs(15);
const ABORT_SYSCTL: &str = "net.ipv4.tcp_abort_on_overflow";

/// What protects the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Protection {
    /// Nothing: the kernel as it is.
    None,
    /// The kernel's own abort: the sysctl tcp_abort_on_overflow in the server's namespace.
    KernelAbort,
    /// `weir protect` with these flags.
    Weir(Vec<String>),
    /// `weir run` with this configuration.
    Config(String),
}

/// A policy and the name under which it is reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// The words as the user wrote them.
    pub label: String,
    /// What they mean.
    pub protection: Protection,
}

impl FromStr for Policy {
    type Err = String;

    /// Words: `default`, `kernel-abort`, or one of `abort`, `reserv`, `no-syn-drop`, with
    /// `rst-syn`, `rst-fin`, `admit=queue|wait`, `target-wait=20ms`, `overbook=F`, `front=tc|xdp`,
    /// `observe`. `default` with other words is weir's `establish = default`.
    fn from_str(text: &str) -> std::result::Result<Policy, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let label = words.join(" ");
        let protection = match words.as_slice() {
            [] => return Err("an empty policy".into()),
            ["default"] => Protection::None,
            ["kernel-abort"] => Protection::KernelAbort,
            [
                establish @ ("default" | "abort" | "reserv" | "no-syn-drop"),
                options @ ..,
            ] => Protection::Weir(weir_flags(establish, options)?),
            [word, ..] => {
                return Err(format!(
                    "`{word}` is no policy (default, kernel-abort, abort, reserv, no-syn-drop)"
                ));
            }
        };
        Ok(Policy { label, protection })
    }
}

fn weir_flags(establish: &str, options: &[&str]) -> std::result::Result<Vec<String>, String> {
    let mut flags = vec![("--establish", establish)];
    // no-syn-drop rejects a SYN only where a cookie is impossible; weir's default is right there.
    match options.contains(&"rst-syn") {
        true => flags.push(("--reject-syn", "rst")),
        false if establish == "no-syn-drop" => {}
        false => flags.push(("--reject-syn", "drop")),
    }
    for option in options {
        flags.push(match option.split_once('=') {
            None if *option == "rst-syn" => continue,
            None if *option == "rst-fin" => ("--half-close", "reset"),
            None if *option == "observe" => ("--observe", ""),
            Some(("admit", value)) => ("--admit", value),
            Some(("target-wait", value)) => ("--target-wait", value),
            Some(("interval", value)) => ("--interval", value),
            Some(("overbook", value)) => ("--overbook", value),
            Some(("front", value)) => ("--front", value),
            _ => return Err(format!("`{option}` is no word of a policy")),
        });
    }
    let words = flags.into_iter().flat_map(|(flag, value)| [flag, value]);
    Ok(words
        .filter(|word| !word.is_empty())
        .map(str::to_string)
        .collect())
}

/// A list of policies, separated by commas.
pub fn parse_list(text: &str) -> std::result::Result<Vec<Policy>, String> {
    text.split(',').map(|part| part.parse()).collect()
}

/// The policy of a case, by its words.
pub fn of_case<'a>(policies: &'a [Policy], case: &Parameters) -> Result<&'a Policy> {
    let label = case.get("policy");
    let found = policies.iter().find(|policy| Some(&policy.label) == label);
    found.ok_or_else(|| Error::usage("bad case", "it has no policy of this run"))
}

/// A policy in force; taken off by [`InForce::end`], at the latest on drop.
#[derive(Debug)]
pub struct InForce<'a> {
    bed: &'a Bed,
    weir: Option<Weir>,
    run: Option<crate::weir::Weir<'a>>,
    kernel_abort: bool,
}

/// What weir said about a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Account {
    /// `weir status --json`, taken before it was stopped.
    pub status: Option<Value>,
    /// What it printed from start to end.
    pub report: String,
}

impl<'a> InForce<'a> {
    /// Puts a policy in force on a port of the server namespace.
    pub fn start(
        bed: &'a Bed,
        policy: &Policy,
        weir: Option<&Path>,
        port: u16,
    ) -> Result<InForce<'a>> {
        let mut in_force = InForce {
            bed,
            weir: None,
            run: None,
            kernel_abort: false,
        };
        match &policy.protection {
            Protection::None => {}
            Protection::Config(config) => {
                in_force.run = Some(crate::weir::Weir::run(&bed.server, weir, config)?);
            }
            Protection::KernelAbort => {
                bed.server.set_sysctl(ABORT_SYSCTL, "1")?;
                in_force.kernel_abort = true;
            }
            Protection::Weir(flags) => {
                let program = match weir {
                    Some(path) => path.to_path_buf(),
                    None => crate::program::find("weir")?,
                };
                in_force.weir = Some(Weir::start(bed, program, flags, port)?);
            }
        }
        Ok(in_force)
    }

    /// Fails if weir has ended by itself.
    pub fn check_alive(&mut self) -> Result<()> {
        if let Some(run) = &mut self.run {
            run.check_alive()?;
        }
        self.weir
            .as_mut()
            .map_or(Ok(()), |weir| weir.process.check_alive())
    }

    /// Runs a weir command, in words, beside `weir protect`.
    pub fn command(&self, words: &str) -> Result<()> {
        let what = || format!("`weir {words}` failed");
        let weir = self.weir.as_ref();
        let weir = weir.ok_or_else(|| Error::failed(what(), "no `weir protect` is in force"))?;
        let words: Vec<&str> = words.split_whitespace().collect();
        let output = weir.command(self.bed, &words)?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(Error::failed(what(), said.trim()))
    }

    /// Takes the policy off and returns what weir said; `None` without weir.
    pub fn end(mut self) -> Result<Option<Account>> {
        if let Some(run) = self.run.take() {
            let status = Some(run.status()?);
            run.end()?;
            return Ok(Some(Account {
                status,
                report: String::new(),
            }));
        }
        self.weir.take().map(|weir| weir.end(self.bed)).transpose()
    }
}

impl Drop for InForce<'_> {
    fn drop(&mut self) {
        if self.kernel_abort {
            let _ = self.bed.server.set_sysctl(ABORT_SYSCTL, "0");
        }
    }
}

#[derive(Debug)]
struct Weir {
    process: Running,
    program: PathBuf,
    first_line: String,
    rest: BufReader<ChildStdout>,
    /// What `process` says.
    _stderr: tempfile::NamedTempFile,
}

impl Weir {
    fn start(bed: &Bed, program: PathBuf, flags: &[String], port: u16) -> Result<Weir> {
        let shown = format!("{} protect {port} {}", program.display(), flags.join(" "));
        let stderr =
            tempfile::NamedTempFile::new().context("cannot create a file for weir's stderr")?;
        let target: File = stderr
            .reopen()
            .context("cannot open the file for weir's stderr")?;
        let mut command = Command::new(&program);
        command.arg("protect").arg(port.to_string()).args(flags);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(target)
            .process_group(0);
        let mut child = bed
            .server
            .run(|| command.spawn().context(format!("cannot start `{shown}`")))
            .map_err(|error| {
                error.hint("build it (cargo build --release -p weir) or name it with --weir")
            })?;
        let stdout = child.stdout.take().expect("stdout is piped");
        let mut weir = Weir {
            process: Running::new(child, shown, stderr.path().to_path_buf()),
            program,
            first_line: String::new(),
            rest: BufReader::new(stdout),
            _stderr: stderr,
        };
        weir.await_first_line()?;
        Ok(weir)
    }

    /// weir prints its first line once protection is on.
    fn await_first_line(&mut self) -> Result<()> {
        let (sender, receiver) = mpsc::channel();
        std::thread::scope(|scope| {
            let rest = &mut self.rest;
            scope.spawn(move || {
                let mut line = String::new();
                let _ = sender.send(rest.read_line(&mut line).map(|_| line));
            });
            let line = receiver.recv_timeout(START_LIMIT);
            if line.is_err() {
                // Ends the reader above, which the scope waits for.
                self.process.kill();
            }
            match line {
                Ok(Ok(line)) if !line.is_empty() => self.first_line = line,
                _ => return Err(()),
            }
            Ok(())
        })
        .map_err(|()| {
            self.process.kill();
            self.process.failure("it printed no first line")
        })
    }

    fn end(mut self, bed: &Bed) -> Result<Account> {
        let status = self.status(bed);
        self.process.end(Signal::SIGINT)?;
        let mut report = self.first_line.clone();
        self.rest
            .read_to_string(&mut report)
            .context("cannot read weir's report")?;
        interrupt::check()?;
        Ok(Account { status, report })
    }

    fn status(&self, bed: &Bed) -> Option<Value> {
        let output = self.command(bed, &["status", "--json"]).ok()?;
        serde_json::from_slice(&output.stdout).ok()
    }

    fn command(&self, bed: &Bed, words: &[&str]) -> Result<Output> {
        let mut command = Command::new(&self.program);
        command.args(words).stdin(Stdio::null());
        let what = || format!("cannot run `weir {}`", words.join(" "));
        bed.server.run(|| command.output().context(what()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(text: &str) -> String {
        match text.parse::<Policy>().unwrap().protection {
            Protection::Weir(flags) => flags.join(" "),
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn the_papers_words_become_flags_of_weir_protect() {
        assert_eq!(
            flags("reserv rst-syn"),
            "--establish reserv --reject-syn rst"
        );
        assert_eq!(flags("abort"), "--establish abort --reject-syn drop");
        assert_eq!(flags("no-syn-drop"), "--establish no-syn-drop");
        assert_eq!(
            flags("no-syn-drop rst-fin admit=wait front=xdp"),
            "--establish no-syn-drop --half-close reset --admit wait --front xdp"
        );
    }

    #[test]
    fn default_alone_is_no_weir_at_all() {
        assert_eq!(
            "default".parse::<Policy>().unwrap().protection,
            Protection::None
        );
        assert_eq!(
            flags("default rst-syn"),
            "--establish default --reject-syn rst"
        );
    }

    #[test]
    fn unknown_words_are_named() {
        assert!(
            "drop-all"
                .parse::<Policy>()
                .unwrap_err()
                .contains("`drop-all`")
        );
        assert!(
            "reserv rst-sin"
                .parse::<Policy>()
                .unwrap_err()
                .contains("`rst-sin`")
        );
    }
}
