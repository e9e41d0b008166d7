//! Servers under test: the built-in one-packet server and pool, nginx and Apache with minimal
//! configurations, or any command; each in the server namespace and pinned to the server's CPU.

mod apache;
mod files;
mod inside;
pub mod one_packet;
mod parts;
pub mod pool;
pub mod slow;
mod spec;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::bed::Bed;
use crate::error::{Context, Error, Result};
use crate::interrupt;
use crate::netns::Netns;
use crate::process::{end_session, stop_group};
use crate::program;
use parts::write_document;
pub use spec::{BODY_BYTES, FILE_BYTES, Inside, ServerProgram, Slow, Spec, Workers};
pub use weir_testbed::tcp_table::{BUSY, LISTEN, sockets_in_state};

/// A server may take this long to listen.
const START_LIMIT: Duration = Duration::from_secs(10);
/// The pool's records, in the server's directory.
const RECORDS: &str = "accepts";
const POLL: Duration = Duration::from_millis(2);

/// A running server; ended (with its whole process group) on drop.
#[derive(Debug)]
pub struct Server {
    child: Child,
    /// Configuration, document and the server's stderr.
    directory: tempfile::TempDir,
    description: String,
}

impl Server {
    /// Starts the server on a bed and waits until it listens. Fails with its stderr if it dies before.
    pub fn start(bed: &Bed, spec: &Spec) -> Result<Server> {
        Server::start_in(&bed.server, bed.layout.server_cpu, spec)
    }

    /// The same in any namespace, pinned to this CPU.
    pub fn start_in(netns: &Netns, cpu: usize, spec: &Spec) -> Result<Server> {
        let description = spec.describe();
        let directory = tempfile::Builder::new()
            .prefix("weir-lab-server-")
            .tempdir()
            .context("cannot create a directory for the server")?;
        let stderr = directory.path().join("stderr");
        let stderr =
            File::create(&stderr).context(format!("cannot create {}", stderr.display()))?;
        let mut command = in_session(&command(spec, directory.path())?);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr);
        // Of a killed server's processes some may not have ended yet and hold its listening socket.
        until(
            || Ok(netns.run(|| sockets_in_state(LISTEN, Some(spec.port)))? == 0),
            || {
                let cause = format!("something listens on port {} already", spec.port);
                Error::failed(format!("the server cannot start ({description})"), cause)
            },
        )?;
        // The child inherits namespace and CPU from the thread that starts it.
        let child = netns.run_on(Some(cpu), || {
            command
                .spawn()
                .context(format!("cannot start the server ({description})"))
        })?;
        let mut server = Server {
            child,
            directory,
            description,
        };
        server.wait_until_listening(netns, spec.port)?;
        Ok(server)
    }

    /// The session (and process group) that all its processes are in.
    pub fn session(&self) -> u32 {
        self.child.id()
    }

    /// The pool's records of all accepts so far.
    pub fn records(&self) -> Result<Vec<pool::Record>> {
        pool::Record::read_all(&self.directory.path().join(RECORDS))
    }

    /// Stops all of its threads, and waits until they stand still.
    pub fn stand_still(&self) -> Result<()> {
        stop_group(self.child.id())
    }

    /// Has it go on.
    pub fn go_on(&self) -> Result<()> {
        killpg(Pid::from_raw(self.child.id() as i32), Signal::SIGCONT)
            .context("cannot have the server go on")
    }

    /// Fails with the server's stderr if it has ended.
    pub fn check_alive(&mut self) -> Result<()> {
        let status = self
            .child
            .try_wait()
            .context("cannot look after the server")?;
        let Some(status) = status else { return Ok(()) };
        interrupt::check()?;
        let stderr =
            std::fs::read_to_string(self.directory.path().join("stderr")).unwrap_or_default();
        let cause = format!("it ended with {status}; its stderr: {}", stderr.trim());
        Err(Error::failed(
            format!("the server does not run ({})", self.description),
            cause,
        ))
    }

    fn wait_until_listening(&mut self, netns: &Netns, port: u16) -> Result<()> {
        let description = self.description.clone();
        until(
            || {
                self.check_alive()?;
                Ok(netns.run(|| sockets_in_state(LISTEN, Some(port)))? > 0)
            },
            || {
                let cause = format!("nothing listens on port {port} after {START_LIMIT:?}");
                Error::failed(format!("the server is not ready ({description})"), cause)
                    .hint("does the command listen on the port given with --port, and stay in the foreground?")
            },
        )
    }
}

