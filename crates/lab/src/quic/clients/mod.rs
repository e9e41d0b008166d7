//! Programs that connect by QUIC, one attempt each: browsers' and libraries', as they are.
//!
//! curl, ngtcp2 and aioquic are those of Debian 13, quic-go is built from a few lines here, quinn is the test bed's.

mod browser;
mod end;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use weir_testbed::quic::{Crowd, Request};

use super::{PORT, Program, go};
use crate::bed::{Bed, SERVER_VETH_V4};
use crate::error::{Context, Result};
use crate::{interrupt, needs};

use end::since_epoch;
pub use end::{End, How};

/// A client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, clap::ValueEnum)]
pub enum Client {
    /// curl, which may take HTTP/2 instead
    Curl,
    /// curl that may not
    CurlHttp3Only,
    /// Chromium, which knows from an earlier page that the server has HTTP/3
    Chromium,
    /// A Go program on quic-go
    QuicGo,
    /// The test bed's client on quinn
    Quinn,
    /// A Python program on aioquic
    Aioquic,
    /// ngtcp2's example client
    Ngtcp2,
}

/// Where the programs are.
#[derive(Debug)]
pub struct Clients {
    /// A Debian 13.
    root: PathBuf,
    /// Files of the programs that run in it.
    folder: tempfile::TempDir,
}

const QUIC_GO: go::Source = [
    ("main.go", include_str!("quic_go/main.go")),
    ("go.mod", include_str!("quic_go/go.mod")),
    ("go.sum", include_str!("quic_go/go.sum")),
];
const AIOQUIC: &str = include_str!("aioquic_client.py");
/// In the folder.
const QUIC_GO_PROGRAM: &str = "quic-go";
const AIOQUIC_PROGRAM: &str = "aioquic_client.py";

impl Clients {
    /// Those in the root of a Debian 13.
    pub fn new(root: PathBuf) -> Result<Clients> {
        let folder = tempfile::Builder::new()
            .prefix("weir-lab-clients-")
            .tempdir_in(root.join("opt"))
            .context("cannot create a directory for clients")?;
        let clients = Clients { root, folder };
        write(&clients.path(AIOQUIC_PROGRAM), AIOQUIC)?;
        Ok(clients)
    }

    /// Makes what an attempt of this client needs.
    ///
    /// # Errors
    /// Unsupported where this machine cannot have the client.
    pub fn prepare(&self, client: Client) -> Result<()> {
        match client {
            Client::QuicGo => go::build(QUIC_GO, &self.path(QUIC_GO_PROGRAM)),
            Client::Chromium => browser::find().map(drop),
            _ => Ok(()),
        }
    }

