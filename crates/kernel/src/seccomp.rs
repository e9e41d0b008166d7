//! Seccomp programs, statement by statement (seccomp(2)), and how they are put in force.

use std::io;
use std::os::fd::RawFd;

/// AUDIT_ARCH_* of this build; `None`: weir does not know the system calls of this architecture.
#[cfg(target_arch = "x86_64")]
pub const ARCHITECTURE: Option<u32> = Some(0xc000_003e);
#[cfg(target_arch = "aarch64")]
pub const ARCHITECTURE: Option<u32> = Some(0xc000_00b7);
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub const ARCHITECTURE: Option<u32> = None;

/// Offsets in `struct seccomp_data` of <linux/seccomp.h>.
pub const NUMBER: u32 = 0;
/// Of the architecture.
pub const ARCH: u32 = 4;

/// Offset of the low word of an argument.
pub const fn argument(index: u32) -> u32 {
    let low = if cfg!(target_endian = "big") { 4 } else { 0 };
    16 + 8 * index + low
}

/// Loads a word of the call.
pub fn load(offset: u32) -> libc::sock_filter {
    statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset)
}

/// Ends with this action.
pub fn answer(action: u32) -> libc::sock_filter {
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
pub fn skip(k: u32, if_equal: u8, if_not: u8) -> libc::sock_filter {
    jump(libc::BPF_JEQ, k, if_equal, if_not)
}

/// Skips so many statements if the loaded word is at least `k`.
pub fn skip_from(k: u32, if_at_least: u8) -> libc::sock_filter {
    jump(libc::BPF_JGE, k, if_at_least, 0)
}

fn jump(test: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter {
        code: (libc::BPF_JMP | test | libc::BPF_K) as u16,
        jt,
        jf,
        k,
    }
}

/// Puts a program in force for this thread, and with `SECCOMP_FILTER_FLAG_TSYNC` for all of the process. Gives what
/// seccomp(2) returns. A process without CAP_SYS_ADMIN gives set-user-ID programs up (no_new_privs).
///
/// # Errors
/// What the kernel says. A positive result with TSYNC is a thread whose filters are others: EAGAIN.
pub fn install(program: &[libc::sock_filter], flags: libc::c_ulong) -> io::Result<RawFd> {
    // Without it, kernels before 5.16 would slow the whole process down (SSBD).
    let flags = flags | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    match set_filter(program, flags) {
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => {
            no_new_privileges()?;
            set_filter(program, flags)
        }
        other => other,
    }
}

fn set_filter(program: &[libc::sock_filter], flags: libc::c_ulong) -> io::Result<RawFd> {
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
    let is_thread = flags & libc::SECCOMP_FILTER_FLAG_TSYNC != 0;
    match result {
        ..0 => Err(io::Error::last_os_error()),
        0 => Ok(0),
        _ if is_thread => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
        fd => Ok(fd as RawFd),
    }
}

/// From now on no exec gives this thread more rights than it has.
///
/// # Errors
/// What the kernel says: it is older than 3.5.
pub fn no_new_privileges() -> io::Result<()> {
    // SAFETY: takes no pointers.
    match unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
