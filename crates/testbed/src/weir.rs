//! A `weir run` or `weir proxy` of an experiment's own: its configuration, its runtime directory, its end.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::error::{Context, Error, Result};
use crate::interrupt;
use crate::netns::Netns;
use crate::program::{self, Running};

/// The kernel verifies the programs first, for seconds on a machine whose CPUs others use too.
const START_LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(5);

/// A running weir; killed on drop.
#[derive(Debug)]
pub struct Weir<'a> {
    netns: &'a Netns,
    program: PathBuf,
    /// Configuration, stderr, and weir's runtime directory.
    folder: tempfile::TempDir,
    process: Running,
}

impl<'a> Weir<'a> {
    /// Starts `weir run` with this configuration inside a namespace, and waits until it says that it runs.
    pub fn run(netns: &'a Netns, program: Option<&Path>, config: &str) -> Result<Weir<'a>> {
        Weir::start(netns, None, program, "run", config)
    }

    /// The same of `weir proxy`, pinned to this CPU.
    pub fn proxy(
        netns: &'a Netns,
        cpu: usize,
        program: Option<&Path>,
        config: &str,
    ) -> Result<Weir<'a>> {
        Weir::start(netns, Some(cpu), program, "proxy", config)
    }

    fn start(
        netns: &'a Netns,
        cpu: Option<usize>,
        program: Option<&Path>,
        service: &str,
        config: &str,
    ) -> Result<Weir<'a>> {
        let program = match program {
            Some(path) => path.to_path_buf(),
            None => program::find("weir")?,
        };
        let folder = tempfile::TempDir::with_prefix("weir-lab-weir-")
            .context("cannot create a directory for weir")?;
        let file = folder.path().join("weir.toml");
        std::fs::write(&file, config).context(format!("cannot write {}", file.display()))?;
        let stderr = folder.path().join("stderr");
        let target = std::fs::File::create(&stderr)
            .context(format!("cannot create {}", stderr.display()))?;
        let mut command = command(&program, folder.path());
        command.arg(service).arg("--config").arg(&file);
        command.stderr(target);
        let shown = format!("{} {service}", program.display());
        let child = netns.run_on(cpu, || {
            let started = command.spawn();
            started.context(format!("cannot start `{shown}`"))
        })?;
        let mut weir = Weir {
            netns,
            program,
            folder,
            process: Running::new(child, shown, stderr),
        };
        weir.await_running()?;
        Ok(weir)
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    fn await_running(&mut self) -> Result<()> {
        let begun = Instant::now();
        loop {
            interrupt::check()?;
            self.check_alive()?;
            // It is of the guard. Proxies are in a list beside it.
            let runs =
                |status: Value| status["running"] == true || status["proxies"][0].is_object();
            if self.status().is_ok_and(runs) {
                return Ok(());
            }
            if begun.elapsed() > START_LIMIT {
                let what = format!("it does not run {START_LIMIT:?} after its start");
                return Err(self.process.failure(&what));
            }
            std::thread::sleep(POLL);
        }
    }

    /// Runs a weir command beside it, with the same runtime directory.
    pub fn command(&self, arguments: &[&str]) -> Result<Output> {
        let mut command = command(&self.program, self.folder.path());
        command.args(arguments).stdout(Stdio::piped());
        let shown = arguments.join(" ");
        let output = self.netns.run(|| {
            command
                .output()
                .context(format!("cannot run `weir {shown}`"))
        })?;
        if output.status.success() {
            return Ok(output);
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(Error::failed(format!("`weir {shown}` failed"), said.trim()))
    }

    /// Puts another configuration in force.
    pub fn reload(&self, config: &str) -> Result<()> {
        let file = self.folder.path().join("weir.toml");
        std::fs::write(&file, config).context(format!("cannot write {}", file.display()))?;
        self.command(&["reload"]).map(drop)
    }

    /// `weir status --json`.
    pub fn status(&self) -> Result<Value> {
        let output = self.command(&["status", "--json"])?;
        serde_json::from_slice(&output.stdout).context("cannot read weir's status")
    }

    /// Fails, with its stderr, if it has ended by itself.
    pub fn check_alive(&mut self) -> Result<()> {
        self.process.check_alive()
    }

    /// Ends it in order.
    pub fn end(mut self) -> Result<()> {
        self.process.end(Signal::SIGTERM)
    }
}

fn command(program: &Path, runtime: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .arg("--runtime-dir")
        .arg(runtime)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command
}
