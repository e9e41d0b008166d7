//! A network namespace with a config file, and servers in it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, SockaddrIn};
use nix::unistd::Pid;
use serde_json::Value;
use weir_testbed::needs::{self, own_namespace};
use weir_testbed::wait;

use crate::common::{Folder, PATIENCE};

const CONFIG: &str = r#"
[[listener]]
name = "web"
address = "*:8080"
queue = "priority"
ageing = "off"
admit = "queue"

[[class]]
name = "gold"
from = ["127.0.1.0/24", "::1"]
priority = 1

[[class]]
name = "low"
from = "127.0.40.0/24"
priority = 40
"#;
const NGINX: &str = r#"
daemon off;
worker_processes 2;
pid FOLDER/nginx.pid;
events { }
http {
    log_format source "$remote_addr $remote_port";
    access_log /dev/stdout source;
    client_body_temp_path FOLDER; proxy_temp_path FOLDER; fastcgi_temp_path FOLDER;
    uwsgi_temp_path FOLDER; scgi_temp_path FOLDER;
    server { listen 8080; return 200 "served\n"; }
}
"#;
const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/measured_exec/server.py");
const GO_SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/measured_exec/server.go");

pub struct Bed {
    pub folder: Folder,
    weir: Option<Ended>,
}

/// A process that is ended with the test.
pub struct Ended(pub Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `None` without root; says so.
pub fn bed(name: &str) -> Option<Bed> {
    if !own_namespace() {
        return None;
    }
    let folder = Folder::new(name);
    folder.write_config(CONFIG);
    Some(Bed { folder, weir: None })
}

impl Bed {
    /// tests/measured_exec/server.py under `weir exec`, once it listens.
    pub fn server(&self, options: &str, kind: &str, address: &str) -> Server {
        self.server_with_backlog(options, kind, address, 512)
    }

    /// The same with another backlog.
    pub fn server_with_backlog(
        &self,
        options: &str,
        kind: &str,
        address: &str,
        backlog: u32,
    ) -> Server {
        let program = [
            "python3",
            SERVER,
            kind,
            address,
            "8080",
            &backlog.to_string(),
        ];
        Server::started(self.exec_command(options, &program))
    }

    /// The same without weir.
    pub fn plain_server(&self, kind: &str, address: &str) -> Server {
        let mut command = Command::new("python3");
        command.args([SERVER, kind, address, "8080"]);
        Server::started(command)
    }

    /// tests/measured_exec/server.go under `weir exec`, once it listens.
    pub fn go_server(&self, options: &str, program: &str) -> Server {
        Server::started(self.exec_command(options, &[program, "0.0.0.0:8080"]))
    }

    /// nginx with two workers under `weir exec`; what it says is its access log. `None` without nginx.
    pub fn nginx(&self, options: &str) -> Option<Server> {
        if !needs::programs(&["nginx"]) {
            return None;
        }
        let config = self.folder.path.join("nginx.conf");
        std::fs::write(
            &config,
            NGINX.replace("FOLDER", self.folder.path.to_str().unwrap()),
        )
        .unwrap();
        let config = config.to_str().unwrap();
        let mut command =
            self.exec_command(options, &["/usr/sbin/nginx", "-e", "stderr", "-c", config]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let server = Server {
            said_pid: child.id(),
            child,
            stdout,
        };
        until(|| server.workers().len() == 2, "nginx has its workers");
        Some(server)
    }

    /// The orderer of this bed's only server: a helper whose parent is one.
    pub fn orderer(&self) -> Option<i32> {
        let helpers = self.helpers();
        let is_orderer =
            |pid: &i32| parent_of(*pid).is_some_and(|parent| helpers.contains(&parent));
        helpers.iter().copied().find(is_orderer)
    }

    fn exec_command(&self, options: &str, program: &[&str]) -> Command {
        let config = self.folder.config();
        let options = format!("exec --config {} {options} --", config.display());
        let mut command = self.folder.command(&options);
        command.args(program);
        command
    }

    /// Another program under `weir exec`.
    pub fn exec(&self, options: &str, program: &[&str]) -> Ended {
        let mut command = self.exec_command(options, program);
        Ended(command.stdout(Stdio::null()).spawn().unwrap())
    }

    /// Another program without weir.
    pub fn command(&self, program: &[&str]) -> Ended {
        let mut command = Command::new(program[0]);
        command.args(&program[1..]).stdout(Stdio::null());
        Ended(command.spawn().unwrap())
    }

    /// tests/measured_exec/server.go; `None` without Go; says so.
    pub fn go(&self) -> Option<String> {
        if !needs::programs(&["go"]) {
            return None;
        }
        let program = self.folder.path.join("server");
        std::fs::copy(GO_SERVER, self.folder.path.join("main.go")).unwrap();
        // From this version on, Go listens with MPTCP by default.
        std::fs::write(
            self.folder.path.join("go.mod"),
            "module server\n\ngo 1.24\n",
        )
        .unwrap();
        let mut build = needs::command("go");
        build.args(["build", "-o"]);
        build.arg(&program).env("CGO_ENABLED", "0");
        let built = build.current_dir(&self.folder.path).status().unwrap();
        assert!(built.success());
        Some(program.to_str().unwrap().to_owned())
    }

    /// Starts `weir run`.
    pub fn run_weir(&mut self) {
        let run = format!("run --config {}", self.folder.config().display());
        let mut command = self.folder.command(&run);
        self.weir = Some(Ended(command.stderr(Stdio::null()).spawn().unwrap()));
    }

    /// What its status says of the listener; `None` while it does not answer.
    pub fn listener(&self) -> Option<Value> {
        let output = self.folder.weir("status --json");
        let status: Value = serde_json::from_slice(&output.stdout).ok()?;
        status["listeners"].get(0).cloned()
    }

    /// Supervisors and orderers of this bed's servers.
    pub fn helpers(&self) -> Vec<i32> {
        let folder = self.folder.path.to_str().unwrap().to_owned();
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let is_helper = |pid: &i32| {
            let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.contains(&folder) && line.contains("\0exec\0")
        };
        pids.filter(is_helper).collect()
    }
}

/// What a process does, as ps(1) has it.
fn state(pid: i32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

fn parent_of(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// How many descriptors a process has open.
pub fn descriptors(pid: i32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// A server that says whom it accepts.
pub struct Server {
    pub child: Child,
    /// The process id that it knows itself by.
    pub said_pid: u32,
    stdout: BufReader<ChildStdout>,
}

impl Server {
    fn started(mut command: Command) -> Server {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut server = Server {
            stdout: BufReader::new(child.stdout.take().unwrap()),
            child,
            said_pid: 0,
        };
        let line = server.line();
        let pid = line.strip_prefix("listening ").map(str::parse);
        server.said_pid = pid.unwrap_or_else(|| panic!("{line}")).unwrap();
        server
    }

    /// The next line that it says.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Reads what it says until it ends; the thread returns how many lines that were.
    pub fn drain(&mut self) -> std::thread::JoinHandle<usize> {
        let null = std::fs::File::open("/dev/null").unwrap();
        let null = BufReader::new(ChildStdout::from(OwnedFd::from(null)));
        let stdout = std::mem::replace(&mut self.stdout, null);
        std::thread::spawn(move || stdout.lines().count())
    }

    /// Whether it sleeps in a system call.
    pub fn sleeps(&self) -> bool {
        state(self.child.id() as i32) == Some('S')
    }

    /// Stops it and its children; they accept nobody any more.
    pub fn stop(&self) {
        self.signal_all(Signal::SIGSTOP);
        let mut all = self.workers();
        all.push(self.child.id() as i32);
        let stopped = || all.iter().all(|pid| state(*pid) == Some('T'));
        until(stopped, "the server is stopped");
    }

    /// Its child processes.
    pub fn workers(&self) -> Vec<i32> {
        let of = self.child.id() as i32;
        let path = format!("/proc/{of}/task/{of}/children");
        let children = std::fs::read_to_string(path).unwrap_or_default();
        children.split_whitespace().flat_map(str::parse).collect()
    }

    /// Signals it and its children.
    pub fn signal_all(&self, signal: Signal) {
        for pid in self.workers() {
            kill(Pid::from_raw(pid), signal).unwrap();
        }
        self.signal(signal);
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let workers = self.workers();
        let _ = self.child.kill();
        let _ = self.child.wait();
        for worker in workers {
            let _ = kill(Pid::from_raw(worker), Signal::SIGKILL);
        }
    }
}

/// A connection from `127.0.THIRD.1` that has asked.
pub fn connect(third: u8) -> TcpStream {
    let mut stream = try_connect(third);
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    stream
}

/// A connection from `127.0.THIRD.1`.
fn try_connect(third: u8) -> TcpStream {
    let flags = SockFlag::SOCK_CLOEXEC;
    let fd: OwnedFd = socket::socket(AddressFamily::Inet, SockType::Stream, flags, None).unwrap();
    let from = SockaddrIn::new(127, 0, third, 1, 0);
    let to = SockaddrIn::new(127, 0, 0, 1, 8080);
    socket::bind(fd.as_raw_fd(), &from).unwrap();
    // Once: a second attempt would hide that the first one was lost.
    socket::connect(fd.as_raw_fd(), &to).unwrap_or_else(|e| panic!("from {from}: {e}"));
    let stream = TcpStream::from(fd);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Reads the reply to its end.
pub fn expect_served(mut client: TcpStream) {
    let mut reply = String::new();
    let from = client.local_addr().unwrap();
    client
        .read_to_string(&mut reply)
        .unwrap_or_else(|e| panic!("{from}: {e}"));
    assert!(reply.ends_with("served\n"), "{from}: {reply:?}");
}

/// The priority of the class of whom a server said that it has accepted.
pub fn class_of(said: &str) -> u8 {
    let address = said.split_once(' ').map(|(address, _)| address);
    let address = address.unwrap_or_else(|| panic!("{said:?}"));
    let address = address.trim_start_matches("::ffff:");
    match address.parse::<std::net::IpAddr>().unwrap() {
        std::net::IpAddr::V4(ip) => match ip.octets()[2] {
            third @ (1 | 40) => third,
            _ => 64,
        },
        std::net::IpAddr::V6(_) => 1,
    }
}

/// Connections in the kernel's queues of port 8080.
pub fn waiting() -> u32 {
    let tables = ["tcp", "tcp6"].map(|table| Path::new("/proc/thread-self/net").join(table));
    let tables = tables.map(|path| std::fs::read_to_string(path).unwrap_or_default());
    let lines = tables.iter().flat_map(|table| table.lines().skip(1));
    let listening = lines.filter_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let (local, _, state) = (words.next()?, words.next()?, words.next()?);
        let (_, length) = words.next()?.split_once(':')?;
        let ours = local.ends_with(":1F90") && state == "0A";
        ours.then(|| u32::from_str_radix(length, 16).ok())?
    });
    listening.sum()
}

/// The addresses of those in the kernel's queues of port 8080: nobody has accepted their connections.
pub fn sources_waiting() -> Vec<String> {
    let mut ss = Command::new("ss");
    ss.args(["-tneH", "state", "established", "sport", "=", ":8080"]);
    let all = String::from_utf8(ss.output().unwrap().stdout).unwrap();
    // A socket that nobody has open has no inode.
    let waiting = all.lines().filter(|line| line.contains(" ino:0 "));
    let source = |line: &str| {
        Some(
            line.split_whitespace()
                .nth(3)?
                .rsplit_once(':')?
                .0
                .to_owned(),
        )
    };
    waiting.filter_map(source).collect()
}

/// Waits until there is one.
pub fn some<T>(mut find: impl FnMut() -> Option<T>, what: &str) -> T {
    let mut found = None;
    until(
        || {
            found = find();
            found.is_some()
        },
        what,
    );
    found.expect("it was found")
}

/// kill -STOP, and waits until it has stopped.
pub fn stop_process(pid: i32) {
    kill(Pid::from_raw(pid), Signal::SIGSTOP).unwrap();
    until(|| state(pid) == Some('T'), "the process is stopped");
}

/// What ps(1) and killall(1) call it.
pub fn name_of(pid: i32) -> Option<String> {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(name.trim_end().to_owned())
}

/// kill -9.
pub fn kill_process(pid: i32) {
    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
}

/// Waits for a condition.
pub fn until(mut holds: impl FnMut() -> bool, what: &str) {
    wait::until(what, || holds().then_some(()));
}
