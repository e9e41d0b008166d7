//! The listening sockets of this network namespace, read through a BPF iterator.

use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use crate::error::{Error, Result, of_errno};

/// One listening TCP socket of this network namespace, as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenSocket {
    /// Local address; `0.0.0.0` or `::` for any.
    pub ip: IpAddr,
    /// Local port.
    pub port: u16,
    /// An IPv6 socket that takes no IPv4 (IPV6_V6ONLY).
    pub v6only: bool,
    /// An MPTCP listener.
    pub mptcp: bool,
    /// Connections waiting for accept().
    pub queue_length: u32,
    /// The backlog in force.
    pub queue_limit: u32,
    /// Handshakes under way.
    pub half_open: u32,
    /// Its inode number, by which /proc/PID/fd names it.
    pub inode: u64,
    /// A parking listener of this weir, not a server's.
    pub parked: bool,
    /// Its SO_REUSEPORT group has a BPF program that is not weir's.
    pub steered: bool,
    /// Its kernel address.
    pub socket: u64,
    /// The guard's estimate of the wait in the queue; `None` while not known.
    pub wait: Option<Duration>,
}

/// Size of struct listen_record in bpf/abi.h, checked there.
const RECORD: usize = 64;
/// Records a read. For each read the kernel walks the sockets of a port from the first one again: one
/// record at a time, a full queue of 4096 took 0.4 s.
const RECORDS: usize = 256;

/// Reads records until the one that says the listeners are all read. `link`: of the iterator program.
pub(crate) fn read(link: BorrowedFd<'_>) -> Result<Vec<ListenSocket>> {
    // SAFETY: no options are given.
    let fd = unsafe { libbpf_sys::bpf_iter_create(link.as_raw_fd()) };
    if fd < 0 {
        return Err(of_errno("open the iterator over sockets"));
    }
    // SAFETY: a new descriptor of ours.
    let mut iter = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    let mut sockets = Vec::new();
    let mut records = [0u8; RECORD * RECORDS];
    loop {
        match iter.read(&mut records) {
            Ok(0) => return Ok(sockets),
            Ok(got) => {
                for record in records[..got].chunks_exact(RECORD) {
                    match parse(record.try_into().expect("a whole record")) {
                        Some(socket) => sockets.push(socket),
                        None => return Ok(sockets),
                    }
                }
            }
            Err(e) => {
                let what = "read the listening sockets".into();
                return Err(Error::Failed {
                    what,
                    cause: e.to_string(),
                });
            }
        }
    }
}

fn parse(r: &[u8; RECORD]) -> Option<ListenSocket> {
    let u32_at = |at: usize| u32::from_ne_bytes([r[at], r[at + 1], r[at + 2], r[at + 3]]);
    let (family, mptcp, v6only, end) = (r[18], r[19], r[20], r[21]);
    if end != 0 {
        return None;
    }
    let address = Ipv6Addr::from(<[u8; 16]>::try_from(&r[..16]).expect("16 bytes"));
    let ip = match address.to_ipv4_mapped() {
        Some(v4) if i32::from(family) == libc::AF_INET => IpAddr::V4(v4),
        _ => IpAddr::V6(address),
    };
    let u64_at = |at: usize| u64::from_ne_bytes(r[at..at + 8].try_into().expect("8 bytes"));
    let wait_ns = u64_at(40);
    Some(ListenSocket {
        ip,
        port: u16::from_ne_bytes([r[16], r[17]]),
        v6only: v6only != 0,
        mptcp: mptcp != 0,
        queue_length: u32_at(24),
        queue_limit: u32_at(28),
        half_open: u32_at(32),
        inode: u64_at(56),
        parked: r[22] != 0,
        steered: r[23] != 0,
        socket: u64_at(48),
        wait: (wait_ns > 0).then(|| Duration::from_nanos(wait_ns)),
    })
}
