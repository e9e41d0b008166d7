//! The weir under test: the real program in the bed's server namespace.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use weir_testbed::netns::{Netns, bind_over};

use super::{Bed, until, within};

/// A weir in the background; killed on drop.
pub struct Weir {
    child: Child,
    stdout: BufReader<ChildStdout>,
    /// The last line of `weir protect` that was read, at first the first one.
    pub line: String,
}

impl Weir {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid() as i32), signal).unwrap();
    }

    /// Takes the next line that it prints.
    pub fn next_line(&mut self) -> &str {
        self.line.clear();
        self.stdout.read_line(&mut self.line).unwrap();
        &self.line
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
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
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
        self.spawn_with(netns, arguments, || {})
    }

    fn spawn_with(&self, netns: &Netns, arguments: &str, before: impl FnOnce() + Send) -> Weir {
        let mut command = self.command(arguments);
        // A file takes all that it says; of a pipe that nobody reads lines would be lost.
        let log = File::create(self.log()).unwrap();
        command.stdout(Stdio::piped()).stderr(log);
        let mut child = within(netns, || {
            before();
            command.spawn().unwrap()
        });
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Weir {
            child,
            stdout,
            line: String::new(),
        }
    }

    /// Starts `weir protect` and waits until it says that it is on.
    pub fn protect(&self, arguments: &str) -> Weir {
        self.protecting(arguments, || {})
    }

    /// The same with this folder in the place of /var/lib, where engines keep the names of containers.
    pub fn protect_with_lib(&self, lib: &Path, arguments: &str) -> Weir {
        self.protecting(arguments, || bind_over(lib, Path::new("/var/lib")).unwrap())
    }

    fn protecting(&self, arguments: &str, before: impl FnOnce() + Send) -> Weir {
        let mut weir = self.spawn_with(self.server(), &format!("protect {arguments}"), before);
        weir.next_line();
        if weir.line.is_empty() {
            let error = std::fs::read_to_string(self.log()).unwrap();
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
        until("weir run is up", || self.is_running().then_some(()));
        weir
    }

    /// Whether weir runs and answers: it has its socket before its programs are loaded, which takes a slow machine longer
    /// than `weir status` waits.
    fn is_running(&self) -> bool {
        let output = self.weir("status --json");
        let status = || serde_json::from_slice::<Value>(&output.stdout).unwrap();
        output.status.success() && status()["running"] == true
    }

    /// What the last weir in the background has said on its standard error.
    pub fn log_text(&self) -> String {
        std::fs::read_to_string(self.log()).unwrap()
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("weir.stderr")
    }

    pub fn config(&self) -> PathBuf {
        self.folder.path().join("weir.toml")
    }

    pub fn write_config(&self, config: &str) {
        std::fs::write(self.config(), config).unwrap();
    }

    pub fn status(&self) -> Value {
        let output = self.weir("status --json");
        // 4: no weir runs here, which the report says too.
        assert!(matches!(output.status.code(), Some(0 | 4)), "{output:?}");
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
