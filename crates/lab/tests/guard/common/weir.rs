//! The weir under test: the real program in the bed's server namespace.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::OnceLock;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use weir_lab::netns::Netns;

use super::{Bed, until, within};

/// The program, built if cargo has not built it beside this test already.
fn program() -> &'static PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let running = std::env::current_exe().unwrap();
        let beside = running
            .parent()
            .and_then(|deps| deps.parent())
            .unwrap()
            .join("weir");
        if !beside.is_file() {
            build();
        }
        beside
    })
}

fn build() {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--package", "weir"]);
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    let status = cargo.status().unwrap();
    assert!(status.success(), "cargo build --package weir");
}

/// A weir in the background; killed on drop.
pub struct Weir {
    child: Child,
    stdout: BufReader<ChildStdout>,
    /// The first line of `weir protect`.
    pub line: String,
}

impl Weir {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid() as i32), signal).unwrap();
    }

    /// What it prints from now to its end, and how it ends.
    pub fn end(mut self) -> (String, ExitStatus) {
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).unwrap();
        (rest, self.child.wait().unwrap())
    }
}

impl Drop for Weir {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Bed {
    /// A weir command with the bed's runtime directory.
    pub fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(program());
        command
            .arg("--runtime-dir")
            .arg(self.folder.path())
            .args(arguments.split_whitespace());
        command
    }

    /// Runs a weir command in the server namespace to its end.
    pub fn weir(&self, arguments: &str) -> Output {
        within(self.server(), || self.command(arguments).output().unwrap())
    }

    /// Starts a weir in a namespace.
    pub fn spawn(&self, netns: &Netns, arguments: &str) -> Weir {
        let mut command = self.command(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = within(netns, || command.spawn().unwrap());
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Weir {
            child,
            stdout,
            line: String::new(),
        }
    }

    /// Starts `weir protect` and waits until it says that it is on.
    pub fn protect(&self, arguments: &str) -> Weir {
        let mut weir = self.spawn(self.server(), &format!("protect {arguments}"));
        weir.stdout.read_line(&mut weir.line).unwrap();
        if weir.line.is_empty() {
            let mut error = String::new();
            weir.child
                .stderr
                .take()
                .unwrap()
                .read_to_string(&mut error)
                .unwrap();
            panic!("weir protect {arguments}: {error}");
        }
        weir
    }

    /// Starts `weir run` with this config and waits until it runs.
    pub fn run(&self, config: &str) -> Weir {
        self.write_config(config);
        let weir = self.spawn(
            self.server(),
            &format!("run --config {}", self.config().display()),
        );
        until("weir run is up", || {
            (self.status()["running"] == true).then_some(())
        });
        weir
    }

    pub fn config(&self) -> PathBuf {
        self.folder.path().join("weir.toml")
    }

    pub fn write_config(&self, config: &str) {
        std::fs::write(self.config(), config).unwrap();
    }

    pub fn status(&self) -> Value {
        let output = self.weir("status --json");
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// A verdict counter of the listener with this number.
    pub fn counter(&self, listener: usize, name: &str) -> u64 {
        let status = self.status();
        let counter = &status["listeners"][listener]["counters"][name];
        counter
            .as_u64()
            .unwrap_or_else(|| panic!("no counter {name}: {status:#}"))
    }

    /// The verdicts that have fallen on a listener, by name: `[("syn_admitted", 4), …]`.
    pub fn verdicts(&self, listener: usize) -> Vec<(String, u64)> {
        let status = self.status();
        let counters = status["listeners"][listener]["counters"]
            .as_object()
            .unwrap();
        let counted = counters
            .iter()
            .map(|(name, n)| (name.clone(), n.as_u64().unwrap()));
        counted.filter(|(_, n)| *n > 0).collect()
    }
}
