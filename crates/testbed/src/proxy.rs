//! A `weir proxy` under test: the real program.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::error::{Context, Error, Result};

/// A running `weir proxy`; ended on drop.
pub struct Proxy {
    child: Child,
    /// Where it listens.
    pub address: SocketAddr,
}

/// Longest wait for the proxy's end after SIGTERM.
const END_LIMIT: Duration = Duration::from_secs(10);

impl Proxy {
    /// Starts it on a free port, in the namespace of the calling thread.
    pub fn start(program: &Path, arguments: &[String]) -> Result<Proxy> {
        let what = || {
            format!(
                "cannot start {} proxy {}",
                program.display(),
                arguments.join(" ")
            )
        };
        let mut child = Command::new(program)
            .args(["proxy", "--listen", "127.0.0.1:0"])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context(what())?;
        let mut line = String::new();
        let stdout = child.stdout.take().expect("it is piped");
        let read = BufReader::new(stdout).read_line(&mut line);
        let address = address_in(&line);
        match (read, address) {
            (Ok(_), Some(address)) => Ok(Proxy { child, address }),
            (_, _) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(Error::failed(what(), format!("it said {line:?}")))
            }
        }
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

/// `weir: proxy on 127.0.0.1:40123 (mode …`
fn address_in(line: &str) -> Option<SocketAddr> {
    let rest = line.split_once("proxy on ")?.1;
    rest.split_whitespace().next()?.parse().ok()
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let pid = Pid::from_raw(self.child.id() as i32);
        let _ = kill(pid, Signal::SIGTERM);
        let end = Instant::now() + END_LIMIT;
        while let Ok(None) = self.child.try_wait() {
            if Instant::now() > end {
                let _ = self.child.kill();
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.wait();
    }
}