    /// One attempt against the server's port, from the clients' namespace. `web` serves what a browser loads.
    pub fn attempt(
        &self,
        client: Client,
        bed: &Bed,
        web: &Program,
        patience: Duration,
    ) -> Result<End> {
        let run = |command: Command| run(command, bed, patience);
        let host = SERVER_VETH_V4.to_string();
        let port = PORT.to_string();
        let url = format!("https://{host}:{port}/page");
        match client {
            Client::Curl => Ok(page_of(run(self.curl("--http3", &url))?)),
            Client::CurlHttp3Only => Ok(page_of(run(self.curl("--http3-only", &url))?)),
            Client::Chromium => browser::attempt(bed, web, patience),
            Client::Quinn => quinn(bed, patience),
            Client::QuicGo => {
                let mut command = Command::new(self.path(QUIC_GO_PROGRAM));
                command.arg(format!("{host}:{port}"));
                Ok(said(run(command)?))
            }
            Client::Aioquic => {
                let mut command = self.chroot("python3");
                command
                    .arg(self.inside(AIOQUIC_PROGRAM))
                    .args([&host, &port]);
                Ok(said(run(command)?))
            }
            Client::Ngtcp2 => {
                let mut command = self.chroot("gtlsclient");
                command.args(["--exit-on-all-streams-close", &host, &port, &url]);
                Ok(exit_of(run(command)?))
            }
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// As a program in the root has it.
    fn inside(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        let inside = path.strip_prefix(&self.root).unwrap_or(&path);
        Path::new("/").join(inside)
    }

    fn chroot(&self, program: &str) -> Command {
        let mut command = needs::command("chroot");
        command.arg(&self.root).arg(program);
        command
    }

    fn curl(&self, version: &str, url: &str) -> Command {
        let mut command = self.chroot("curl");
        command.args([version, "--insecure", "--silent", "--show-error"]);
        command.args([
            "--output",
            "/dev/null",
            "--write-out",
            "%{http_version}",
            url,
        ]);
        command
    }
}

/// What came of a program.
struct Ran {
    at: Duration,
    /// `None`: it was killed, for it took too long.
    success: Option<bool>,
    stdout: String,
    stderr: String,
}

fn run(mut command: Command, bed: &Bed, patience: Duration) -> Result<Ran> {
    use std::os::unix::process::CommandExt;

    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command.stderr(Stdio::piped()).process_group(0);
    let shown = format!("{:?}", command.get_program());
    let child = bed.clients.run_on(Some(bed.layout.client_cpu), || {
        command.spawn().context(format!("cannot start {shown}"))
    })?;
    let group = Pid::from_raw(child.id() as i32);
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let output = child.wait_with_output();
            // The receiver lives until this has ended.
            let _ = tell.send((since_epoch(), output));
        });
        let received = told.recv_timeout(patience);
        let is_out_of_patience = received.is_err();
        if is_out_of_patience {
            // It fails where the program has just ended.
            let _ = killpg(group, Signal::SIGKILL);
        }
        let (at, output) = received
            .or_else(|_| told.recv())
            .context(format!("{shown} did not end"))?;
        interrupt::check()?;
        let output = output.context(format!("cannot wait for {shown}"))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        Ok(Ran {
            at,
            success: (!is_out_of_patience).then(|| output.status.success()),
            stdout: text(&output.stdout),
            stderr: text(&output.stderr),
        })
    })
}

/// The end of a program that prints a version of HTTP.
fn page_of(ran: Ran) -> End {
    let how = match ran.success {
        None => How::OutOfPatience,
        Some(true) => How::Served(format!("HTTP/{}", ran.stdout)),
        Some(false) => How::GivenUp(ran.stderr),
    };
    End {
        at: ran.at,
        how,
        next: None,
    }
}

/// The end of a program that prints when it knew, and "connected" or a reason.
fn said(ran: Ran) -> End {
    // What follows is the end of a connection.
    let first = ran.stdout.lines().next().unwrap_or_default();
    let words = first.split_once(' ');
    let known = words.and_then(|(at, how)| Some((at.parse().ok()?, how)));
    let (at, how) = match (ran.success, known) {
        (_, Some((at, "connected"))) => (Duration::from_nanos(at), How::Served("QUIC".into())),
        (_, Some((at, reason))) => (Duration::from_nanos(at), How::GivenUp(reason.into())),
        (None, None) => (ran.at, How::OutOfPatience),
        (Some(_), None) => (ran.at, How::GivenUp(ran.stderr)),
    };
    End {
        at,
        how,
        next: None,
    }
}

/// The end of ngtcp2's client, which tells all that it does, and exits with 0 in any case.
fn exit_of(ran: Ran) -> End {
    let all = [ran.stdout, ran.stderr].join("\n");
    let error = all.lines().rfind(|line| line.contains("ERR_"));
    let how = match (ran.success, error) {
        (None, _) => How::OutOfPatience,
        _ if all.contains(":status: 200") => How::Served("HTTP/3".into()),
        (_, Some(error)) => How::GivenUp(error.trim().into()),
        (_, None) => How::GivenUp("it ended without a word".into()),
    };
    End {
        at: ran.at,
        how,
        next: None,
    }
}

fn quinn(bed: &Bed, patience: Duration) -> Result<End> {
    let one = Crowd {
        to: super::address(),
        per_second: 1.0,
        seconds: 1.0,
        timeout: patience,
        request: Some(Request::http3_get_root("localhost")),
    };
    let result = one.run(&bed.clients)?;
    let at = since_epoch();
    let how = match result.other.first() {
        Some(reason) => How::GivenUp(reason.clone()),
        None if !result.version_refused.is_empty() => How::GivenUp("version refused".into()),
        None if !result.answered.is_empty() => How::Served("HTTP/3".into()),
        None => How::OutOfPatience,
    };
    Ok(End {
        at,
        how,
        next: None,
    })
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).context(format!("cannot write {}", path.display()))
}
