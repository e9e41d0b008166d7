//! The listening sockets of this network namespace, read through a BPF iterator.

use std::fs::File;
use std::io::Read;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use super::events::address;
use super::skel::types::listen_record;
use crate::error::{Error, Result, of_errno};
use crate::object::{Plain, plain};

plain!(listen_record);

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
    let mut records = [0u8; size_of::<listen_record>() * RECORDS];
    loop {
        match iter.read(&mut records) {
            Ok(0) => return Ok(sockets),
            Ok(got) => {
                for record in listen_record::read_all(&records[..got]) {
                    if record.end != 0 {
                        return Ok(sockets);
                    }
                    sockets.push(ListenSocket::of(&record));
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

impl ListenSocket {
    fn of(record: &listen_record) -> ListenSocket {
        // An IPv6 socket may be bound to a mapped address.
        let ip = match address(record.addr) {
            IpAddr::V4(v4) if i32::from(record.family) == libc::AF_INET6 => {
                IpAddr::V6(v4.to_ipv6_mapped())
            }
            ip => ip,
        };
        ListenSocket {
            ip,
            port: record.port,
            v6only: record.v6only != 0,
            mptcp: record.mptcp != 0,
            queue_length: record.queue_length,
            queue_limit: record.queue_limit,
            half_open: record.half_open,
            inode: record.inode,
            parked: record.parked != 0,
            steered: record.steered != 0,
            socket: record.socket,
            wait: (record.wait_ns > 0).then(|| Duration::from_nanos(record.wait_ns)),
        }
    }
}
