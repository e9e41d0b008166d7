//! Network namespaces: how they are known, and how they are entered.

use std::fs::File;
use std::path::{Path, PathBuf};

use nix::sched::{CloneFlags, setns};

use crate::cookies;
use crate::error::{Error, Result};

/// A network namespace, by its cookie: a number that the kernel gives to no other one until the machine stops. The number
/// of its inode is another's soon after it has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Namespace(u64);

impl Namespace {
    /// That of the calling thread.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn current() -> Result<Namespace> {
        cookies::of_namespace().map(Namespace)
    }

    /// The one with this cookie (SO_NETNS_COOKIE), whether or not there is one.
    pub fn with_cookie(cookie: u64) -> Namespace {
        Namespace(cookie)
    }

    /// Its cookie, as SO_NETNS_COOKIE gives it.
    pub fn cookie(self) -> u64 {
        self.0
    }
}

/// Where a network namespace can be entered. It holds nothing open: a namespace ends when the last process has left it, and
/// then another one may be here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespacePath(PathBuf);

impl NamespacePath {
    /// That of a process.
    pub fn of_process(pid: u32) -> NamespacePath {
        NamespacePath(format!("/proc/{pid}/ns/net").into())
    }

    /// One that `ip netns` lists.
    pub fn named(name: &str) -> NamespacePath {
        NamespacePath(Path::new("/run/netns").join(name))
    }

    /// This file.
    pub fn at(path: impl Into<PathBuf>) -> NamespacePath {
        NamespacePath(path.into())
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Does some work inside, on a thread of its own, and waits for it. The work is told which namespace it is in.
    ///
    /// # Errors
    /// There is none here, or the kernel refuses to let weir in; else those of the work.
    pub fn enter<T: Send>(&self, work: impl FnOnce(Namespace) -> Result<T> + Send) -> Result<T> {
        let entered = || {
            self.set_here()?;
            work(Namespace::current()?)
        };
        std::thread::scope(|scope| {
            // The machine may have no thread left.
            let thread = std::thread::Builder::new().spawn_scoped(scope, entered);
            match thread.map_err(|e| self.failed(e))?.join() {
                Ok(done) => done,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// The same, if this namespace is here.
    ///
    /// # Errors
    /// Another one is; else as of [`NamespacePath::enter`].
    pub fn enter_if<T: Send>(
        &self,
        expected: Namespace,
        work: impl FnOnce() -> Result<T> + Send,
    ) -> Result<T> {
        self.enter(|found| match found == expected {
            true => work(),
            false => Err(self.failed("the network namespace that was here has ended")),
        })
    }

    fn set_here(&self) -> Result<()> {
        let file = File::open(&self.0).map_err(|e| self.failed(e))?;
        setns(file, CloneFlags::CLONE_NEWNET).map_err(|e| match e {
            nix::Error::EPERM => Error::NoEntry {
                what: self.what(),
                cause: e.to_string(),
            },
            e => self.failed(e),
        })
    }

    fn what(&self) -> String {
        format!("enter the network namespace at {}", self.0.display())
    }

    fn failed(&self, cause: impl ToString) -> Error {
        Error::Failed {
            what: self.what(),
            cause: cause.to_string(),
        }
    }
}

/// Inode number of the thread's network namespace; 0 on a kernel that has but one (CONFIG_NET_NS is off).
pub(crate) fn namespace() -> Result<u32> {
    use std::os::unix::fs::MetadataExt;
    let path = "/proc/thread-self/ns/net";
    match std::fs::metadata(path) {
        Ok(file) => Ok(file.ino() as u32),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(Error::Failed {
            what: format!("look at {path}"),
            cause: error.to_string(),
        }),
    }
}
