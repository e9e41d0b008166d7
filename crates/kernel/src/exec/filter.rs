//! The two seccomp filters. Each knows one or three system calls by number and lets all others by, so the
//! kernel's cache of always-allowed calls keeps their cost at a bit test (Linux 5.11).

use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use super::calls::Calls;
use crate::error::{Error, Result};

/// AUDIT_ARCH_* of this build; calls by another architecture's numbers are let by.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: Option<u32> = Some(0xc000_003e);
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: Option<u32> = Some(0xc000_00b7);
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const ARCHITECTURE: Option<u32> = None;

/// Offsets in `struct seccomp_data` of <linux/seccomp.h>.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;

/// Offset of the low word of an argument.
const fn argument(index: u32) -> u32 {
    let low = if cfg!(target_endian = "big") { 4 } else { 0 };
    16 + 8 * index + low
}

fn load(offset: u32) -> libc::sock_filter {
    statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset)
}

fn answer(action: u32) -> libc::sock_filter {
    statement(libc::BPF_RET | libc::BPF_K, action)
}

fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    }
}

/// Skips so many statements if the loaded word is, or is not, `k`.
fn skip(k: u32, if_equal: u8, if_not: u8) -> libc::sock_filter {
    libc::sock_filter {
        code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        jt: if_equal,
        jf: if_not,
        k,
    }
}

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
    install(&program, 0).map(drop)
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
    let fd = install(&program, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER)?;
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

/// Returns what seccomp(2) returns.
fn install(program: &[libc::sock_filter], flags: libc::c_ulong) -> Result<RawFd> {
    // Without it, kernels before 5.16 would slow the whole server down (SSBD).
    let flags = flags | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    match set_filter(program, flags) {
        // Without CAP_SYS_ADMIN only those may who give set-user-ID programs up.
        Err(e) if e.raw_os_error() == Some(libc::EACCES) => {
            no_new_privileges().map_err(refused)?;
            set_filter(program, flags)
        }
        other => other,
    }
    .map_err(refused)
}

fn set_filter(program: &[libc::sock_filter], flags: libc::c_ulong) -> std::io::Result<RawFd> {
    let program = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: the kernel copies the program, which is live, and does not write to it.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            &raw const program,
        )
    };
    match result {
        ..0 => Err(std::io::Error::last_os_error()),
        fd => Ok(fd as RawFd),
    }
}

fn no_new_privileges() -> std::io::Result<()> {
    // SAFETY: takes no pointers.
    match unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
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
