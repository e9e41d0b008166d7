//! System calls that fail.

use std::io;

use crate::seccomp::{NUMBER, answer, install, load, skip};

/// Has this system call fail with this error from now on, for the calling thread.
///
/// # Errors
/// No seccomp here.
pub fn refuse_call(number: libc::c_long, errno: libc::c_int) -> io::Result<()> {
    let filter = [
        load(NUMBER),
        skip(number as u32, 0, 1),
        answer(libc::SECCOMP_RET_ERRNO | errno as u32),
        answer(libc::SECCOMP_RET_ALLOW),
    ];
    install(&filter, 0).map(drop)
}
