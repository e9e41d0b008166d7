//! One weir at a time changes what is shaped in a network namespace: two at once would take each other's qdiscs for their own.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::failure::{Failure, ROOT_HINT, Result};
use crate::host::lock::Lock;
use crate::ipc::control::{create_dir, namespace};

/// Longer than a change takes.
const PATIENCE: Duration = Duration::from_secs(10);

/// The lock of this network namespace, to be held while shapers are put on or taken off.
#[derive(Debug)]
pub struct Changes {
    path: PathBuf,
}

impl Changes {
    /// Of this network namespace.
    ///
    /// # Errors
    /// The kernel does not say which it is.
    pub fn new(runtime_dir: &Path) -> Result<Changes> {
        let name = format!("shape-{}.lock", namespace()?);
        Ok(Changes {
            path: runtime_dir.join(name),
        })
    }

    /// Waits until no other weir changes anything.
    ///
    /// # Errors
    /// No right to the runtime directory, or another one has held the lock for long.
    pub fn begin(&self) -> Result<Lock> {
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        let lock = create_dir(folder).and_then(|()| Lock::wait(&self.path, PATIENCE));
        lock.map_err(|error| {
            let hint = match error.kind() {
                io::ErrorKind::PermissionDenied => ROOT_HINT,
                io::ErrorKind::WouldBlock => {
                    "another weir that shapes has stopped; `fuser` says which"
                }
                _ => "",
            };
            Failure::failed(
                format!("cannot lock {}: {error}", self.path.display()),
                hint,
            )
        })
    }
}
