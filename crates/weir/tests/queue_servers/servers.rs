//! Servers that people run. Each replies with a number that orders its accepts (`stamp=N`).

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use weir_testbed::needs;
use weir_testbed::process::stop_group;
use weir_testbed::tcp_table::{LISTEN, sockets_in_state};

use super::bed::{Bed, until};
use super::load;

/// How a server accepts, and the port that is its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// One worker, one accept a turn.
    Nginx,
    /// Four workers at one socket, each taking all that waits.
    NginxMultiAccept,
    /// Four workers with a socket each.
    NginxReuseport,
    /// Four processes, each with one connection at a time.
    ApachePrefork,
    /// accept() that waits.
    PythonBlocking,
    /// The same, which then takes 1 ms for each connection and no CPU.
    PythonSlow,
    /// http.server, by the module selectors.
    PythonSelectors,
    /// epoll, level-triggered.
    PythonLevel,
    /// epoll, edge-triggered: takes all that waits.
    PythonEdge,
    /// net/http without MPTCP.
    Go,
    /// net/http as it is.
    GoMptcp,
    /// http.
    Node,
    /// `weir proxy` before a server of its own, whose numbers are in the order in which the proxy asked.
    WeirProxy,
    /// A process that a new one with a socket of its own takes over from (`-sf`). Its numbers are no accepts'.
    Haproxy,
    /// A master that hands its socket to each new worker (`-W`).
    HaproxyMaster,
}

/// Processes of the servers that have several.
const WORKERS: usize = 4;

impl Program {
    pub fn port(self) -> u16 {
        8080 + self as u16
    }

    /// Processes that accept.
    pub fn workers(self) -> usize {
        match self {
            Program::NginxMultiAccept | Program::NginxReuseport | Program::ApachePrefork => WORKERS,
            _ => 1,
        }
    }

    /// Listening sockets.
    pub fn sockets(self) -> usize {
        match self {
            Program::NginxReuseport => WORKERS,
            _ => 1,
        }
    }

    fn needs(self) -> &'static str {
        match self {
            Program::Nginx | Program::NginxMultiAccept | Program::NginxReuseport => "nginx",
            Program::ApachePrefork => "apache2",
            Program::Go | Program::GoMptcp => "go",
            Program::Node => "node",
            Program::Haproxy | Program::HaproxyMaster => "haproxy",
            _ => "python3",
        }
    }

    /// Whether it can be started here; says so if not.
    pub fn is_installed(self) -> bool {
        needs::programs(&[self.needs()])
    }

    fn command(self, bed: &Bed) -> Command {
        let port = self.port().to_string();
        let python_for = |way: &str, service_s: &str| {
            command("python3", &[&source("server.py"), way, &port, service_s])
        };
        let python = |way: &str| python_for(way, "0");
        match self {
            Program::Nginx => nginx(bed, self.port(), 1, "", ""),
            Program::NginxMultiAccept => {
                nginx(bed, self.port(), WORKERS, "multi_accept on;", "backlog=512")
            }
            Program::NginxReuseport => nginx(bed, self.port(), WORKERS, "", "reuseport"),
            Program::ApachePrefork => apache(bed, self.port()),
            Program::PythonBlocking => python("blocking"),
            Program::PythonSlow => python_for("blocking", "0.001"),
            Program::PythonSelectors => python("selectors"),
            Program::PythonLevel => python("level"),
            Program::PythonEdge => python("edge"),
            Program::Go => {
                let mut server = go(bed, &port);
                server.env("GODEBUG", "multipathtcp=0");
                server
            }
            Program::GoMptcp => go(bed, &port),
            Program::Node => command("node", &[&source("server.mjs"), &port]),
            Program::WeirProxy => weir_proxy(bed, self.port()),
            Program::Haproxy => haproxy(bed, self.port(), &["-db"]),
            Program::HaproxyMaster => haproxy(bed, self.port(), &["-W", "-db"]),
        }
    }
}

fn command(program: &str, arguments: &[&str]) -> Command {
    let mut command = needs::command(program);
    command.args(arguments);
    command
}

fn source(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/queue_servers/servers");
    folder.join(name).display().to_string()
}

