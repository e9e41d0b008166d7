//! How a process of proxies is found and asked: a control socket of its own in the runtime directory,
//! named after the network namespace and the process. Several may run side by side, unlike guards.
//!
//! A proxy needs no root: where it has no right to the runtime directory, the socket is in that of its service
//! (`/run/weir-proxy`) or in the user's (`$XDG_RUNTIME_DIR/weir`).

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use weir_api::{Answer, HandedOver, Question, Status};
use weir_core::proxy::Proxy;
use weir_proxy::{Sockets, handover};

use super::{Inherited, InheritedProxy};
use crate::cli::RUNTIME_DIR;
use crate::failure::{Failure, Result};
use crate::ipc::control::{self, Client, ControlSocket, another_answer, namespace};
use crate::ipc::control_listener::ControlListener;
use crate::ipc::socket_file::{SocketFile, remove_dead};
use crate::ipc::socket_note;

/// The runtime directory of the packaged unit, whose user is not root.
const SERVICE_DIR: &str = "/run/weir-proxy";

/// The control socket of this process.
pub struct ProcessSocket {
    // Removed on drop; before the listener, see there.
    file: SocketFile,
    listener: ControlListener,
}

impl ProcessSocket {
    /// Opens it in the first directory that lets.
    ///
    /// # Errors
    /// None does.
    pub fn open(runtime_dir: &Path) -> Result<ProcessSocket> {
        let file = format!("{}{}.sock", prefix(namespace()?), std::process::id());
        let mut failures = Vec::new();
        for dir in directories(runtime_dir) {
            let path = dir.join(&file);
            match control::create_dir(&dir).and_then(|()| ControlListener::listen(&path)) {
                Ok((file, listener)) => {
                    sweep(&dir);
                    return Ok(ProcessSocket { file, listener });
                }
                Err(error) => failures.push(format!("{}: {error}", dir.display())),
            }
        }
        Err(Failure::failed(
            format!("no control socket: {}", failures.join("; ")),
            "`weir status`, `reload` and `--take-over` do not find this process",
        ))
    }

    /// The note about the place of this process's API.
    pub fn note(&self) -> PathBuf {
        socket_note::of(self.file.path())
    }

    /// The runtime directory that it is in.
    pub fn dir(&self) -> &Path {
        self.file.path().parent().unwrap_or(Path::new("/"))
    }
}

impl Drop for ProcessSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.note());
    }
}

impl ControlSocket for ProcessSocket {
    fn next(&self) -> Option<(Question, Client)> {
        control::next_client(&self.listener)
    }
}

impl AsFd for ProcessSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// Removes what processes of proxies that were killed have left: their control sockets, and the sockets of their APIs.
///
/// # Errors
/// No /proc.
pub fn sweep_left_over(runtime_dir: &Path) -> Result<()> {
    let api = weir_client::default_proxy_socket_name(namespace()?);
    for dir in directories(runtime_dir) {
        sweep(&dir);
        // One that somebody listens on stays.
        let _ = remove_dead(&dir.join(&api));
    }
    Ok(())
}

/// Removes the sockets of proxies that were killed, of all network namespaces.
fn sweep(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let pid = pid_of(&entry.file_name().to_string_lossy());
        // A process that starts has its socket for a moment before it listens on it.
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            // One that is not dead or not ours to remove stays.
            let path = entry.path();
            match path.extension() == Some(OsStr::new("api")) {
                true => socket_note::sweep(&path),
                false => drop(remove_dead(&path)),
            }
        }
    }
}

fn pid_of(file: &str) -> Option<u32> {
    let (_, pid) = file
        .strip_prefix("proxy-")?
        .rsplit_once('.')?
        .0
        .rsplit_once('-')?;
    pid.parse().ok()
}

fn prefix(namespace: u64) -> String {
    format!("proxy-{namespace}-")
}

