//! The API: HTTP and JSON on a Unix socket, for operators and for the servers themselves (docs/api.md).

mod routes;

use std::fs::Permissions;
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::unistd::{Group, chown};
use weir_config::ApiSettings;

use crate::failure::{Failure, Result};
use crate::ipc::call::Line;
use crate::ipc::http::{Endpoint, Limits, Listener};
use crate::ipc::socket_file::SocketFile;

pub use routes::watched;
#[cfg(feature = "fuzzing")]
pub use routes::{keys, named};

/// Clients without rights share the connections with root.
const LIMITS: Limits = Limits {
    connections: 256,
    time: Duration::from_secs(60),
    keep_alive: true,
};

/// The API's socket, and the thread that serves it.
pub struct Api {
    // Removed before the socket is closed, see there.
    file: SocketFile,
    _endpoint: Endpoint,
}

impl Api {
    /// Listens, and starts the thread. `default` is the socket's path if the settings have none.
    ///
    /// # Errors
    /// The socket cannot be made with these permissions, or the kernel gives no thread.
    pub fn start(settings: &ApiSettings, default: PathBuf, line: Line) -> Result<Api> {
        let socket = settings.socket.clone().unwrap_or(default);
        let (file, listener) = bind(&socket, settings)?;
        let router = routes::router().with_state(line);
        let endpoint = Endpoint::start("weir-api", Listener::Unix(listener), router, LIMITS)?;
        Ok(Api {
            file,
            _endpoint: endpoint,
        })
    }

    /// Where it listens.
    pub fn socket(&self) -> &Path {
        self.file.path()
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
        ErrorKind::PermissionDenied => "choose a path in a folder to which weir's user may write",
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
