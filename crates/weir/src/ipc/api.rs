//! The API: HTTP and JSON on a Unix socket, for operators and for the servers themselves (docs/api.md).
//!
//! HTTP is spoken by a thread of its own, with axum on a runtime of that one thread. It knows nothing of
//! weir: each request becomes a [`Job`] in a bounded queue, an eventfd wakes the daemon's thread, and that
//! answers between its other work. So all that changes the guard is done one after the other by one
//! thread, and a client that is slow to send or to read holds up nobody but clients of the API.

mod access;
mod answer;
mod door;
mod routes;
mod server;

use std::fs::Permissions;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::unistd::{Group, chown};
use serde_json::{Map, Value};
use tokio::sync::oneshot;
use weir_config::ApiSettings;

use crate::failure::{Failure, ROOT_HINT, Result};
use crate::ipc::socket_file::SocketFile;

pub use access::owners;
pub use answer::answer;

/// Requests that wait for the daemon's thread; more are turned away (503).
const WAITING: usize = 64;

/// What is asked.
#[derive(Debug, Clone, PartialEq)]
pub enum Call {
    /// The report of `weir status`.
    Status,
    /// Every listener.
    Listeners,
    /// One listener.
    Listener(String),
    /// Every class, `other` too.
    Classes,
    /// One class.
    Class(String),
    /// A new class.
    AddClass(Map<String, Value>),
    /// A class, new or in place of the one of this name.
    PutClass(String, Map<String, Value>),
    /// Some settings of a class.
    ChangeClass(String, Map<String, Value>),
    /// A class is to go.
    RemoveClass(String),
    /// The controller.
    Controller,
    /// All figures as OpenMetrics text.
    Metrics,
}

impl Call {
    /// The class that it is to write; `None`: it only reads.
    fn written(&self) -> Option<String> {
        let name = match self {
            Call::AddClass(settings) => settings.get("name").and_then(Value::as_str),
            Call::PutClass(name, _) | Call::ChangeClass(name, _) | Call::RemoveClass(name) => {
                Some(name.as_str())
            }
            _ => return None,
        };
        Some(name.map_or("a class".to_owned(), |name| format!("class {name:?}")))
    }
}

/// Who asks, by the kernel (SO_PEERCRED).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// User; `u32::MAX` if the kernel does not tell.
    pub uid: u32,
    /// Process, as this process sees it.
    pub pid: Option<i32>,
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.pid {
            Some(pid) => write!(f, "uid {} (pid {pid})", self.uid),
            None => write!(f, "uid {}", self.uid),
        }
    }
}

/// An answer, or why there is none.
#[derive(Debug)]
pub enum Reply {
    /// 200, or 201 for something new.
    Json(u16, Value),
    /// 200.
    Text(String),
    /// The HTTP status, and the failure.
    Refused(u16, Failure),
}

/// A request on its way to the daemon's thread.
pub struct Job {
    /// What is asked.
    pub call: Call,
    /// Who asks.
    pub peer: Peer,
    reply: oneshot::Sender<Reply>,
}

impl Job {
    /// Answers; a client that has gone is none's loss.
    pub fn reply(self, reply: Reply) {
        let _ = self.reply.send(reply);
    }
}

/// The thread's end of the line to the daemon.
#[derive(Clone)]
struct Line {
    jobs: SyncSender<Job>,
    bell: Arc<EventFd>,
}

/// The daemon's end: the socket that is listened on, and the requests that have come.
pub struct Api {
    jobs: Receiver<Job>,
    bell: Arc<EventFd>,
    socket: SocketFile,
}

impl Api {
    /// Listens, and starts the thread. `default` is the socket's path if the settings have none.
    ///
    /// # Errors
    /// The socket cannot be made with these permissions, or the kernel gives no thread.
    pub fn start(settings: &ApiSettings, default: PathBuf) -> Result<Api> {
        let socket = settings.socket.clone().unwrap_or(default);
        let (socket, listener) = bind(&socket, settings)?;
        let bell = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)
            .map_err(|errno| Failure::io("make an eventfd", errno.into()))?;
        let bell = Arc::new(bell);
        let (sender, jobs) = sync_channel(WAITING);
        let line = Line {
            jobs: sender,
            bell: Arc::clone(&bell),
        };
        std::thread::Builder::new()
            .name("weir-api".to_owned())
            .spawn(move || server::run(listener, line))
            .map_err(|error| Failure::io("start the thread of the API", error))?;
        Ok(Api { jobs, bell, socket })
    }

    /// Where it listens.
    pub fn socket(&self) -> &Path {
        self.socket.path()
    }

    /// The requests that have come.
    pub fn jobs(&self) -> impl Iterator<Item = Job> + '_ {
        // The bell first: who comes after it rings again.
        let _ = self.bell.read();
        self.jobs.try_iter()
    }
}

impl AsFd for Api {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// Listens with the permissions that are wanted; never, not even before, with more.
fn bind(socket: &Path, settings: &ApiSettings) -> Result<(SocketFile, UnixListener)> {
    let failed = |what: &str| {
        let what = format!("{what} {}", socket.display());
        move |error| Failure::io(what, error)
    };
    let group = settings.group.as_deref().map(group_id).transpose()?;
    let listening = SocketFile::listen(socket).map_err(|error| cannot_listen(socket, error))?;
    if group.is_some() {
        chown(socket, None, group).map_err(|errno| failed("set the group of")(errno.into()))?;
    }
    std::fs::set_permissions(socket, Permissions::from_mode(settings.permissions))
        .map_err(failed("set the permissions of"))?;
    Ok(listening)
}

fn cannot_listen(socket: &Path, error: io::Error) -> Failure {
    let message = format!(
        "[api] socket: cannot listen on {}: {error}",
        socket.display()
    );
    let hint = match error.kind() {
        ErrorKind::AlreadyExists => "choose another path; weir replaces sockets only",
        ErrorKind::AddrInUse => "choose another path: each weir needs one of its own",
        ErrorKind::NotFound => "make its folder first; weir makes no other than its own",
        ErrorKind::PermissionDenied => ROOT_HINT,
        _ => "",
    };
    Failure::failed(message, hint)
}

fn group_id(name: &str) -> Result<nix::unistd::Gid> {
    let unknown = || {
        let hint = "`getent group` lists those of this machine";
        Failure::usage(format!("[api] group: there is no group {name:?}"), hint)
    };
    let found =
        Group::from_name(name).map_err(|errno| Failure::io("read the groups", errno.into()))?;
    found.map(|group| group.gid).ok_or_else(unknown)
}
