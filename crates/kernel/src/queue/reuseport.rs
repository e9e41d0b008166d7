//! SO_REUSEPORT, which weir sets on sockets of servers that do not: who has it from weir, also from one that
//! was killed, and how a server that comes back gets it in time.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;

use libbpf_rs::query::{ProgInfoIter, ProgInfoQueryOptions};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, ProgramMut};
use weir_core::abi::{MAX_GROUPS, MAX_SERVERS};

use super::options::set_number;
use super::owner;
use super::skel::types::parking_group;
use crate::error::{Error, Result, of_errno, of_libbpf};
use crate::object::Plain;
use crate::sockets::owned_sockets;

/// A server's socket in the tables of a weir, which may be gone.
struct Entry {
    cookie: u64,
    lent: bool,
}

/// Takes off what a weir that was killed has left on the listening sockets of this network namespace, and
/// says on how many. Not to be called beside one that runs.
///
/// # Errors
/// The kernel's lists cannot be read.
pub fn undo() -> Result<u32> {
    let entries = entries();
    let mut undone = 0;
    if entries.is_empty() {
        return Ok(undone);
    }
    let sockets = owned_sockets().map_err(|error| Error::Failed {
        what: "read the listening sockets".into(),
        cause: error.to_string(),
    })?;
    for socket in sockets {
        let Ok(fd) = owner::descriptor(socket.inode) else {
            continue;
        };
        let cookie = cookie(fd.as_fd());
        if let Some(entry) = entries.iter().find(|entry| entry.cookie == cookie) {
            give_up(fd.as_fd(), entry.lent, true);
            undone += 1;
        }
    }
    Ok(undone)
}

/// Cookies of the sockets whose SO_REUSEPORT is some weir's.
pub fn cookies() -> BTreeSet<u64> {
    let lent = entries().into_iter().filter(|entry| entry.lent);
    lent.map(|entry| entry.cookie).collect()
}

/// The servers' sockets in the tables of all queue_steer there are. A group keeps its program, and the
/// program its tables, as long as it has a socket.
fn entries() -> Vec<Entry> {
    let options = ProgInfoQueryOptions::default().include_map_ids(true);
    let programs = ProgInfoIter::with_query_opts(options);
    let mut entries = Vec::new();
    for program in programs.filter(|program| program.name == "queue_steer") {
        let map = |name: &str| {
            let maps = program.map_ids.iter();
            let mut maps = maps.filter_map(|id| MapHandle::from_map_id(*id).ok());
            maps.find(|map| map.name() == name)
        };
        if let (Some(servers), Some(parking)) = (map("server_socks"), map("parking")) {
            (0..MAX_GROUPS).for_each(|number| read(&servers, &parking, number, &mut entries));
        }
    }
    entries
}

fn read(servers: &MapHandle, parking: &MapHandle, number: u32, into: &mut Vec<Entry>) {
    let Ok(Some(bytes)) = parking.lookup(number.bytes(), MapFlags::ANY) else {
        return;
    };
    let Some(table) = parking_group::read(&bytes) else {
        return;
    };
    for i in 0..table.servers.min(MAX_SERVERS) {
        let key = number * MAX_SERVERS + i;
        let socket = servers.lookup(key.bytes(), MapFlags::ANY);
        // User space is given the socket's cookie.
        if let Ok(Some(cookie)) = socket
            && let Some(cookie) = u64::read(&cookie)
        {
            into.push(Entry {
                cookie,
                lent: table.server[i as usize].lent != 0,
            });
        }
    }
}

/// The number that no other socket ever has; 0: not known.
pub fn cookie(socket: BorrowedFd<'_>) -> u64 {
    number_of(socket, libc::SO_COOKIE).unwrap_or_default()
}

/// The same of the thread's network namespace.
pub fn namespace_cookie() -> Result<u64> {
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

/// Has these programs run for each bind() in the cgroups below the root that is mounted.
pub fn attach(programs: [&ProgramMut<'_>; 2]) -> Result<[Link; 2]> {
    let root = cgroup_root()?;
    let [v4, v6] = programs.map(|program| {
        let link = program.attach_cgroup(root.as_raw_fd());
        link.map_err(of_libbpf("have bind() looked at"))
    });
    Ok([v4?, v6?])
}

fn cgroup_root() -> Result<File> {
    let what = "open the root of the control groups";
    let failed = |cause: String| Error::Failed {
        what: what.into(),
        cause,
    };
    let mounts =
        std::fs::read_to_string("/proc/self/mountinfo").map_err(|e| failed(e.to_string()))?;
    let root = mounts.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        kind.starts_with("cgroup2 ")
            .then(|| place.split(' ').nth(4))?
    });
    let root = root.ok_or_else(|| failed("no cgroup2 is mounted".into()))?;
    File::open(root).map_err(|e| failed(e.to_string()))
}

/// Leaves the server's socket as it was found, the program too if `program` says so.
pub fn give_up(server: BorrowedFd<'_>, lent: bool, program: bool) {
    let raw = server.as_raw_fd();
    if program {
        let _ = set_number(raw, libc::SOL_SOCKET, libc::SO_DETACH_REUSEPORT_BPF, 0);
    }
    if lent {
        let _ = set_number(raw, libc::SOL_SOCKET, libc::SO_REUSEPORT, 0);
    }
}
