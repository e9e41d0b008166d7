//! One system call of the server that waits for an answer.

use std::os::fd::RawFd;

/// A system call that waits for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// The kernel's number of it.
    pub id: u64,
    /// The thread that calls, as this process sees it.
    pub thread: i32,
    /// What it asks for.
    pub asked: Asked,
}

/// What a call asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// listen() on this descriptor.
    Listen(RawFd),
    /// accept() or accept4().
    Accept(Accept),
    /// Anything else, or with flags that the kernel has to refuse.
    Other,
}

/// An accept().
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accept {
    /// The listening socket in the server's descriptor table.
    pub listener: RawFd,
    /// Where in its memory the peer's address is to be written, and the length of that; 0: nowhere.
    pub address: [u64; 2],
    /// SOCK_CLOEXEC.
    pub close_on_exec: bool,
    /// SOCK_NONBLOCK.
    pub nonblocking: bool,
}

impl Call {
    /// What the kernel wrote; `None`: nothing.
    pub(super) fn of(raw: &libc::seccomp_notif) -> Option<Call> {
        let arguments = raw.data.args;
        let listener = arguments[0] as RawFd;
        let accept = |flags: u64| {
            let known = (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) as u64;
            // The kernel takes the flags as an int.
            let flags = flags & 0xffff_ffff;
            match flags & !known {
                0 => Asked::Accept(Accept {
                    listener,
                    address: [arguments[1], arguments[2]],
                    close_on_exec: flags & libc::SOCK_CLOEXEC as u64 != 0,
                    nonblocking: flags & libc::SOCK_NONBLOCK as u64 != 0,
                }),
                _ => Asked::Other,
            }
        };
        let asked = match i64::from(raw.data.nr) {
            libc::SYS_accept => accept(0),
            libc::SYS_accept4 => accept(arguments[3]),
            libc::SYS_listen => Asked::Listen(listener),
            _ => Asked::Other,
        };
        (raw.id != 0).then_some(Call {
            id: raw.id,
            thread: raw.pid as i32,
            asked,
        })
    }
}
