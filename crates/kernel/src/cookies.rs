//! Numbers that the kernel gives to one socket or network namespace only, until the machine stops.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;

use crate::error::{Error, Result, of_errno};

/// That of a socket; 0: not known.
pub(crate) fn of_socket(socket: BorrowedFd<'_>) -> u64 {
    number_of(socket, libc::SO_COOKIE).unwrap_or_default()
}

/// That of the calling thread's network namespace.
pub(crate) fn of_namespace() -> Result<u64> {
    let socket = UnixDatagram::unbound().map_err(|error| Error::Failed {
        what: "make a socket".into(),
        cause: error.to_string(),
    })?;
    number_of(socket.as_fd(), libc::SO_NETNS_COOKIE)
        .ok_or_else(|| of_errno("ask for the cookie of the network namespace"))
}

fn number_of(socket: BorrowedFd<'_>, option: i32) -> Option<u64> {
    let mut value = 0u64;
    let mut len = size_of::<u64>() as libc::socklen_t;
    // SAFETY: both are writable, and len says how long the value is.
    let failed = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            std::ptr::from_mut(&mut value).cast(),
            &mut len,
        )
    };
    (failed == 0).then_some(value)
}
