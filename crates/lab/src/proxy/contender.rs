//! The proxies under test, each with an HTTP port and a tunnel port in the proxy namespace, on the
//! proxy's CPU. HAProxy and nginx run with the configurations in `experiments/proxy/`.

use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde::Serialize;

use super::bed::FRONT;
use crate::error::{Context, Error, Result};
use crate::interrupt;
use crate::netns::Netns;
use crate::process::{self, Holdings, Usage};
use crate::program;
use crate::server::{LISTEN, sockets_in_state};

const HAPROXY: &str = include_str!("../../../../experiments/proxy/haproxy.cfg");
const NGINX: &str = include_str!("../../../../experiments/proxy/nginx.conf");
const SQUID: &str = include_str!("../../../../experiments/proxy/squid.conf");
const NGINX_64K: [(&str, &str); 4] = [
    ("{buffering}", "on"),
    ("{buffer_size}", "16k"),
    ("{buffers}", "16 64k"),
    ("{tunnel_buffer}", "64k"),
];
const NGINX_16K: [(&str, &str); 4] = [
    ("{buffering}", "on"),
    ("{buffer_size}", "16k"),
    ("{buffers}", "64 16k"),
    ("{tunnel_buffer}", "16k"),
];
const NGINX_DIRECT: [(&str, &str); 4] = [
    ("{buffering}", "off"),
    ("{buffer_size}", "64k"),
    ("{buffers}", "16 64k"),
    ("{tunnel_buffer}", "32k"),
];
const START_LIMIT: Duration = Duration::from_secs(10);
const END_LIMIT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(2);

/// A proxy to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Contender {
    /// `weir proxy` with `--engine auto`.
    Weir,
    /// `weir proxy` with `--engine copy`: what splicing is held against.
    Copy,
    /// `weir proxy` with `--engine splice`: splicing at every size.
    Splice,
    /// HAProxy, one thread, splicing forced.
    Haproxy,
    /// nginx, one worker.
    Nginx,
    /// `weir proxy` with `--engine sockmap`.
    Sockmap,
    /// HAProxy with buffers of 32 KiB (tune.bufsize) instead of its default of 16.
    #[value(name = "haproxy-32k")]
    #[serde(rename = "haproxy-32k")]
    Haproxy32k,
    /// HAProxy with buffers of 64 KiB.
    #[value(name = "haproxy-64k")]
    #[serde(rename = "haproxy-64k")]
    Haproxy64k,
    /// nginx with buffers of 16 KiB instead of 64.
    #[value(name = "nginx-16k")]
    #[serde(rename = "nginx-16k")]
    Nginx16k,
    /// nginx that passes replies on as they come (proxy_buffering off), with one buffer of 64 KiB.
    #[value(name = "nginx-direct")]
    #[serde(rename = "nginx-direct")]
    NginxDirect,
    /// Squid without a cache, one process; it has no tunnels to an origin of its own.
    Squid,
    /// As `weir`, but the program `weir-before` beside this one: put another build there, to measure a change.
    Before,
}

/// A program, however it is tuned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyProgram {
    /// `weir proxy`.
    Weir,
    /// HAProxy.
    Haproxy,
    /// nginx.
    Nginx,
    /// Squid.
    Squid,
}

/// What a proxy does with the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ProxyMode {
    /// A reverse proxy for HTTP with a pool of connections to the origin.
    Http,
    /// A TCP forwarder, one connection to the origin for each of a client.
    Tunnel,
    /// A forward proxy: GET with absolute URIs, CONNECT. Only weir is one.
    #[value(skip)]
    Forward,
}

impl ProxyMode {
    /// Its name in tables, JSON and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            ProxyMode::Http => "http",
            ProxyMode::Tunnel => "tunnel",
            ProxyMode::Forward => "forward",
        }
    }
}

