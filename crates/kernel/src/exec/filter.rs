//! The two seccomp filters. Each knows one or three system calls by number and lets all others by, so the
//! kernel's cache of always-allowed calls keeps their cost at a bit test (Linux 5.11).

use std::os::fd::{FromRawFd, OwnedFd};

use super::calls::Calls;
use crate::error::{Error, Result};
use crate::seccomp::{ARCH, ARCHITECTURE, NUMBER, answer, argument, install, load, skip};

/// Has the kernel refuse MPTCP sockets to this process and to what it becomes, as a kernel without MPTCP
/// does (EPROTONOSUPPORT). Servers that ask for MPTCP then fall back to TCP by themselves.
///
/// # Errors
/// No seccomp here, or no right to it.
pub fn refuse_mptcp() -> Result<()> {
    let refuse = libc::SECCOMP_RET_ERRNO | libc::EPROTONOSUPPORT as u32;
    let program = [
        load(ARCH),
        skip(architecture()?, 0, 7),
        load(NUMBER),
        skip(libc::SYS_socket as u32, 0, 5),
        load(argument(2)),
        skip(libc::IPPROTO_MPTCP as u32, 0, 3),
        // Protocol numbers of other families mean something else.
        load(argument(0)),
        skip(libc::AF_INET as u32, 2, 0),
        skip(libc::AF_INET6 as u32, 1, 0),
        answer(libc::SECCOMP_RET_ALLOW),
        answer(refuse),
    ];
    install(&program, 0).map(drop).map_err(refused)
}

/// Has the kernel ask, for each accept() of this process and of what it becomes, what it shall return.
/// From now on this process must not accept, nor exec a program that does, until somebody answers.
///
/// # Errors
/// No seccomp notification here, no right to it, or another one answers already.
pub fn notify_of_accepts() -> Result<Calls> {
    let program = [
        load(ARCH),
        skip(architecture()?, 0, 4),
        load(NUMBER),
        skip(libc::SYS_accept4 as u32, 3, 0),
        skip(libc::SYS_accept as u32, 2, 0),
        skip(libc::SYS_listen as u32, 1, 0),
        answer(libc::SECCOMP_RET_ALLOW),
        answer(libc::SECCOMP_RET_USER_NOTIF),
    ];
    let fd = install(&program, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER).map_err(refused)?;
    // SAFETY: a new descriptor of ours (the kernel sets close-on-exec).
    Ok(Calls::new(unsafe { OwnedFd::from_raw_fd(fd) }))
}

fn architecture() -> Result<u32> {
    ARCHITECTURE.ok_or_else(|| Error::Unsupported {
        what: "weir exec".into(),
        cause: "it does not know the system calls of this architecture".into(),
        hint: "it knows those of x86-64 and arm64".into(),
    })
}

fn refused(e: std::io::Error) -> Error {
    let what = "watch the server's calls (seccomp)".to_owned();
    let hint = match e.raw_os_error() {
        Some(libc::EBUSY) => "another program answers its calls already, as container runtimes may",
        Some(libc::EINVAL | libc::ENOSYS) => "it needs Linux 5.14 with CONFIG_SECCOMP_FILTER",
        _ => "the seccomp policy of the container or unit may forbid seccomp(2)",
    };
    Error::Unsupported {
        what,
        cause: e.to_string(),
        hint: hint.into(),
    }
}
