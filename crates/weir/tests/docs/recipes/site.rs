//! Hosts on one network, a server of a recipe on one of them, and a shell in which the recipe's commands run.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;
use weir_testbed::needs;
use weir_testbed::netns::Netns;
use weir_testbed::process::stop_group;
use weir_testbed::sockets::{SILENCE, attempt, within};
use weir_testbed::wait::{PATIENCE, try_until, until};

/// Hosts on a switch.
pub struct Network {
    switch: Netns,
    ports: AtomicUsize,
}

impl Network {
    /// `None` without root or `ip`; says so.
    pub fn new() -> Option<Network> {
        let switch = needs::namespace("switch")?;
        switch
            .ip_batch("link add br0 type bridge\nlink set br0 up")
            .unwrap();
        Some(Network {
            switch,
            ports: AtomicUsize::new(0),
        })
    }

    /// A host with these addresses, each with the length of its prefix, on its `eth0`.
    pub fn host(&self, role: &str, addresses: &[&str]) -> Netns {
        let host = Netns::create(role).unwrap();
        let port = format!("port{}", self.ports.fetch_add(1, Ordering::Relaxed));
        let plug = format!(
            "link add {port} type veth peer name eth0 netns {}",
            host.name()
        );
        let up = format!("link set {port} master br0\nlink set {port} up");
        self.switch.ip_batch(&format!("{plug}\n{up}")).unwrap();
        for address in addresses {
            host.ip(&["addr", "add", address, "dev", "eth0"]).unwrap();
        }
        host.ip(&["link", "set", "eth0", "up"]).unwrap();
        host
    }
}

/// A server in a host's namespace; killed on drop with its workers.
pub struct Server {
    child: Child,
}