impl Contender {
    /// Its name in tables, JSON and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Contender::Weir => "weir",
            Contender::Copy => "copy",
            Contender::Splice => "splice",
            Contender::Haproxy => "haproxy",
            Contender::Nginx => "nginx",
            Contender::Sockmap => "sockmap",
            Contender::Haproxy32k => "haproxy-32k",
            Contender::Haproxy64k => "haproxy-64k",
            Contender::Nginx16k => "nginx-16k",
            Contender::NginxDirect => "nginx-direct",
            Contender::Squid => "squid",
            Contender::Before => "before",
        }
    }

    /// The program that runs.
    pub fn program(self) -> ProxyProgram {
        use Contender::*;
        match self {
            Weir | Copy | Splice | Sockmap | Before => ProxyProgram::Weir,
            Haproxy | Haproxy32k | Haproxy64k => ProxyProgram::Haproxy,
            Nginx | Nginx16k | NginxDirect => ProxyProgram::Nginx,
            Squid => ProxyProgram::Squid,
        }
    }

    fn engine(self) -> &'static str {
        match self {
            Contender::Copy | Contender::Splice | Contender::Sockmap => self.name(),
            _ => "auto",
        }
    }

    /// What the configuration files leave open, and this contender's choice.
    fn tuning(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Contender::Haproxy32k => &[("{bufsize}", "32768")],
            Contender::Haproxy64k => &[("{bufsize}", "65536")],
            Contender::Haproxy => &[("{bufsize}", "16384")],
            Contender::Nginx16k => &NGINX_16K,
            Contender::NginxDirect => &NGINX_DIRECT,
            _ => &NGINX_64K,
        }
    }

    /// Where clients find it in this mode.
    pub fn address(self, mode: ProxyMode) -> SocketAddr {
        (FRONT, self.port(mode)).into()
    }

    fn port(self, mode: ProxyMode) -> u16 {
        8000 + 10 * self as u16 + mode as u16
    }

    fn metrics_port(self) -> u16 {
        8005 + 10 * self as u16
    }

    fn commands(self, setting: &Setting, directory: &Path) -> Result<Vec<Command>> {
        match self.program() {
            ProxyProgram::Haproxy => {
                let file = self.configure("haproxy", HAPROXY, setting, directory)?;
                // Listening sockets of several processes share the ports (SO_REUSEPORT).
                let command = || command("haproxy", &["-db".as_ref(), "-f".as_ref(), &file]);
                Ok((0..setting.processes).map(|_| command()).collect())
            }
            ProxyProgram::Nginx => {
                let file = self.configure("nginx", NGINX, setting, directory)?;
                let arguments = ["-p".as_ref(), directory, "-c".as_ref(), &file];
                Ok(vec![command("nginx", &arguments)])
            }
            ProxyProgram::Squid => {
                let file = self.configure("squid", SQUID, setting, directory)?;
                // It writes as user proxy.
                let permissions = std::fs::Permissions::from_mode(0o777);
                std::fs::set_permissions(directory, permissions)
                    .context(format!("cannot open {} to squid", directory.display()))?;
                let mut command = command("squid", &["-N".as_ref(), "-f".as_ref(), &file]);
                // Its shared memory has this name, so that no other Squid of the machine is in its way.
                command.args(["-n", &format!("weirlab{}", std::process::id())]);
                Ok(vec![command])
            }
            ProxyProgram::Weir => self.weir_commands(setting, directory),
        }
    }

    fn weir_commands(self, setting: &Setting, directory: &Path) -> Result<Vec<Command>> {
        let weir = match (self, setting.weir) {
            (Contender::Before, _) => program::find("weir-before")?,
            (_, Some(path)) => path.to_path_buf(),
            (_, None) => program::find("weir")?,
        };
        let command = |&mode| {
            let listen = format!("0.0.0.0:{}", self.port(mode));
            let mut command = Command::new(&weir);
            // It is killed, and would leave its control socket in the machine's.
            command.arg("--runtime-dir").arg(directory);
            command.args(["proxy", "--listen", &listen, "--engine", self.engine()]);
            if setting.processes > 1 {
                command.args(["--share-port", "true"]);
            }
            let backend = setting.origin.to_string();
            match mode {
                ProxyMode::Http => command.args(["--mode", "reverse", "--backend", &backend]),
                ProxyMode::Tunnel => command.args(["--mode", "tcp", "--backend", &backend]),
                ProxyMode::Forward => command.args(["--mode", "forward"]),
            };
            // Builds from before the key open tunnels to every port.
            if mode == ProxyMode::Forward && self != Contender::Before {
                command.args(["--connect-port", &setting.origin.port().to_string()]);
            }
            if let (Some(size), ProxyMode::Http | ProxyMode::Forward) = (setting.cache, mode) {
                command.args(["--cache", size]);
            }
            if let Some(time) = setting.connect_timeout {
                command.args(["--connect-timeout", time]);
            }
            command
        };
        let modes = (0..setting.processes).flat_map(|_| setting.modes);
        Ok(modes.map(command).collect())
    }

    /// Writes the configuration, with its braces filled in; says where.
    fn configure(
        self,
        name: &str,
        template: &str,
        setting: &Setting,
        directory: &Path,
    ) -> Result<PathBuf> {
        let Capacity { maxconn, maxpipes } = setting.capacity;
        let tuned = |text: String, (name, value): &(&str, &str)| text.replace(name, value);
        let text = self.tuning().iter().fold(template.to_string(), tuned);
        let text = text
            .replace("{directory}", &directory.display().to_string())
            .replace("{origin}", &setting.origin.to_string())
            .replace("{origin_host}", &setting.origin.ip().to_string())
            .replace("{origin_port}", &setting.origin.port().to_string())
            .replace("{http_port}", &self.port(ProxyMode::Http).to_string())
            .replace("{tunnel_port}", &self.port(ProxyMode::Tunnel).to_string())
            .replace("{metrics_port}", &self.metrics_port().to_string())
            .replace("{processes}", &setting.processes.to_string())
            .replace("{maxconn}", &maxconn.to_string())
            .replace("{maxpipes}", &maxpipes.to_string());
        let path = directory.join(name);
        std::fs::write(&path, text).context(format!("cannot write {}", path.display()))?;
        Ok(path)
    }
}

