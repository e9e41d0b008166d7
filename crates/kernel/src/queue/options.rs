//! Socket options. An accepted connection has those of the listening socket on which it arrived: a
//! parking listener has to look like the server's.

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use nix::errno::Errno;

/// Options that a connection takes over from its listener, or that decide which packets come to it.
const COPIED: [(i32, i32); 46] = [
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::SOL_SOCKET, libc::SO_PRIORITY),
    (libc::SOL_SOCKET, libc::SO_MARK),
    (libc::SOL_SOCKET, libc::SO_LINGER),
    (libc::SOL_SOCKET, libc::SO_RCVLOWAT),
    (libc::SOL_SOCKET, libc::SO_RCVTIMEO),
    (libc::SOL_SOCKET, libc::SO_SNDTIMEO),
    (libc::SOL_SOCKET, libc::SO_OOBINLINE),
    (libc::SOL_SOCKET, libc::SO_DONTROUTE),
    (libc::SOL_SOCKET, libc::SO_BUSY_POLL),
    (libc::SOL_SOCKET, libc::SO_INCOMING_CPU),
    (libc::SOL_SOCKET, libc::SO_BINDTODEVICE),
    (libc::SOL_SOCKET, libc::SO_ZEROCOPY),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMP),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPING),
    (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE),
    (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    (libc::IPPROTO_TCP, libc::TCP_CORK),
    (libc::IPPROTO_TCP, libc::TCP_MAXSEG),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
    (libc::IPPROTO_TCP, libc::TCP_SYNCNT),
    (libc::IPPROTO_TCP, libc::TCP_LINGER2),
    (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT),
    (libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP),
    (libc::IPPROTO_TCP, libc::TCP_CONGESTION),
    (libc::IPPROTO_TCP, libc::TCP_THIN_LINEAR_TIMEOUTS),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
    (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT),
    (libc::IPPROTO_TCP, libc::TCP_SAVE_SYN),
    (libc::IPPROTO_TCP, libc::TCP_INQ),
    (libc::IPPROTO_IP, libc::IP_TOS),
    (libc::IPPROTO_IP, libc::IP_TTL),
    (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER),
    (libc::IPPROTO_IP, libc::IP_FREEBIND),
    (libc::IPPROTO_IP, libc::IP_TRANSPARENT),
    (libc::IPPROTO_IP, libc::IP_MINTTL),
    (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY),
    (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS),
    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
    (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
    (libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT),
    (libc::IPPROTO_IPV6, libc::IPV6_FREEBIND),
    (libc::IPPROTO_IPV6, libc::IPV6_MINHOPCOUNT),
];

/// Buffer sizes, with the bit of SO_BUF_LOCK that says that the server set them (otherwise the kernel
/// sizes them itself).
const BUFFERS: [(i32, i32); 2] = [
    (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF),
    (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF),
];
/// include/uapi/asm-generic/socket.h, since 5.14.
const SO_BUF_LOCK: i32 = 72;

/// An option's value: at most a name of 64 bytes.
#[derive(PartialEq, Clone, Copy)]
struct Value {
    bytes: [u8; 64],
    len: libc::socklen_t,
}

/// The options of a socket that are not as a new socket has them.
#[derive(PartialEq)]
pub struct Options(Vec<(i32, i32, Value)>);

impl Options {
    /// Those of `from` that `fresh`, a new socket of the same kind, has otherwise.
    pub fn of(from: BorrowedFd<'_>, fresh: BorrowedFd<'_>) -> Options {
        let (from, fresh) = (from.as_raw_fd(), fresh.as_raw_fd());
        let differing = COPIED.into_iter().filter_map(|(level, name)| {
            let value = get(from, level, name)?;
            (get(fresh, level, name) != Some(value)).then_some((level, name, value))
        });
        let locked = number(from, libc::SOL_SOCKET, SO_BUF_LOCK).unwrap_or(0);
        let set = |bit: usize| locked & 1 << bit != 0;
        let buffers = BUFFERS.into_iter().enumerate().filter(|(bit, _)| set(*bit));
        let buffers = buffers.filter_map(|(_, (force, name))| {
            // The kernel doubles what it is given (socket(7)).
            let bytes = number(from, libc::SOL_SOCKET, name)? / 2;
            Some((libc::SOL_SOCKET, force, Value::of(bytes)))
        });
        Options(differing.chain(buffers).collect())
    }

    /// Sets them on another socket.
    pub fn apply(&self, to: BorrowedFd<'_>) -> Result<(), Errno> {
        self.0.iter().try_for_each(|(level, name, value)| {
            set(
                to.as_raw_fd(),
                *level,
                *name,
                &value.bytes[..value.len as usize],
            )
        })
    }
}

impl Value {
    fn of(number: i32) -> Value {
        let mut bytes = [0; 64];
        bytes[..4].copy_from_slice(&number.to_ne_bytes());
        Value { bytes, len: 4 }
    }
}

fn get(fd: RawFd, level: i32, name: i32) -> Option<Value> {
    let mut value = Value {
        bytes: [0; 64],
        len: 64,
    };
    // SAFETY: at most `len` bytes are written.
    let failed = unsafe {
        libc::getsockopt(
            fd,
            level,
            name,
            value.bytes.as_mut_ptr().cast(),
            &mut value.len,
        )
    };
    (failed == 0).then_some(value)
}

fn set(fd: RawFd, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
    // SAFETY: `value` is readable for its length.
    let failed = unsafe {
        libc::setsockopt(
            fd,
            level,
            name,
            value.as_ptr().cast(),
            value.len() as libc::socklen_t,
        )
    };
    Errno::result(failed).map(drop)
}

/// An option that is a number.
pub fn number(fd: RawFd, level: i32, name: i32) -> Option<i32> {
    let value = get(fd, level, name)?;
    Some(i32::from_ne_bytes(
        value.bytes[..4].try_into().expect("4 bytes"),
    ))
}

/// Sets an option that is a number.
pub fn set_number(fd: RawFd, level: i32, name: i32, value: i32) -> Result<(), Errno> {
    set(fd, level, name, &value.to_ne_bytes())
}
