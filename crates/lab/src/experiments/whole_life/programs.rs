//! `weir proxy` of a row, by the row's file.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::site::SITE;
use crate::error::{Context, Result};
use crate::interrupt;
use crate::netns::Netns;
use crate::program::{self, Running};
use crate::server::{LISTEN, sockets_in_state};

const START_LIMIT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(5);

/// A running proxy. It is killed on drop: what it still has would drain for long.
#[derive(Debug)]
pub struct Proxy {
    process: Running,
    /// Its file, its stderr and its runtime directory.
    _folder: tempfile::TempDir,
}

impl Proxy {
    /// Starts it in a namespace, pinned to this CPU, and waits until it listens.
    pub fn start(netns: &Netns, weir: Option<&Path>, config: &str, cpu: usize) -> Result<Proxy> {
        let weir = match weir {
            Some(path) => path.to_path_buf(),
            None => program::find("weir")?,
        };
        let folder = tempfile::TempDir::with_prefix("weir-lab-proxy-")
            .context("cannot create a directory for the proxy")?;
        let file = folder.path().join("weir.toml");
        std::fs::write(&file, config).context(format!("cannot write {}", file.display()))?;
        let path = folder.path().join("stderr");
        let stderr =
            std::fs::File::create(&path).context(format!("cannot create {}", path.display()))?;
        let mut command = Command::new(&weir);
        command.arg("--runtime-dir").arg(folder.path());
        command.args(["proxy", "--config"]).arg(&file);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr);
        let shown = format!("{} proxy", weir.display());
        let child = netns.run_on(Some(cpu), || {
            command.spawn().context(format!("cannot start `{shown}`"))
        })?;
        let mut proxy = Proxy {
            process: Running::new(child, shown, path),
            _folder: folder,
        };
        proxy.await_listening(netns)?;
        Ok(proxy)
    }

    fn await_listening(&mut self, netns: &Netns) -> Result<()> {
        let begun = Instant::now();
        while netns.run(|| sockets_in_state(LISTEN, Some(SITE.1)))? == 0 {
            interrupt::check()?;
            self.check_alive()?;
            if begun.elapsed() > START_LIMIT {
                return Err(self.process.failure("it does not listen"));
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Fails, with its stderr, if it has ended by itself.
    pub fn check_alive(&mut self) -> Result<()> {
        self.process.check_alive()
    }
}