fn command(name: &str, arguments: &[&Path]) -> Command {
    let mut command = Command::new(name);
    command.args(arguments);
    command
}

/// What contenders are started for.
#[derive(Debug, Clone, Copy)]
pub struct Setting<'a> {
    /// In these modes they must listen. HAProxy and nginx always listen in both.
    pub modes: &'a [ProxyMode],
    /// Whom they hand requests and tunnels to.
    pub origin: SocketAddr,
    /// The weir program; `None`: beside this program, else from PATH.
    pub weir: Option<&'a Path>,
    /// Processes that share the ports; for weir so many for each mode.
    pub processes: usize,
    /// What each process of HAProxy may hold.
    pub capacity: Capacity,
    /// Memory for replies that weir keeps, as `--cache` takes it.
    pub cache: Option<&'a str>,
    /// How long weir waits for a connection to the origin, as `--connect-timeout` takes it; `None`: its default.
    pub connect_timeout: Option<&'a str>,
}

/// How HAProxy divides the 20 000 descriptors that a process has on the test machines.
#[derive(Debug, Clone, Copy)]
pub struct Capacity {
    /// Tunnels, two descriptors each.
    pub maxconn: usize,
    /// Pipes, two descriptors each.
    pub maxpipes: usize,
}

impl Capacity {
    /// For a few busy connections: as many pipes as they can use.
    pub const BUSY: Capacity = Capacity {
        maxconn: 6_000,
        maxpipes: 3_500,
    };
    /// For as many connections as there can be.
    pub const MANY: Capacity = Capacity {
        maxconn: 9_300,
        maxpipes: 500,
    };
}

/// A contender that runs; ended on drop.
#[derive(Debug)]
pub struct Running {
    /// Which one.
    pub contender: Contender,
    /// Leaders of their process groups.
    children: Vec<Child>,
    /// Configuration, stderr, and the runtime directory of weir.
    directory: tempfile::TempDir,
}

