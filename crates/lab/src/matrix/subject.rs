//! The proxy under test: the real program, and what it holds.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::error::{Context, Error, Result};

/// A running `weir proxy`; ended on drop.
pub struct Subject {
    child: Child,
    /// Where it listens.
    pub address: SocketAddr,
}

/// What a process holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holdings {
    /// Descriptors by kind: `socket`, `pipe`, `anon_inode:[eventpoll]`; files by their path.
    pub descriptors: BTreeMap<String, usize>,
    /// Resident memory, in KiB.
    pub rss_kib: u64,
}

/// Longest wait for the proxy's end after SIGTERM.
const END_LIMIT: Duration = Duration::from_secs(10);

impl Subject {
    /// Starts it on a free port, in the namespace of the calling thread.
    pub fn start(program: &Path, arguments: &[String]) -> Result<Subject> {
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
            (Ok(_), Some(address)) => Ok(Subject { child, address }),
            (_, _) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(Error::failed(what(), format!("it said {line:?}")))
            }
        }
    }

    /// What it holds now.
    pub fn holdings(&self) -> Result<Holdings> {
        let process = format!("/proc/{}", self.child.id());
        let what = || format!("cannot read {process}: the proxy has ended");
        let mut descriptors = BTreeMap::new();
        for entry in std::fs::read_dir(format!("{process}/fd")).context(what())? {
            // One that was closed meanwhile has no link any more.
            if let Some(link) = entry.ok().and_then(|entry| entry.path().read_link().ok()) {
                *descriptors
                    .entry(kind(&link.to_string_lossy()))
                    .or_default() += 1;
            }
        }
        let status = std::fs::read_to_string(format!("{process}/status")).context(what())?;
        let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let rss_kib = rss.and_then(|rss| rss.trim().strip_suffix(" kB")?.trim().parse().ok());
        Ok(Holdings {
            descriptors,
            rss_kib: rss_kib.unwrap_or(0),
        })
    }
}

/// `socket:[4711]` is a `socket`; what has no number in brackets is of its own kind.
fn kind(link: &str) -> String {
    match link.split_once(":[") {
        Some((kind, number)) if number.trim_end_matches(']').parse::<u64>().is_ok() => kind.into(),
        _ => link.into(),
    }
}

/// `weir: proxy on 127.0.0.1:40123 (mode …`
fn address_in(line: &str) -> Option<SocketAddr> {
    let rest = line.split_once("proxy on ")?.1;
    rest.split_whitespace().next()?.parse().ok()
}

impl Drop for Subject {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_told_apart_by_kind_not_by_number() {
        assert_eq!(kind("socket:[4711]"), "socket");
        assert_eq!(kind("pipe:[1]"), "pipe");
        assert_eq!(kind("anon_inode:[eventpoll]"), "anon_inode:[eventpoll]");
        assert_eq!(kind("/dev/null"), "/dev/null");
    }
}
