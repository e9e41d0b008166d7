//! The few system calls that rustix lacks.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// Lets the kernel choose the local port at connect(), for a socket that is bound to an address:
/// then a port may serve many destinations at once (IP_BIND_ADDRESS_NO_PORT).
///
/// # Errors
/// As setsockopt(2).
pub fn set_bind_address_no_port(fd: impl AsFd) -> io::Result<()> {
    set_int(fd, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1)
}

/// Lets accept() return a connection once its first bytes are there (TCP_DEFER_ACCEPT). The kernel
/// rounds the time up to a number of SYN/ACK retransmissions. `None`: as soon as it stands.
///
/// # Errors
/// As setsockopt(2).
pub fn set_defer_accept(fd: impl AsFd, time: Option<Duration>) -> io::Result<()> {
    let seconds = time.map_or(0, |time| time.as_secs().clamp(1, 3600)) as libc::c_int;
    set_int(fd, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, seconds)
}

/// Lets a socket be readable once so many bytes are there, or its end, or it can hold no more (SO_RCVLOWAT). Bytes that
/// are there already count.
///
/// # Errors
/// As setsockopt(2).
pub fn set_receive_low_water(fd: impl AsFd, bytes: usize) -> io::Result<()> {
    let bytes = bytes.clamp(1, libc::c_int::MAX as usize) as libc::c_int;
    set_int(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, bytes)
}

/// What [`set_receive_low_water`] has set.
///
/// # Errors
/// As getsockopt(2).
#[cfg(test)]
pub fn receive_low_water(fd: impl AsFd) -> io::Result<usize> {
    let [bytes] = get([0i32], fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT)?;
    Ok(bytes as usize)
}

/// Gives pages that nothing uses back to the system, of all threads (malloc_trim(3)). Otherwise what is
/// freed in the middle of the heap stays with the process. It takes some ms for 100 MB, in which threads that allocate wait.
pub fn trim_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes no pointer, and locks what it works on.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Lets no SYN find a listening socket any more: it listens on a device that there is not
/// (SO_BINDTOIFINDEX). Handshakes that have begun are found by themselves and go on, and what they become
/// is bound to no device. Unlike a socket filter this needs no right.
///
/// # Errors
/// As setsockopt(2).
pub fn listen_nowhere(fd: impl AsFd) -> io::Result<()> {
    // The kernel counts devices from 1 and takes the number as it is.
    set_int(
        fd,
        libc::SOL_SOCKET,
        libc::SO_BINDTOIFINDEX,
        libc::c_int::MAX,
    )
}

/// Bytes that a socket's send queue has room for, in the kernel's accounting, which counts the
/// segments' overhead too (SO_MEMINFO).
///
/// # Errors
/// As getsockopt(2).
pub fn send_space(fd: impl AsFd) -> io::Result<usize> {
    let info = get(
        [0u32; MEMINFO_FIELDS],
        fd,
        libc::SOL_SOCKET,
        libc::SO_MEMINFO,
    )?;
    let limit = info[libc::SK_MEMINFO_SNDBUF as usize];
    let queued = info[libc::SK_MEMINFO_WMEM_QUEUED as usize];
    Ok(limit.saturating_sub(queued) as usize)
}

/// Bytes that were sent and that the peer has not acknowledged, whether they have left or not
/// (SIOCOUTQ).
///
/// # Errors
/// As ioctl(2).
pub fn unacknowledged(fd: impl AsFd) -> io::Result<usize> {
    queued(fd, libc::TIOCOUTQ)
}

/// Whether both halves have ended and all was sent, its end too, and not all of it is acknowledged: the states CLOSING and
/// LAST-ACK (TCP_INFO) with nothing to send (SIOCOUTQNSD).
///
/// # Errors
/// As getsockopt(2) and ioctl(2).
pub fn has_sent_its_end(fd: impl AsFd) -> io::Result<bool> {
    // linux/tcp.h: tcpi_state is the first byte. net/tcp_states.h:
    const LAST_ACK: u8 = 9;
    const CLOSING: u8 = 11;
    let [state] = get([0u8], &fd, libc::IPPROTO_TCP, libc::TCP_INFO)?;
    Ok(matches!(state, LAST_ACK | CLOSING) && queued(fd, libc::SIOCOUTQNSD)? == 0)
}

/// How long ago a peer that has something left to take last took some: something new was sent, for which its window had
/// room, and it has acknowledged something (TCP_INFO). A peer that is gone acknowledges nothing, though what was
/// sent is sent again. A peer that takes nothing has no room, though it acknowledges probes.
///
/// # Errors
/// As getsockopt(2).
pub fn last_taken(fd: impl AsFd) -> io::Result<Duration> {
    // linux/tcp.h: tcpi_last_data_sent and tcpi_last_ack_recv, in ms, behind eight single bytes and other integers.
    const LAST_DATA_SENT: usize = 11;
    const LAST_ACK_RECV: usize = 14;
    let info = get(
        [0u32; LAST_ACK_RECV + 1],
        fd,
        libc::IPPROTO_TCP,
        libc::TCP_INFO,
    )?;
    let millis = info[LAST_DATA_SENT].max(info[LAST_ACK_RECV]);
    Ok(Duration::from_millis(millis.into()))
}

/// How many segments without data were sent: acknowledgements, but for a SYN or FIN (TCP_INFO). Modulo 2^32.
///
/// # Errors
/// As getsockopt(2).
pub fn acknowledgements_sent(fd: impl AsFd) -> io::Result<u32> {
    // linux/tcp.h: tcpi_segs_out and tcpi_data_segs_out (Linux 4.6), behind eight single bytes and other integers.
    const SEGS_OUT: usize = 34;
    const DATA_SEGS_OUT: usize = 39;
    let info = get(
        [0u32; DATA_SEGS_OUT + 1],
        fd,
        libc::IPPROTO_TCP,
        libc::TCP_INFO,
    )?;
    Ok(info[SEGS_OUT].wrapping_sub(info[DATA_SEGS_OUT]))
}

fn queued(fd: impl AsFd, which: libc::Ioctl) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: both requests write one int, to a live one.
    let result = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), which, &raw mut bytes) };
    match result {
        0 => Ok(bytes.max(0) as usize),
        _ => Err(io::Error::last_os_error()),
    }
}

/// SK_MEMINFO_VARS of linux/sock_diag.h.
const MEMINFO_FIELDS: usize = 9;

/// Reads an option of integers, or its beginning.
fn get<T: Copy, const N: usize>(
    mut value: [T; N],
    fd: impl AsFd,
    level: i32,
    option: i32,
) -> io::Result<[T; N]> {
    let mut length = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to a live array of that size, whose elements take any bits.
    let result = unsafe {
        libc::getsockopt(
            fd.as_fd().as_raw_fd(),
            level,
            option,
            value.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    match result {
        0 => Ok(value),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set_int(fd: impl AsFd, level: i32, option: i32, value: libc::c_int) -> io::Result<()> {
    // SAFETY: the pointer and the length are those of a live int, which is what these options take.
    let result = unsafe {
        libc::setsockopt(
            fd.as_fd().as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
