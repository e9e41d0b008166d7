//! A runtime directory, and `weir` in it.

use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use nix::fcntl::{FcntlArg, fcntl};
use serde_json::Value;
use tempfile::TempDir;
use weir_testbed::wait;

pub use weir_testbed::wait::PATIENCE;

/// A pipe that is full: whoever writes to it waits for its reader.
pub fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = pipe().unwrap();
    let room = fcntl(&writer, FcntlArg::F_SETPIPE_SZ(4096)).unwrap();
    writer.write_all(&vec![b'\n'; room as usize]).unwrap();
    (reader, writer)
}

/// What a scraper of Prometheus sends.
pub const SCRAPE: &[u8] =
    b"GET /metrics HTTP/1.1\r\nHost: weir\r\nAccept: application/openmetrics-text\r\n\r\n";

/// One scrape, from connect to the last byte.
pub fn scrape(address: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(SCRAPE)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// A `weir` that is killed on drop.
pub struct Running(pub Child);

impl Running {
    /// Starts it in the folder.
    pub fn start(folder: &Folder, command: &str) -> Running {
        let mut command = folder.command(command);
        Running(command.stdout(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A folder for control sockets and files; removed on drop.
pub struct Folder {
    /// Where it is.
    pub path: PathBuf,
    _removed_on_drop: TempDir,
}

impl Folder {
    /// An empty one, with `name` in its path.
    pub fn new(name: &str) -> Folder {
        let folder = TempDir::with_prefix(format!("weir-{name}-")).unwrap();
        Folder {
            path: folder.path().to_owned(),
            _removed_on_drop: folder,
        }
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
        let status: Value = serde_json::from_slice(&output.stdout).unwrap();
        let runs = status["running"] == true || status["proxies"] != Value::Array(Vec::new());
        // 4: no weir runs here.
        assert_eq!(
            output.status.code(),
            Some(if runs { 0 } else { 4 }),
            "{output:?}"
        );
        status
    }

    /// Waits until the status is as wanted. A weir that is loading its programs does not answer yet.
    pub fn until(&self, wanted: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        let found = wait::try_until(PATIENCE, || {
            let output = self.weir("status --json");
            last = serde_json::from_slice(&output.stdout).unwrap_or_default();
            wanted(&last).then(|| last.clone())
        });
        found.unwrap_or_else(|| panic!("not within {PATIENCE:?}: {last:#}"))
    }
}
