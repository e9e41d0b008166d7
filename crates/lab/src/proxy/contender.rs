//! The proxies under test, each with an HTTP port and a tunnel port in the proxy namespace, on the
//! proxy's CPU. HAProxy and nginx run with the configurations in `experiments/proxy/`.

use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde::Serialize;

use super::bed::{Bed, FRONT};
use crate::error::{Context, Error, Result};
use crate::interrupt;
use crate::program;
use crate::server::{LISTEN, sockets_in_state};

const HAPROXY: &str = include_str!("../../../../experiments/proxy/haproxy.cfg");
const NGINX: &str = include_str!("../../../../experiments/proxy/nginx.conf");
const START_LIMIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(2);

/// A proxy to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Contender {
    /// `weir proxy` with `--engine auto`.
    Weir,
    /// `weir proxy` with `--engine copy`: what splicing is held against.
    Copy,
    /// HAProxy, one thread, splicing forced.
    Haproxy,
    /// nginx, one worker.
    Nginx,
}

/// What a proxy does with the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// A reverse proxy for HTTP with a pool of connections to the origin.
    Http,
    /// A TCP forwarder, one connection to the origin for each of a client.
    Tunnel,
}

impl Contender {
    /// Its name in tables, JSON and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Contender::Weir => "weir",
            Contender::Copy => "copy",
            Contender::Haproxy => "haproxy",
            Contender::Nginx => "nginx",
        }
    }

    /// Where clients find it in this mode.
    pub fn address(self, mode: Mode) -> SocketAddr {
        (FRONT, self.port(mode)).into()
    }

    fn port(self, mode: Mode) -> u16 {
        8000 + 10 * self as u16 + mode as u16
    }

    fn metrics_port(self) -> u16 {
        8005 + 10 * self as u16
    }

    fn commands(
        self,
        modes: &[Mode],
        origin: SocketAddr,
        weir: Option<&Path>,
        directory: &Path,
    ) -> Result<Vec<Command>> {
        let engine = match self {
            Contender::Haproxy => {
                return self.configured("haproxy", &["-db"], "-f", HAPROXY, origin, directory);
            }
            Contender::Nginx => {
                let prefix = directory.display().to_string();
                return self.configured("nginx", &["-p", &prefix], "-c", NGINX, origin, directory);
            }
            Contender::Weir => "auto",
            Contender::Copy => "copy",
        };
        let weir = weir.map_or_else(|| program::find("weir"), |path| Ok(path.to_path_buf()))?;
        let command = |&mode| {
            let word = match mode {
                Mode::Http => "reverse",
                Mode::Tunnel => "tcp",
            };
            let listen = format!("0.0.0.0:{}", self.port(mode));
            let mut command = Command::new(&weir);
            command.args(["proxy", "--listen", &listen, "--mode", word]);
            command.args(["--backend", &origin.to_string(), "--engine", engine]);
            command
        };
        Ok(modes.iter().map(command).collect())
    }

    fn configured(
        self,
        name: &str,
        arguments: &[&str],
        flag: &str,
        template: &str,
        origin: SocketAddr,
        directory: &Path,
    ) -> Result<Vec<Command>> {
        let text = template
            .replace("{directory}", &directory.display().to_string())
            .replace("{origin}", &origin.to_string())
            .replace("{http_port}", &self.port(Mode::Http).to_string())
            .replace("{tunnel_port}", &self.port(Mode::Tunnel).to_string())
            .replace("{metrics_port}", &self.metrics_port().to_string());
        let path = directory.join(name);
        std::fs::write(&path, text).context(format!("cannot write {}", path.display()))?;
        let mut command = Command::new(name);
        command.args(arguments).arg(flag).arg(&path);
        Ok(vec![command])
    }
}

/// A contender that runs; ended on drop.
#[derive(Debug)]
pub struct Running {
    /// Which one.
    pub contender: Contender,
    /// Leaders of their process groups.
    children: Vec<Child>,
    /// Configuration and stderr.
    directory: tempfile::TempDir,
}

impl Running {
    /// Starts it in front of an origin and waits until it listens in these modes.
    pub fn start(
        bed: &Bed,
        contender: Contender,
        modes: &[Mode],
        origin: SocketAddr,
        weir: Option<&Path>,
    ) -> Result<Running> {
        let directory = tempfile::Builder::new()
            .prefix("weir-lab-proxy-")
            .tempdir()
            .context("cannot create a directory for the proxy")?;
        let commands = contender.commands(modes, origin, weir, directory.path())?;
        let mut running = Running {
            contender,
            children: Vec::new(),
            directory,
        };
        for command in commands {
            running.spawn(bed, command)?;
        }
        running.wait_until_listening(bed, modes)?;
        Ok(running)
    }

