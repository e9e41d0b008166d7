//! The listening sockets of this network namespace, read through a BPF iterator.

use std::io::Read;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use crate::error::{Error, Result, of_libbpf};

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
    /// The guard's estimate of the wait in the queue; `None` while not known.
    pub wait: Option<Duration>,
}

/// Size of struct listen_record in bpf/abi.h, checked there.
const RECORD: usize = 56;

/// Reads records until the one that says the listeners are all read.
pub(crate) fn read(link: &libbpf_rs::Link) -> Result<Vec<ListenSocket>> {
    let mut iter =
        libbpf_rs::Iter::new(link).map_err(of_libbpf("open the iterator over sockets"))?;
    let mut sockets = Vec::new();
    let mut record = [0u8; RECORD];
    loop {
        // One record a read: the kernel then stops walking at the first socket that does not listen.
        match iter.read(&mut record) {
            Ok(RECORD) => match parse(&record) {
                Some(socket) => sockets.push(socket),
                None => return Ok(sockets),
            },
            Ok(_) => return Ok(sockets),
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
    let wait_ns = u64::from_ne_bytes(r[40..48].try_into().expect("8 bytes"));
    Some(ListenSocket {
        ip,
        port: u16::from_ne_bytes([r[16], r[17]]),
        v6only: v6only != 0,
        mptcp: mptcp != 0,
        queue_length: u32_at(24),
        queue_limit: u32_at(28),
        half_open: u32_at(32),
        wait: (wait_ns > 0).then(|| Duration::from_nanos(wait_ns)),
    })
}