impl Server {
    /// Starts it and waits until it listens on this port.
    pub fn start(host: &Netns, mut command: Command, port: u16) -> Server {
        command.stdin(Stdio::null()).process_group(0);
        let child = within(host, || command.spawn().unwrap());
        let mut server = Server { child };
        until("the server listens", || {
            let ended = server.child.try_wait().unwrap();
            assert!(ended.is_none(), "the server ended: {ended:?} {command:?}");
            listens(host, port).then_some(())
        });
        server
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Stops all of its threads, and waits until they stand still.
    pub fn stand_still(&self) {
        stop_group(self.pid()).unwrap();
    }

    /// Has it go on.
    pub fn go_on(&self) {
        killpg(Pid::from_raw(self.pid() as i32), Signal::SIGCONT).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = killpg(Pid::from_raw(self.pid() as i32), Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

fn listens(host: &Netns, port: u16) -> bool {
    let filter = format!("sport = :{port}");
    let output = within(host, || {
        Command::new("ss")
            .args(["-tlnH", &filter])
            .output()
            .unwrap()
    });
    !output.stdout.trim_ascii().is_empty()
}

/// A shell on a host, in which `sudo`, `weir` and `systemctl` stand for what the test has of them.
pub struct Shell<'a> {
    host: &'a Netns,
    folder: TempDir,
    running: Vec<Child>,
}

impl<'a> Shell<'a> {
    pub fn on(host: &'a Netns) -> Shell<'a> {
        let folder = TempDir::with_prefix("weir-recipe-").unwrap();
        let shell = Shell {
            host,
            folder,
            running: Vec::new(),
        };
        std::fs::create_dir(shell.path("bin")).unwrap();
        std::fs::create_dir(shell.path("run")).unwrap();
        // Workers of servers that are not root read files here.
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(shell.folder.path(), open).unwrap();
        shell.stand_in("sudo", "exec \"$@\"");
        let own = format!(
            "for word in \"$@\"; do
                shift
                [ \"$word\" = /etc/weir/weir.toml ] && word=FOLDER/weir.toml
                set -- \"$@\" \"$word\"
            done
            exec {} --runtime-dir FOLDER/run \"$@\"",
            env!("CARGO_BIN_EXE_weir")
        );
        shell.stand_in("weir", &own);
        shell.stand_in(
            "systemctl",
            "case \"$*\" in
                'enable --now weir') weir run --config /etc/weir/weir.toml >>FOLDER/log 2>&1 & ;;
                'enable --now weir-proxy@1')
                    weir proxy --config /etc/weir/weir.toml --take-over >>FOLDER/log 2>&1 & ;;
                *) echo \"the test has no systemctl $*\" >&2; exit 1 ;;
            esac",
        );
        shell
    }

    /// A command of the shell; `FOLDER` in its script is the shell's folder.
    pub fn stand_in(&self, name: &str, script: &str) {
        let script = format!("#!/bin/sh\n{script}\n");
        let file = self.write(&format!("bin/{name}"), &script);
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// A path in the shell's folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file of the shell's folder, with `FOLDER` in it replaced; gives its path.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let file = self.path(name);
        let folder = self.folder.path().display().to_string();
        std::fs::write(&file, text.replace("FOLDER", &folder)).unwrap();
        file
    }

    fn command(&self, script: &str) -> Command {
        let mut path = self.path("bin").into_os_string();
        path.push(":");
        path.push(needs::path());
        let mut command = Command::new("sh");
        command.args(["-eu", "-c", script]).env("PATH", path);
        command.stdin(Stdio::null());
        command
    }

    /// What a script prints; it must succeed.
    pub fn run(&self, script: &str) -> String {
        let (code, said, errors) = self.end(script);
        assert_eq!(code, Some(0), "{script}\n{said}{errors}{}", self.log());
        said
    }

    /// How a script ends, what it prints, and its errors.
    pub fn end(&self, script: &str) -> (Option<i32>, String, String) {
        let output = within(self.host, || self.command(script).output().unwrap());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (
            output.status.code(),
            text(&output.stdout),
            text(&output.stderr),
        )
    }

    /// Starts a script that goes on, or that starts what does. Ends with the shell.
    pub fn start(&mut self, script: &str) {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.path("log"))
            .unwrap();
        let mut command = self.command(script);
        command
            .process_group(0)
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        let child = within(self.host, || command.spawn().unwrap());
        self.running.push(child);
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// `weir status --json`, in the namespace of the shell's host.
    pub fn status(&self) -> Value {
        self.status_in(self.host)
    }

    pub fn status_in(&self, host: &Netns) -> Value {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.arg("--runtime-dir").arg(self.path("run"));
        command.args(["status", "--json"]);
        let output = within(host, || command.output().unwrap());
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    /// Waits until the status is as wanted.
    pub fn until(&self, host: &Netns, wanted: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        let found = try_until(PATIENCE, || {
            last = self.status_in(host);
            wanted(&last).then(|| last.clone())
        });
        found.unwrap_or_else(|| panic!("not within {PATIENCE:?}: {last:#}\n{}", self.log()))
    }
}

impl Drop for Shell<'_> {
    fn drop(&mut self) {
        for child in &mut self.running {
            // Its group has what it started. No other process can have this id: it has not been waited for.
            let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
            let _ = child.wait();
        }
    }
}

/// Whether weir guards the listener with this number.
pub fn guards(status: &Value, number: usize) -> bool {
    status["listeners"][number]["in_force"] == true
}

/// The status and the body of a reply; `None` if there is no whole one.
pub fn get(client: &Netns, to: SocketAddr) -> Option<(u16, String)> {
    within(client, || ask(to).ok())
}

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: recipe\r\nConnection: close\r\n\r\n";

fn ask(to: SocketAddr) -> std::io::Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(2))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(REQUEST)?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply)?;
    let (head, body) = reply.split_once("\r\n\r\n").unwrap_or((&reply, ""));
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    let status = status.ok_or(ErrorKind::InvalidData)?;
    Ok((status, body.to_owned()))
}