    /// Fails with its stderr if it has ended.
    pub fn check_alive(&mut self) -> Result<()> {
        for child in &mut self.children {
            let status = child.try_wait().context("cannot look after the proxy")?;
            if let Some(status) = status {
                interrupt::check()?;
                return Err(Error::failed(
                    format!("the proxy {} does not run", self.contender.name()),
                    format!("it ended with {status}; stderr: {}", self.stderr()),
                ));
            }
        }
        Ok(())
    }

    /// Resident memory of all its processes, in bytes.
    pub fn resident_bytes(&self) -> Result<u64> {
        let groups: Vec<u32> = self.children.iter().map(Child::id).collect();
        let mut kib = 0;
        for entry in std::fs::read_dir("/proc")
            .context("cannot read /proc")?
            .flatten()
        {
            let path = entry.path();
            let stat = std::fs::read_to_string(path.join("stat")).unwrap_or_default();
            if process_group(&stat).is_some_and(|group| groups.contains(&group)) {
                let status = std::fs::read_to_string(path.join("status")).unwrap_or_default();
                kib += resident_kib(&status).unwrap_or(0);
            }
        }
        Ok(kib * 1024)
    }

    fn spawn(&mut self, bed: &Bed, mut command: Command) -> Result<()> {
        let stderr = self.directory.path().join("stderr");
        let stderr = File::options()
            .create(true)
            .append(true)
            .open(&stderr)
            .context(format!("cannot create {}", stderr.display()))?;
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr)
            .process_group(0);
        // The child inherits namespace and CPU from the thread that starts it.
        let child = bed.proxy.run_on(Some(bed.layout.server_cpu), || {
            let name = command.get_program().to_string_lossy().into_owned();
            command.spawn().map_err(|cause| {
                Error::failed(format!("cannot start {name}"), cause)
                    .hint(format!("apt-get install {name}"))
            })
        })?;
        self.children.push(child);
        Ok(())
    }

    fn wait_until_listening(&mut self, bed: &Bed, modes: &[Mode]) -> Result<()> {
        let begun = Instant::now();
        for &mode in modes {
            let port = self.contender.port(mode);
            while bed.proxy.run(|| sockets_in_state(LISTEN, Some(port)))? == 0 {
                self.check_alive()?;
                interrupt::check()?;
                if begun.elapsed() > START_LIMIT {
                    return Err(Error::failed(
                        format!("the proxy {} is not ready", self.contender.name()),
                        format!("nothing listens on port {port}; stderr: {}", self.stderr()),
                    ));
                }
                std::thread::sleep(POLL);
            }
        }
        Ok(())
    }

    fn stderr(&self) -> String {
        let path: PathBuf = self.directory.path().join("stderr");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.trim().to_string()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
            let _ = child.wait();
        }
    }
}

/// Field 5 of /proc/PID/stat; the name in parentheses may hold spaces.
fn process_group(stat: &str) -> Option<u32> {
    let fields = stat.rsplit_once(')')?.1;
    fields.split_whitespace().nth(2)?.parse().ok()
}

fn resident_kib(status: &str) -> Option<u64> {
    let row = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    row.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_group_are_read_from_proc() {
        assert_eq!(process_group("7 (a b) c) S 1 42 42 0"), Some(42));
        assert_eq!(
            resident_kib("Name:\tx\nVmRSS:\t    1234 kB\nRssAnon: 1 kB\n"),
            Some(1234)
        );
    }

    #[test]
    fn every_contender_has_ports_of_its_own() {
        use clap::ValueEnum;
        let all = Contender::value_variants().iter();
        let mut ports: Vec<u16> = all
            .flat_map(|c| [c.port(Mode::Http), c.port(Mode::Tunnel), c.metrics_port()])
            .collect();
        let count = ports.len();
        ports.sort();
        ports.dedup();
        assert_eq!(ports.len(), count);
    }

    #[test]
    fn nothing_is_left_to_fill_in_but_the_proxies_own_braces() {
        let directory = tempfile::tempdir().unwrap();
        let origin = "10.0.0.1:80".parse().unwrap();
        for (contender, name) in [(Contender::Haproxy, "haproxy"), (Contender::Nginx, "nginx")] {
            contender
                .commands(&[], origin, None, directory.path())
                .unwrap();
            let text = std::fs::read_to_string(directory.path().join(name)).unwrap();
            for line in text.lines().filter(|line| !line.starts_with('#')) {
                let named = ["{origin", "{directory", "{http", "{tunnel", "{metrics"];
                assert!(!named.iter().any(|word| line.contains(word)), "{line}");
            }
        }
    }
}
