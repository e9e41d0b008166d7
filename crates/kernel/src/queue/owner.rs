//! Getting at the listening socket of a running server.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

use nix::sys::stat::fstat;

use crate::error::{Error, Result};

/// A process and its descriptor of a socket.
type Place = (i32, RawFd);

/// A descriptor of the socket with this inode, taken from whichever process has one. The caller must
/// not keep it: it would go on listening after the server is gone.
///
/// # Errors
/// No process has it (in sight), or taking it is not allowed.
pub fn descriptor(inode: u64) -> Result<OwnedFd> {
    let what = || "get at the server's listening socket".to_owned();
    let mut cause = "no process that this one can see has it open".to_owned();
    for place in places(inode) {
        match take(place) {
            Ok(fd) if fstat(&fd).is_ok_and(|stat| stat.st_ino == inode) => return Ok(fd),
            // Closed and opened anew meanwhile.
            Ok(_) => {}
            Err(e) => cause = format!("process {}: {e}", place.0),
        }
    }
    Err(Error::Failed {
        what: what(),
        cause,
    })
}

/// The processes that have the socket with this inode open, and its number there.
pub(crate) fn places(inode: u64) -> Vec<Place> {
    let pids = std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid: i32| Some((pid, descriptor_of(pid, inode)?)))
        .collect()
}

/// The number that the socket with this inode has in a process.
pub(crate) fn descriptor_of(pid: i32, inode: u64) -> Option<RawFd> {
    let link = format!("socket:[{inode}]");
    let folder = format!("/proc/{pid}/fd");
    let entries = std::fs::read_dir(folder).ok()?.flatten();
    let is_it =
        |path: &Path| std::fs::read_link(path).is_ok_and(|to| to.as_os_str() == link.as_str());
    let mut its = entries.filter(|entry| is_it(&entry.path()));
    its.next()?.file_name().to_str()?.parse().ok()
}

fn take((pid, number): Place) -> std::io::Result<OwnedFd> {
    // SAFETY: pidfd_open(2) takes no pointers.
    let pidfd = new_descriptor(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    // SAFETY: pidfd_getfd(2) takes no pointers.
    new_descriptor(unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), number, 0) })
}

fn new_descriptor(result: libc::c_long) -> std::io::Result<OwnedFd> {
    if result < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: a new descriptor of ours (both calls set close-on-exec).
    Ok(unsafe { OwnedFd::from_raw_fd(result as RawFd) })
}