/// Waits until the server replies with 200; gives the body.
pub fn served(client: &Netns, to: SocketAddr) -> String {
    until("a reply", || {
        get(client, to).and_then(|(status, body)| (status == 200).then_some(body))
    })
}

/// Twice as many clients as `places`, and some more, each of which asks at once, while the server takes none: they
/// are let in or refused, and nobody waits. Gives the clients that got in.
///
/// Apache defers accepts (TCP_DEFER_ACCEPT): the handshake of a client that says nothing never ends for the kernel, so
/// to weir a crowd of them is a SYN flood, in which it counts otherwise.
pub fn crowd(server: &Server, client: &Netns, to: SocketAddr, places: usize) -> Vec<TcpStream> {
    server.stand_still();
    let mut inside = Vec::new();
    let mut refused = 0;
    for _ in 0..2 * places + 16 {
        match within(client, || attempt(to, SILENCE)) {
            Ok(mut stream) => {
                stream.write_all(REQUEST).unwrap();
                inside.push(stream);
            }
            Err(ErrorKind::ConnectionRefused) => refused += 1,
            Err(kind) => panic!("{kind} after {} connected, {refused} refused", inside.len()),
        }
    }
    assert!(
        inside.len() <= places + 1 && refused >= places,
        "{} connected, {refused} refused",
        inside.len()
    );
    inside
}

/// nginx with these lines in its `http` block.
pub fn nginx(shell: &Shell<'_>, name: &str, http: &str) -> Command {
    let folder = shell.path(name);
    std::fs::create_dir(&folder).unwrap();
    let own = format!("FOLDER/{name}");
    let file = shell.write(
        &format!("{name}/nginx.conf"),
        &format!(
            "daemon off; master_process off; user root; pid {own}/pid; error_log stderr;
             events {{ worker_connections 1024; }}
             http {{
               access_log off; client_body_temp_path {own}/body; proxy_temp_path {own}/proxy;
               fastcgi_temp_path {own}/fastcgi; uwsgi_temp_path {own}/uwsgi; scgi_temp_path {own}/scgi;
               {http}
             }}\n"
        ),
    );
    let mut nginx = needs::command("nginx");
    nginx
        .args(["-e", "stderr", "-c"])
        .arg(file)
        .current_dir(folder);
    nginx.stdout(Stdio::null()).stderr(Stdio::null());
    nginx
}

/// nginx with these lines in its one `server` block, which replies with `text`.
pub fn nginx_server(shell: &Shell<'_>, name: &str, lines: &str, text: &str) -> Command {
    nginx(
        shell,
        name,
        &format!("server {{ {lines} return 200 {text}; }}"),
    )
}

/// HAProxy with these sections behind its defaults.
pub fn haproxy(shell: &Shell<'_>, sections: &str) -> Command {
    let file = shell.write(
        "haproxy.cfg",
        &format!(
            "global\n  stats socket FOLDER/stats\n\
             defaults\n  mode http\n  timeout connect 5s\n  timeout client 5s\n  timeout server 5s\n{sections}"
        ),
    );
    let mut haproxy = needs::command("haproxy");
    haproxy.args(["-db", "-f"]).arg(file);
    haproxy.stdout(Stdio::null()).stderr(Stdio::null());
    haproxy
}

/// The address of a host of these tests with a port.
pub fn at(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse().unwrap(), port)
}

/// Builds a Go program from its one source.
pub fn go(folder: &Path, source: &str) -> Command {
    std::fs::create_dir(folder).unwrap();
    std::fs::write(folder.join("go.mod"), "module recipe\n\ngo 1.24\n").unwrap();
    std::fs::write(folder.join("main.go"), source).unwrap();
    let program = folder.join("recipe");
    let mut build = needs::command("go");
    build.args(["build", "-o"]).arg(&program);
    build.env("CGO_ENABLED", "0").current_dir(folder);
    let output = build.output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Command::new(program)
}
