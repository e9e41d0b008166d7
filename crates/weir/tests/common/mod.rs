//! A runtime directory, and `weir` in it.

use std::io::{PipeReader, PipeWriter, Write, pipe};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, fcntl};
use nix::sched::{CloneFlags, unshare};
use serde_json::Value;

/// Longer than any answer takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Gives this thread a network namespace of its own, with a loopback that is up. False without root; says so.
pub fn in_namespace() -> bool {
    if let Err(errno) = unshare(CloneFlags::CLONE_NEWNET) {
        println!("SKIP: no network namespace of its own: {errno}");
        return false;
    }
    let up = Command::new("ip")
        .args(["link", "set", "lo", "up"])
        .status();
    assert!(up.unwrap().success());
    true
}

/// A pipe that is full: whoever writes to it waits for its reader.
pub fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = pipe().unwrap();
    let room = fcntl(&writer, FcntlArg::F_SETPIPE_SZ(4096)).unwrap();
    writer.write_all(&vec![b'\n'; room as usize]).unwrap();
    (reader, writer)
}

/// A folder for control sockets and files; removed on drop.
pub struct Folder {
    /// Where it is.
    pub path: PathBuf,
}

impl Folder {
    /// An empty one. `name` is unique among the tests.
    pub fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("weir-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder { path }
    }

    /// The config file.
    pub fn config(&self) -> PathBuf {
        self.path.join("weir.toml")
    }

    /// Writes the config file.
    pub fn write_config(&self, text: &str) {
        std::fs::write(self.config(), text).unwrap();
    }

    /// `weir` with these arguments, run in the folder.
    pub fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command
            .arg("--runtime-dir")
            .arg(&self.path)
            .args(arguments.split_whitespace())
            .current_dir(&self.path);
        command
    }

    /// What the command says, once it has ended.
    pub fn weir(&self, arguments: &str) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// `weir status --json`.
    pub fn status(&self) -> Value {
        let output = self.weir("status --json");
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Waits until the status is as wanted. A weir that is loading its programs does not answer yet.
    pub fn until(&self, wanted: impl Fn(&Value) -> bool) -> Value {
        let end = Instant::now() + PATIENCE;
        loop {
            let output = self.weir("status --json");
            let status = serde_json::from_slice(&output.stdout).unwrap_or_default();
            if wanted(&status) {
                return status;
            }
            assert!(Instant::now() < end, "not within {PATIENCE:?}: {status:#}");
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