/// Waits for a condition, for [`START_LIMIT`] at most.
fn until(
    mut condition: impl FnMut() -> Result<bool>,
    failure: impl FnOnce() -> Error,
) -> Result<()> {
    let begun = Instant::now();
    while !condition()? {
        interrupt::check()?;
        if begun.elapsed() > START_LIMIT {
            return Err(failure());
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}

impl Drop for Server {
    fn drop(&mut self) {
        // SIGKILL, so that the next point begins without a graceful shutdown of this one's queue.
        end_session(&mut self.child);
    }
}

fn command(spec: &Spec, directory: &Path) -> Result<Command> {
    let built_in = |mode: &str, work_us: u32| -> Result<Command> {
        let mut command = Command::new(program::find("weir-lab")?);
        command.args(["serve", "--mode", mode, "--work-us", &work_us.to_string()]);
        command.args([
            "--port",
            &spec.port.to_string(),
            "--backlog",
            &spec.backlog.to_string(),
        ]);
        Ok(command)
    };
    match &spec.program {
        ServerProgram::BuiltIn { work_us } => built_in("http", *work_us),
        ServerProgram::Greeter { work_us } => built_in("greet", *work_us),
        ServerProgram::Pool {
            workers,
            service_us,
            occupation,
            body_bytes,
            listeners,
        } => {
            let occupation = match occupation {
                pool::Occupation::Wait => "wait",
                pool::Occupation::Spin => "spin",
            };
            let mut command = Command::new(program::find("weir-lab")?);
            command
                .args(["pool", "--occupation", occupation])
                .arg("--record")
                .arg(directory.join(RECORDS));
            for (flag, value) in [
                ("--port", u64::from(spec.port)),
                ("--backlog", spec.backlog.into()),
                ("--workers", *workers as u64),
                ("--service-us", (*service_us).into()),
                ("--body-bytes", *body_bytes as u64),
                ("--listeners", (*listeners).into()),
            ] {
                command.args([flag, &value.to_string()]);
            }
            Ok(command)
        }
        ServerProgram::Nginx => nginx(spec, directory, 1, BODY_BYTES),
        ServerProgram::NginxWorkers(workers) => nginx(spec, directory, *workers, FILE_BYTES),
        ServerProgram::Apache { workers } => apache::command(spec, directory, *workers, 0),
        ServerProgram::Slow(slow, workers) => slow::command(spec, directory, *slow, *workers),
        ServerProgram::Haproxy {
            server,
            places,
            longest_ms,
        } => inside::haproxy(spec, directory, (*server, *places, *longest_ms)),
        ServerProgram::Command(text) => {
            let mut command = Command::new("sh");
            command.args(["-c", text]);
            Ok(command)
        }
    }
}

/// The command in a session of its own (by setsid(1), which does not fork for a child that leads no
/// process group). Besides ending all of it at once, this gives the server an autogroup of its own:
/// in one with the generator, the scheduler would divide one program's share of CPU time between the
/// two, and the server would have less than ksoftirqd on its CPU.
fn in_session(command: &Command) -> Command {
    let mut wrapped = Command::new("setsid");
    wrapped.arg(command.get_program()).args(command.get_args());
    wrapped
}

fn nginx(spec: &Spec, directory: &Path, workers: usize, bytes: usize) -> Result<Command> {
    let mut command = Command::new("nginx");
    command
        .arg("-c")
        .arg(write_nginx_conf(spec, directory, workers, bytes)?)
        .arg("-p")
        .arg(directory);
    Ok(command)
}

/// No logs, keep-alive on, and as many connections as the descriptor limit allows.
fn write_nginx_conf(
    spec: &Spec,
    directory: &Path,
    workers: usize,
    bytes: usize,
) -> Result<PathBuf> {
    let (port, backlog) = (spec.port, spec.backlog);
    let root = directory.display();
    let conf = format!(
        "user root; daemon off; worker_processes {workers}; pid {root}/nginx.pid; error_log stderr crit;
worker_rlimit_nofile 20000;
events {{ worker_connections 16384; }}
http {{
    access_log off; sendfile on; keepalive_timeout 65; open_file_cache max=16;
    client_body_temp_path {root}; proxy_temp_path {root}; fastcgi_temp_path {root};
    uwsgi_temp_path {root}; scgi_temp_path {root};
    server {{
        listen {port} backlog={backlog};
        listen [::]:{port} backlog={backlog};
        root {root}/www;
    }}
}}
"
    );
    let path = directory.join("nginx.conf");
    let written = std::fs::write(&path, conf).and_then(|()| write_document(directory, bytes));
    written.context(format!("cannot write nginx's files in {root}"))?;
    Ok(path)
}
