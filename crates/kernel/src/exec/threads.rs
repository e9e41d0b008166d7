//! The server's threads, and how to get at their descriptors.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;

use crate::queue::owner;

/// pidfd_open(2) of a thread that leads no process (Linux 6.9).
const PIDFD_THREAD: u32 = libc::O_EXCL as u32;

/// Threads whose descriptors were asked for, and how to get at them.
#[derive(Debug, Default)]
pub struct Threads(BTreeMap<i32, OwnedFd>);

/// How many threads are remembered.
const THREADS: usize = 1024;

impl Threads {
    /// The descriptor of this number in the table of a thread. The caller must not keep it for long: the
    /// server's socket would go on listening when the server has closed it.
    ///
    /// # Errors
    /// The thread has none, is gone, or may not be looked into.
    pub fn descriptor(&mut self, thread: i32, number: RawFd) -> Result<OwnedFd, Errno> {
        if let Some(pidfd) = self.0.get(&thread) {
            match take(pidfd, number) {
                // The thread is gone; another one may have its number.
                Err(Errno::ESRCH) => drop(self.0.remove(&thread)),
                other => return other,
            }
        }
        let pidfd = open(thread)?;
        let taken = take(&pidfd, number);
        if self.0.len() >= THREADS {
            self.0.clear();
        }
        self.0.insert(thread, pidfd);
        taken
    }
}

fn open(thread: i32) -> Result<OwnedFd, Errno> {
    pidfd_open(thread, PIDFD_THREAD).or_else(|_| {
        let process = process_of(thread).ok_or(Errno::ESRCH)?;
        pidfd_open(process, 0)
    })
}

/// The process of a thread.
fn process_of(thread: i32) -> Option<i32> {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("Tgid:"))?;
    line.trim().parse().ok()
}

/// A descriptor that is readable once the process has ended.
///
/// # Errors
/// There is no such process.
pub fn pidfd_open(process: i32, flags: u32) -> Result<OwnedFd, Errno> {
    // SAFETY: takes no pointers.
    let fd = Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_open, process, flags) })?;
    // SAFETY: a new descriptor of ours (the kernel sets close-on-exec).
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

fn take(pidfd: &OwnedFd, number: RawFd) -> Result<OwnedFd, Errno> {
    let pidfd = pidfd.as_raw_fd();
    // SAFETY: takes no pointers.
    let fd = Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd, number, 0) })?;
    // SAFETY: a new descriptor of ours (the kernel sets close-on-exec).
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// The number that the socket with this inode has in the process of this thread.
pub fn number_of(thread: i32, inode: u64) -> Option<RawFd> {
    owner::descriptor_of(thread, inode)
}

/// A process that has the socket with this inode open, and its number there. Not this process.
pub fn holder(inode: u64) -> Option<(i32, RawFd)> {
    let own = std::process::id() as i32;
    owner::places(inode)
        .into_iter()
        .find(|(process, _)| *process != own)
}
