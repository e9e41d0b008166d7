//! What the commands of real servers share: their files, and whether their programs are installed.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::spec::{Spec, Workers};
use crate::error::{Context, Error, Result};
use crate::needs;

/// Where nginx hands requests to PHP: a TCP port, which weir can guard.
pub const PHP_PORT: u16 = 9000;
/// Port of loopback for what a server waits for.
pub(super) const BEHIND: u16 = 9001;

const WSGI: &str = "\
import time
def app(environ, start_response):
    time.sleep(SERVICE_S)
    start_response('200 OK', [('Content-Length', '6')])
    return [b'hello\\n']
";

/// A command whose program is installed.
pub(super) fn installed(name: &str) -> Result<Command> {
    needs::find_program(name).map_or_else(|| Err(missing(name)), |_| Ok(needs::command(name)))
}

pub(super) fn missing(name: &str) -> Error {
    Error::unsupported(format!("cannot start {name}"), "it is not installed")
        .hint("scripts/setup test installs it")
}

/// The text with these words replaced, one after the other.
pub(super) fn replaced(text: &str, words: &[(&str, String)]) -> String {
    words.iter().fold(text.to_owned(), |text, (word, value)| {
        text.replace(word, value)
    })
}

/// The files of a server.
pub(super) struct Files<'a> {
    pub spec: &'a Spec,
    pub folder: &'a Path,
    pub workers: Workers,
}

impl Files<'_> {
    /// Writes a file with the words in capitals replaced.
    pub fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.folder.join(name);
        std::fs::write(&path, self.fill(text))
            .context(format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    /// The text with the words in capitals replaced.
    pub fn fill(&self, text: &str) -> String {
        let words = [
            ("PHP_PORT", PHP_PORT.to_string()),
            ("BEHIND", BEHIND.to_string()),
            ("PORT", self.spec.port.to_string()),
            ("BACKLOG", self.spec.backlog.to_string()),
            ("WORKERS", self.workers.count.to_string()),
            ("SERVICE_MS", (self.workers.service_s * 1e3).to_string()),
            ("SERVICE_S", self.workers.service_s.to_string()),
            ("FOLDER", self.folder.display().to_string()),
        ];
        replaced(text, &words)
    }

    /// gunicorn with workers of the class `sync` that listen here.
    pub fn gunicorn(&self, address: &str) -> Result<Command> {
        self.write("app.py", WSGI)?;
        let mut command = installed("gunicorn")?;
        command.args(["app:app", "--worker-class", "sync", "--chdir"]);
        command.arg(self.folder).args(["--bind", address]);
        command.args(["--workers", &self.workers.count.to_string()]);
        command.args(["--backlog", &self.spec.backlog.to_string()]);
        Ok(command)
    }
}