fn write(path: PathBuf, text: String) -> String {
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

fn nginx(bed: &Bed, port: u16, workers: usize, events: &str, listen: &str) -> Command {
    let folder = bed.folder().display();
    // $connection counts the accepts of all workers.
    let worker = if listen == "reuseport" {
        " worker=$pid"
    } else {
        ""
    };
    let text = format!(
        "daemon off; user root; worker_processes {workers}; pid {folder}/nginx{port}.pid;\n\
         error_log stderr;\nevents {{ worker_connections 1024; {events} }}\n\
         http {{ access_log off; server {{ listen {port} {listen}; return 200 \"stamp=$connection{worker}\\n\"; }} }}\n"
    );
    let config = write(bed.folder().join(format!("nginx{port}.conf")), text);
    command("nginx", &["-e", "stderr", "-c", &config])
}

fn apache(bed: &Bed, port: u16) -> Command {
    const MODULES: &str = "/usr/lib/apache2/modules";
    let folder = bed.folder().display();
    std::fs::write(bed.folder().join("index.html"), "hello\n").unwrap();
    // %t: when the request came, read after the accept, µs.
    let text = format!(
        "ServerRoot {folder}\nServerName localhost\nListen {port}\nPidFile {folder}/apache.pid\n\
         DefaultRuntimeDir {folder}\nMutex file:{folder} default\nErrorLog {folder}/apache.log\n\
         LoadModule mpm_prefork_module {MODULES}/mod_mpm_prefork.so\n\
         LoadModule authz_core_module {MODULES}/mod_authz_core.so\n\
         LoadModule dir_module {MODULES}/mod_dir.so\n\
         LoadModule headers_module {MODULES}/mod_headers.so\n\
         User www-data\nGroup www-data\nKeepAlive Off\n\
         ServerLimit {WORKERS}\nMaxRequestWorkers {WORKERS}\nStartServers {WORKERS}\n\
         MinSpareServers {WORKERS}\nMaxSpareServers {WORKERS}\n\
         DocumentRoot {folder}\nDirectoryIndex index.html\nHeader set Stamp \"stamp=%t\"\n"
    );
    let config = write(bed.folder().join("apache.conf"), text);
    command("apache2", &["-D", "FOREGROUND", "-f", &config])
}

fn go(bed: &Bed, port: &str) -> Command {
    let program = bed.folder().join("server");
    if !program.exists() {
        let folder = bed.folder();
        std::fs::copy(source("server.go"), folder.join("server.go")).unwrap();
        // From this version on, Go listens with MPTCP by default.
        std::fs::write(folder.join("go.mod"), "module server\n\ngo 1.24\n").unwrap();
        let mut build = command("go", &["build", "-o", &program.display().to_string()]);
        build.env("CGO_ENABLED", "0").current_dir(folder);
        assert!(build.status().unwrap().success());
    }
    let mut server = Command::new(program);
    server.arg(port);
    server
}

fn haproxy(bed: &Bed, port: u16, way: &[&str]) -> Command {
    let text = format!(
        "defaults\n  mode http\n  timeout client 10s\n  timeout connect 10s\n  timeout server 10s\n\
         frontend web\n  bind :{port}\n  \
         http-request return status 200 content-type text/plain string \"stamp=0\\n\"\n"
    );
    let config = write(bed.folder().join(format!("haproxy{port}.cfg")), text);
    let mut command = command("haproxy", way);
    command.args(["-f", &config]);
    command
}

fn weir_proxy(bed: &Bed, port: u16) -> Command {
    let (front, back) = (format!("127.0.0.1:{port}"), port + 1000);
    let proxy = bed.command(&[
        "proxy",
        "--mode",
        "reverse",
        "--threads",
        "1",
        "--listen",
        &front,
    ]);
    // One process group: the server is stopped and ended with the proxy.
    let both = "python3 \"$1\" blocking \"$2\" 0 & shift 2; exec \"$@\"";
    let mut shell = command("sh", &["-c", both, "sh", &source("server.py")]);
    shell.arg(back.to_string()).arg(proxy.get_program());
    shell
        .args(proxy.get_args())
        .arg(format!("--backend=127.0.0.1:{back}"));
    shell.envs(
        proxy
            .get_envs()
            .filter_map(|(key, value)| Some((key, value?))),
    );
    shell
}

/// A running server; killed on drop with its workers.
pub struct Server {
    program: Program,
    /// The leader of their process group.
    child: Child,
    /// That took over from it.
    successors: Vec<Child>,
}

impl Server {
    /// Starts it and waits until it replies.
    pub fn start(bed: &Bed, program: Program) -> Server {
        let stderr = bed.folder().join(format!("stderr{}", program.port()));
        let mut command = program.command(bed);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&stderr).unwrap())
            .process_group(0);
        let mut server = Server {
            program,
            child: bed.within(|| command.spawn().unwrap()),
            successors: Vec::new(),
        };
        let port = program.port();
        until("the server replies", || {
            let ended = server.child.try_wait().unwrap();
            let said = || std::fs::read_to_string(&stderr).unwrap_or_default();
            assert!(ended.is_none(), "{program:?} ended: {}", said());
            let listening = bed.within(|| sockets_in_state(LISTEN, Some(port)).unwrap());
            // Parking listeners of a server before it may be among them.
            let replies = listening >= program.sockets() && bed.within(|| load::replies(port));
            replies.then_some(())
        })
        .unwrap_or_else(|| panic!("{program:?} does not reply"));
        server
    }

    /// Stops all of its threads, and waits until they stand still.
    pub fn stand_still(&self) {
        stop_group(self.child.id()).unwrap();
    }

    /// Has it go on.
    pub fn go_on(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Has new processes take over, while the old ones end gracefully, as its service manager would. Of
    /// [`Program::Haproxy`] returns when the old one has ended.
    pub fn reload(&mut self, bed: &Bed) {
        let master = Pid::from_raw(self.child.id() as i32);
        match self.program {
            Program::Haproxy => self.succeed(bed),
            Program::HaproxyMaster => kill(master, Signal::SIGUSR2).unwrap(),
            _ => kill(master, Signal::SIGHUP).unwrap(),
        }
    }

    fn succeed(&mut self, bed: &Bed) {
        let old = self.successors.last().unwrap_or(&self.child).id();
        let mut command = self.program.command(bed);
        command
            .args(["-sf", &old.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(self.child.id() as i32);
        let new = bed.within(|| command.spawn().unwrap());
        let old = self.successors.last_mut().unwrap_or(&mut self.child);
        until("the old process ends", || old.try_wait().unwrap())
            .unwrap_or_else(|| panic!("process {} stays", old.id()));
        self.successors.push(new);
    }

    fn signal(&self, signal: Signal) {
        killpg(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = killpg(Pid::from_raw(self.child.id() as i32), Signal::SIGKILL);
        for process in self.successors.iter_mut().chain([&mut self.child]) {
            let _ = process.wait();
        }
    }
}
