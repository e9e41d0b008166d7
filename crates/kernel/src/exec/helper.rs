//! How the helper processes come about, and what they keep of the process that they were forked from.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::sys::signal::{SigHandler, SigSet, Signal, signal};

use super::sockets::{Kind, kind};

/// Which of the two processes returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fork {
    /// The one that forked; with the other's number.
    Parent(i32),
    /// The new one.
    Child,
}

/// Forks. Refused in a process with several threads, whose locks the child would inherit.
///
/// # Errors
/// EBUSY: there are several threads. Else what the kernel says.
pub fn fork() -> Result<Fork, Errno> {
    alone()?;
    // SAFETY: this thread is the only one.
    match unsafe { nix::unistd::fork() }? {
        nix::unistd::ForkResult::Parent { child } => Ok(Fork::Parent(child.as_raw())),
        nix::unistd::ForkResult::Child => Ok(Fork::Child),
    }
}

/// Forks a process that shares the descriptor table: what one opens the other has open too, and it stays
/// open when either of them dies. Refused in a process with several threads. The child must not start
/// threads: libc does not know of it.
///
/// # Errors
/// As [`fork`].
pub fn fork_sharing_descriptors() -> Result<Fork, Errno> {
    alone()?;
    let flags = libc::CLONE_FILES | libc::SIGCHLD;
    // SAFETY: without CLONE_VM and without a stack it is a fork; this thread is the only one.
    match Errno::result(unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) })? {
        0 => Ok(Fork::Child),
        child => Ok(Fork::Parent(child as i32)),
    }
}

fn alone() -> Result<(), Errno> {
    match std::fs::read_dir("/proc/self/task").map(Iterator::count) {
        Ok(1) => Ok(()),
        Ok(_) => Err(Errno::EBUSY),
        Err(e) => Err(e.raw_os_error().map_or(Errno::EIO, Errno::from_raw)),
    }
}

/// The descriptors that are open.
///
/// # Errors
/// No /proc.
pub fn open_descriptors() -> std::io::Result<Vec<RawFd>> {
    let entries = std::fs::read_dir("/proc/self/fd")?;
    let numbers = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut all: Vec<RawFd> = numbers.collect();
    // That of the listing itself is closed by now.
    // SAFETY: F_GETFD takes no pointer.
    all.retain(|fd| unsafe { libc::fcntl(*fd, libc::F_GETFD) } >= 0);
    Ok(all)
}

/// Closes all descriptors but these, which must be all that this process, and one that shares its table,
/// owns. `connections`: leaves connected TCP sockets open too, for [`adopt_connection`].
///
/// # Errors
/// No /proc.
pub fn close_all_but(kept: &[RawFd], connections: bool) -> std::io::Result<()> {
    for fd in open_descriptors()?.iter().filter(|fd| !kept.contains(fd)) {
        // SAFETY: nobody owns it, by the caller's word.
        let left = unsafe { OwnedFd::from_raw_fd(*fd) };
        if connections && kind(left.as_fd()) == Kind::Connected {
            std::mem::forget(left);
        }
    }
    Ok(())
}

/// A connected TCP socket that a process with the same table has left when it died. `None`: it is something
/// else. Nobody else may own it.
pub fn adopt_connection(fd: RawFd) -> Option<OwnedFd> {
    // SAFETY: nobody owns it, by the caller's word; if it is something else it is let be.
    let left = unsafe { OwnedFd::from_raw_fd(fd) };
    if kind(left.as_fd()) == Kind::Connected {
        return Some(left);
    }
    std::mem::forget(left);
    None
}

/// Has the standard streams lead nowhere: nobody shall wait for the end of a helper's.
pub fn leave_standard_streams() {
    let Ok(null) = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")
    else {
        return;
    };
    for stream in 0..=2 {
        // SAFETY: replaces what nobody owns as a descriptor.
        unsafe { libc::dup2(null.as_raw_fd(), stream) };
    }
}

/// Lets a process and its children look into this one, also where Yama allows that to parents only. Holds
/// over exec, and not for processes that are forked later.
pub fn allow_tracer(process: i32) {
    // SAFETY: takes no pointers. Without Yama it fails, and is not needed.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, process as libc::c_ulong, 0, 0, 0) };
}

/// Whether SIGPIPE was ignored when this program began: Rust ignores it, and what is exec'd would inherit
/// that.
static SIGPIPE_WAS_IGNORED: std::sync::atomic::AtomicBool =
    std::sync::atomic::AtomicBool::new(false);

/// Runs before `main`, and so before Rust changes it.
extern "C" fn remember_sigpipe() {
    // SAFETY: zero bytes are a valid one, and the kernel only writes to it.
    let ignored = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGPIPE, std::ptr::null(), &mut action);
        action.sa_sigaction == libc::SIG_IGN
    };
    SIGPIPE_WAS_IGNORED.store(ignored, std::sync::atomic::Ordering::Relaxed);
}

// SAFETY: the section holds pointers to functions that libc calls before `main`; this one uses nothing that
// is set up only later.
#[used]
#[unsafe(link_section = ".init_array")]
static REMEMBER_SIGPIPE: extern "C" fn() = remember_sigpipe;

/// Has SIGPIPE do again what it did when this program began.
pub fn restore_sigpipe() {
    if !SIGPIPE_WAS_IGNORED.load(std::sync::atomic::Ordering::Relaxed) {
        // SAFETY: the default action calls nothing of ours.
        let _ = unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) };
    }
}

/// Blocks every signal that can be: a helper ends when the server has.
pub fn block_signals() {
    let _ = SigSet::all().thread_block();
}