fn directories(runtime_dir: &Path) -> Vec<PathBuf> {
    let mut directories = vec![runtime_dir.to_path_buf()];
    if runtime_dir == Path::new(RUNTIME_DIR) {
        directories.push(PathBuf::from(SERVICE_DIR));
        if let Some(users) = std::env::var_os("XDG_RUNTIME_DIR") {
            directories.push(Path::new(&users).join("weir"));
        }
    }
    directories
}

/// The control sockets of all processes of proxies of this network namespace.
pub struct Peers(Vec<PathBuf>);

impl Peers {
    /// Looks for them.
    ///
    /// # Errors
    /// No /proc.
    pub fn find(runtime_dir: &Path) -> Result<Peers> {
        let prefix = prefix(namespace()?);
        let mut paths: Vec<PathBuf> = directories(runtime_dir)
            .iter()
            .filter_map(|dir| std::fs::read_dir(dir).ok())
            .flat_map(|entries| entries.flatten())
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix))
            .map(|entry| entry.path())
            .filter(|path| path.extension() == Some(OsStr::new("sock")))
            .collect();
        paths.sort();
        Ok(Peers(paths))
    }

    /// Their sockets, to [ask](control::ask_at).
    pub fn paths(&self) -> &[PathBuf] {
        &self.0
    }
}

/// What all processes of proxies of this network namespace report. One that does not answer does not hide the others:
/// why it does not comes beside.
///
/// # Errors
/// No /proc.
pub fn reports_of_all(runtime_dir: &Path) -> Result<(Vec<weir_api::Proxy>, Vec<Failure>)> {
    let (mut proxies, mut silent) = (Vec::new(), Vec::new());
    for path in Peers::find(runtime_dir)?.paths() {
        match control::ask_at::<Status>(path, &Question::Status) {
            Ok(Some(report)) => proxies.extend(report.proxies),
            // Nobody listens there any more.
            Ok(None) => {}
            Err(failure) => silent.push(failure),
        }
    }
    Ok((proxies, silent))
}

/// A process whose sockets were taken over; it goes on accepting until it is told.
pub struct Predecessor {
    stream: UnixStream,
    path: PathBuf,
}

impl Predecessor {
    /// Tells it that its successor accepts. Says its pid.
    ///
    /// # Errors
    /// It does not answer.
    pub fn retire(self) -> Result<u32> {
        match control::ask_on(&self.stream, &self.path, &Question::Retire)? {
            Answer::Retired { pid } => Ok(pid),
            _ => Err(another_answer()),
        }
    }
}

/// Takes the listening sockets of the processes over that listen where one of `proxies` shall.
///
/// # Errors
/// One of them does not hand over.
pub fn take_over(runtime_dir: &Path, proxies: &[Proxy]) -> Result<(Vec<Predecessor>, Inherited)> {
    let wanted: Vec<SocketAddr> = proxies.iter().map(|proxy| proxy.listen).collect();
    let (mut predecessors, mut inherited) = (Vec::new(), Vec::new());
    for path in Peers::find(runtime_dir)?.0 {
        let Some(stream) = control::connect(&path)? else {
            continue;
        };
        let handed: Vec<HandedOver> = control::ask_on(&stream, &path, &Question::HandOver)?;
        let sockets = receive(&stream, &handed)?;
        if handed.iter().any(|one| wanted.contains(&one.listen)) {
            inherited.extend(sockets);
            predecessors.push(Predecessor { stream, path });
        }
    }
    Ok((predecessors, inherited))
}

fn receive(stream: &UnixStream, handed: &[HandedOver]) -> Result<Inherited> {
    let receive = |one: &HandedOver| {
        let fds = handover::receive(stream, one.sockets)?;
        Ok(InheritedProxy {
            listen: one.listen,
            sockets: Sockets::from_fds(fds)?,
            addresses: one.addresses.clone().into_iter().collect(),
        })
    };
    let received = handed.iter().map(receive).collect::<std::io::Result<_>>();
    received.map_err(|error| Failure::io("take the listening sockets over", error))
}