impl Running {
    /// Starts it in front of an origin, in this namespace and on this CPU, and waits until it listens in these modes.
    pub fn start(
        proxy: &Netns,
        cpu: usize,
        contender: Contender,
        setting: &Setting,
    ) -> Result<Running> {
        let directory = tempfile::Builder::new()
            .prefix("weir-lab-proxy-")
            .tempdir()
            .context("cannot create a directory for the proxy")?;
        let commands = contender.commands(setting, directory.path())?;
        let mut running = Running {
            contender,
            children: Vec::new(),
            directory,
        };
        for command in commands {
            running.spawn(proxy, cpu, command)?;
        }
        running.wait_until_listening(proxy, setting)?;
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

    /// What all its processes hold.
    pub fn holdings(&self) -> Result<Holdings> {
        self.pids()?.into_iter().map(Holdings::of).sum()
    }

    /// What all its processes have used so far.
    pub fn usage(&self) -> Result<Usage> {
        self.pids()?.into_iter().map(Usage::of).sum()
    }

    fn pids(&self) -> Result<Vec<u32>> {
        let groups: Vec<u32> = self.children.iter().map(Child::id).collect();
        process::members(&groups)
    }

    fn spawn(&mut self, proxy: &Netns, cpu: usize, mut command: Command) -> Result<()> {
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
        let child = proxy.run_on(Some(cpu), || {
            let name = command.get_program().to_string_lossy().into_owned();
            command.spawn().map_err(|cause| {
                Error::failed(format!("cannot start {name}"), cause)
                    .hint(format!("apt-get install {name}"))
            })
        })?;
        self.children.push(child);
        Ok(())
    }

    fn wait_until_listening(&mut self, proxy: &Netns, setting: &Setting) -> Result<()> {
        let begun = Instant::now();
        for &mode in setting.modes {
            let port = self.contender.port(mode);
            let listening = || proxy.run(|| sockets_in_state(LISTEN, Some(port)));
            while listening()? < setting.processes {
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

    /// Lets the processes end by themselves, and waits for that.
    fn ask_to_end(&mut self) {
        let begun = Instant::now();
        for child in &mut self.children {
            let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGTERM);
            while begun.elapsed() < END_LIMIT && matches!(child.try_wait(), Ok(None)) {
                std::thread::sleep(POLL);
            }
        }
    }

    fn stderr(&self) -> String {
        let path: PathBuf = self.directory.path().join("stderr");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.trim().to_string()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Killed, it would leave its shared memory behind.
        if self.contender.program() == ProxyProgram::Squid {
            self.ask_to_end();
        }
        for child in &mut self.children {
            let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
            let _ = child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_contender_has_ports_of_its_own() {
        use clap::ValueEnum;
        let all = Contender::value_variants().iter();
        let mut ports: Vec<u16> = all
            .flat_map(|c| {
                let modes = [ProxyMode::Http, ProxyMode::Tunnel, ProxyMode::Forward]
                    .map(|mode| c.port(mode));
                [modes.as_slice(), &[c.metrics_port()]].concat()
            })
            .collect();
        let count = ports.len();
        ports.sort();
        ports.dedup();
        assert_eq!(ports.len(), count);
    }

    #[test]
    fn nothing_is_left_to_fill_in_but_the_proxies_own_braces() {
        use clap::ValueEnum;
        let directory = tempfile::tempdir().unwrap();
        let setting = Setting {
            modes: &[],
            origin: "10.0.0.1:80".parse().unwrap(),
            weir: None,
            processes: 1,
            capacity: Capacity::BUSY,
            cache: None,
            connect_timeout: None,
        };
        for contender in Contender::value_variants() {
            let name = match contender.program() {
                ProxyProgram::Weir => continue,
                ProxyProgram::Haproxy => "haproxy",
                ProxyProgram::Nginx => "nginx",
                ProxyProgram::Squid => "squid",
            };
            contender.commands(&setting, directory.path()).unwrap();
            let text = std::fs::read_to_string(directory.path().join(name)).unwrap();
            for line in text.lines().filter(|line| !line.starts_with('#')) {
                let named = [
                    "{origin",
                    "{directory",
                    "{http",
                    "{tunnel",
                    "{m",
                    "{processes",
                    "{buf",
                ];
                assert!(!named.iter().any(|word| line.contains(word)), "{line}");
            }
        }
    }
}
