//! SO_REUSEPORT, which weir sets on sockets of servers that do not: who has it from weir, also from one that
//! was killed, and how a server that comes back gets it in time.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use libbpf_rs::query::{ProgInfoIter, ProgInfoQueryOptions, ProgramInfo};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, ProgramMut};
use nix::errno::Errno;
use weir_core::abi::{MAX_GROUPS, MAX_SERVERS};

use super::failure::failed;
use super::options::set_number;
use super::owner;
use super::skel::types::parking_group;
use crate::cookies;
use crate::error::{Error, Result, of_libbpf};
use crate::object::Plain;
use crate::sockets::owned_sockets;

/// How long to wait for the kernel to free the table of a weir that was killed. Connections are not parked
/// meanwhile, and those parked for other servers wait: who needs more tries again.
const FREED_WITHIN: Duration = Duration::from_millis(20);

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
        let cookie = cookies::of_socket(fd.as_fd());
        if let Some(entry) = entries.iter().find(|entry| entry.cookie == cookie) {
            give_up(fd.as_fd(), entry.lent, true);
            take_out(cookie);
            undone += 1;
        }
    }
    Ok(undone)
}

/// Cookies of the sockets whose SO_REUSEPORT was some weir's when this process began. No later socket has one of them.
static LEFT: OnceLock<BTreeSet<u64>> = OnceLock::new();

/// Notes which sockets have SO_REUSEPORT from a weir that was killed. To be called before the process gives up
/// CAP_SYS_ADMIN, without which it sees no tables but its own (bpf_map_get_fd_by_id()).
pub fn note_left() {
    LEFT.get_or_init(lent);
}

/// Whether the SO_REUSEPORT of the socket with this cookie is some weir's.
pub fn is_lent(cookie: u64) -> bool {
    let left = LEFT.get();
    left.is_some_and(|left| left.contains(&cookie)) || lent().contains(&cookie)
}

/// Those of sockets whose SO_REUSEPORT is some weir's now.
fn lent() -> BTreeSet<u64> {
    let lent = entries().into_iter().filter(|entry| entry.lent);
    lent.map(|entry| entry.cookie).collect()
}

/// The servers' sockets in the tables of all queue_steer there are. A group keeps its program, and the
/// program its tables, as long as it has a socket.
fn entries() -> Vec<Entry> {
    let mut entries = Vec::new();
    for program in steering() {
        if let (Some(servers), Some(parking)) =
            (table(&program, "server_socks"), table(&program, "parking"))
        {
            (0..MAX_GROUPS).for_each(|number| read(&servers, &parking, number, &mut entries));
        }
    }
    entries
}

/// All queue_steer there are.
fn steering() -> impl Iterator<Item = ProgramInfo> {
    let options = ProgInfoQueryOptions::default().include_map_ids(true);
    let programs = ProgInfoIter::with_query_opts(options);
    programs.filter(|program| program.name == "queue_steer")
}

/// The tables of this name of all queue_steer there are.
fn tables(name: &str) -> impl Iterator<Item = MapHandle> {
    steering().filter_map(move |program| table(&program, name))
}

fn table(program: &ProgramInfo, name: &str) -> Option<MapHandle> {
    let maps = program.map_ids.iter();
    let mut maps = maps.filter_map(|id| MapHandle::from_map_id(*id).ok());
    maps.find(|map| map.name() == name)
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

/// Has these programs run for each bind() in the cgroups below this root, of [`crate::cgroup_root`].
///
/// # Errors
/// There is no root, or what the kernel refused.
pub fn attach(programs: [&ProgramMut<'_>; 2], root: Option<BorrowedFd<'_>>) -> Result<[Link; 2]> {
    let root = root.ok_or_else(|| Error::Failed {
        what: "have bind() looked at".into(),
        cause: "no cgroup2 is mounted, and weir may not mount it".into(),
    })?;
    let [v4, v6] = programs.map(|program| {
        let link = program.attach_cgroup(root.as_raw_fd());
        link.map_err(of_libbpf("have bind() looked at"))
    });
    Ok([v4?, v6?])
}

/// Has a program steer the connections of a socket's group.
///
/// # Errors
/// EINVAL: the socket is of no group yet.
pub fn attach_program(
    program: BorrowedFd<'_>,
    server: BorrowedFd<'_>,
) -> std::result::Result<(), Errno> {
    set_number(
        server.as_raw_fd(),
        libc::SOL_SOCKET,
        libc::SO_ATTACH_REUSEPORT_EBPF,
        program.as_raw_fd(),
    )
}

/// Enters a socket in a table from which programs choose. The kernel has a socket in one such table at most
/// (`sk_user_data`, reuseport_array_update_check()), and takes it out when the table is freed: that of a weir
/// that was killed some RCU grace periods after its program was replaced. So it is taken out of there, where
/// the rights suffice; else this waits for a moment.
///
/// # Errors
/// It is still in another table, or the kernel's.
pub fn enter(table: &impl MapCore, key: u32, socket: BorrowedFd<'_>) -> Result<()> {
    let value = socket.as_raw_fd() as u64;
    let end = Instant::now() + FREED_WITHIN;
    let mut left_behind = true;
    loop {
        // SAFETY: key and value are readable, 4 and 8 bytes as the map was made for.
        let result = unsafe {
            libbpf_sys::bpf_map_update_elem(
                table.as_fd().as_raw_fd(),
                std::ptr::from_ref(&key).cast(),
                std::ptr::from_ref(&value).cast(),
                libbpf_sys::BPF_ANY.into(),
            )
        };
        match Errno::from_raw(-result) {
            _ if result == 0 => return Ok(()),
            Errno::EBUSY if std::mem::take(&mut left_behind) => {
                take_out(cookies::of_socket(socket))
            }
            Errno::EBUSY if Instant::now() < end => std::thread::sleep(Duration::from_millis(1)),
            e => return Err(failed("enter the server's socket", e)),
        }
    }
}

/// Takes a socket out of the table of whichever weir has it, if this process may look into those
/// (CAP_SYS_ADMIN).
fn take_out(cookie: u64) {
    for table in tables("server_socks") {
        let mut keys = (0..MAX_GROUPS * MAX_SERVERS).filter(|key| {
            let socket = table.lookup(key.bytes(), MapFlags::ANY).ok().flatten();
            socket.and_then(|bytes| u64::read(&bytes)) == Some(cookie)
        });
        if let Some(key) = keys.next() {
            let _ = table.delete(key.bytes());
        }
    }
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
