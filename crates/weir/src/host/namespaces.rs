//! Network namespaces of this machine: what people call them, and how to enter one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use netlink_sys::protocols::NETLINK_ROUTE;

use crate::host::netlink::{Plain, ask, attribute};
use crate::host::ports;
use crate::host::processes::{self, Process, entries, printable};

/// Where `ip netns` keeps names.
const NAMED: &str = "/run/netns";
/// The namespace of this process.
const OURS: &str = "/proc/self/ns/net";

/// Of linux/rtnetlink.h and linux/net_namespace.h.
const RTM_GETNSID: u16 = 90;
const NETNSA_NSID: u16 = 1;
const NETNSA_PID: u16 = 2;

/// A network namespace that some process is in, or that has a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Space {
    /// The inode number of the namespace.
    pub inode: u64,
    /// The name that `ip netns` has for it.
    pub name: Option<String>,
    /// A process in it: the one with the lowest id.
    pub process: Option<Process>,
}

impl Space {
    /// One of which nothing more is known.
    pub fn new(inode: u64) -> Space {
        Space {
            inode,
            name: None,
            process: None,
        }
    }

    /// `network namespace web`, `the network namespace of nginx (pid 7, container 3f2a9c…)`.
    pub fn describe(&self) -> String {
        match (&self.name, &self.process) {
            (Some(name), _) => format!("network namespace {name}"),
            (None, Some(process)) if process.comm == "kthreadd" => {
                "the machine's own network namespace".to_owned()
            }
            (None, Some(process)) => {
                let container = process.container.as_ref();
                let container = container.map_or(String::new(), |id| format!(", container {id}"));
                let Process { pid, comm, .. } = process;
                format!("the network namespace of {comm} (pid {pid}{container})")
            }
            (None, None) => format!("network namespace {}", self.inode),
        }
    }

    /// What a command line begins with to run in it.
    pub fn enter(&self) -> String {
        match (&self.name, &self.process) {
            (Some(name), _) => format!("nsenter --net={NAMED}/{name}"),
            (None, Some(process)) => format!("nsenter -t {} --net", process.pid),
            (None, None) => "nsenter --net=FILE".to_owned(),
        }
    }

    /// The command that protects a port in it: from here where it has a name that says so.
    pub fn protect(&self, port: u16) -> String {
        let process = self.process.as_ref();
        let container = process.and_then(|process| process.container.as_deref());
        match (container, &self.name) {
            (Some(id), _) => format!("weir protect {port} --where container:{id}"),
            (None, Some(name)) => format!("weir protect {port} --where netns:{name}"),
            (None, None) => format!("{} weir protect {port}", self.enter()),
        }
    }

    /// A file of /proc as a process in the namespace sees it; `None` without such a process.
    fn proc_file(&self, file: &str) -> Option<String> {
        let pid = self.process.as_ref()?.pid;
        fs::read_to_string(format!("/proc/{pid}/net/{file}")).ok()
    }

    /// Whether it has this address, as far as can be told.
    pub fn has_address(&self, ip: IpAddr) -> bool {
        let read = |file| self.proc_file(file).unwrap_or_default();
        match ip {
            IpAddr::V4(ip) => is_local(&read("fib_trie"), ip),
            IpAddr::V6(ip) => is_listed(&read("if_inet6"), ip),
        }
    }

    /// Whether the calling thread's network namespace has an interface whose other end is in it, so that an address there is
    /// the one that is meant here.
    pub fn is_next(&self) -> bool {
        let Some(process) = &self.process else {
            return false;
        };
        // struct rtgenmsg, and an attribute with the process.
        let mut payload = vec![0; 4];
        payload.extend(8u16.to_ne_bytes());
        payload.extend(NETNSA_PID.to_ne_bytes());
        payload.extend(process.pid.to_ne_bytes());
        let kind = RTM_GETNSID;
        let answers = ask(NETLINK_ROUTE, Plain { kind, payload }).unwrap_or_default();
        let ids = answers.iter().filter_map(|answer| {
            attribute(answer.payload.get(4..)?, NETNSA_NSID)?
                .try_into()
                .ok()
        });
        ids.map(i32::from_ne_bytes).any(|id| id >= 0)
    }

    /// The sockets that listen in it at this address and port, by their inode numbers.
    pub fn sockets(&self, at: SocketAddr) -> BTreeSet<u64> {
        let tables = ["tcp", "tcp6"].into_iter();
        let tables = tables.filter_map(|file| self.proc_file(file));
        let serves = |local: SocketAddr| {
            local.port() == at.port() && (local.ip().is_unspecified() || local.ip() == at.ip())
        };
        tables
            .flat_map(|table| sockets_at(&table, serves))
            .collect()
    }

    /// The ports on which a TCP socket listens in it for connections from outside, as far as can be told.
    pub fn ports(&self) -> BTreeSet<u16> {
        let tables = ["tcp", "tcp6"].into_iter();
        let tables = tables.filter_map(|file| self.proc_file(file));
        tables.flat_map(|table| listening(&table)).collect()
    }
}

/// That of this process; `None` where /proc does not say.
pub fn ours() -> Option<Space> {
    let ours = inode_of(Path::new(OURS))?;
    all().remove(&ours)
}

/// All but that of this process, in the order of their inode numbers.
pub fn others() -> Vec<Space> {
    let ours = inode_of(Path::new(OURS));
    let mut spaces = all();
    if let Some(ours) = ours {
        spaces.remove(&ours);
    }
    spaces.into_values().collect()
}

/// By their inode numbers.
fn all() -> BTreeMap<u64, Space> {
    let mut spaces: BTreeMap<u64, Space> = BTreeMap::new();
    for pid in processes::ids() {
        let inode = inode_of_process(pid);
        if let Some(inode) = inode {
            let space = spaces.entry(inode).or_insert_with(|| Space::new(inode));
            if space.process.is_none() {
                space.process = Process::of(pid);
            }
        }
    }
    for (inode, name) in names() {
        let space = spaces.entry(inode).or_insert_with(|| Space::new(inode));
        space.name = Some(printable(&name));
    }
    spaces
}

/// The names that `ip netns` has, by the inode numbers of their namespaces.
pub fn names() -> BTreeMap<u64, String> {
    let named = |path: std::path::PathBuf| {
        let name = path.file_name()?.to_string_lossy().into_owned();
        Some((inode_of(&path)?, name))
    };
    entries(Path::new(NAMED)).filter_map(named).collect()
}

/// The inode number of the namespace of a process; `None` if it has ended.
pub fn inode_of_process(pid: u32) -> Option<u64> {
    inode_of(Path::new(&format!("/proc/{pid}/ns/net")))
}

fn inode_of(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|meta| meta.ino())
}

/// The ports of the sockets in LISTEN in a table such as /proc/net/tcp, but for those on a loopback address.
fn listening(table: &str) -> Vec<u16> {
    let port = |line: &str| {
        let (local, _, state) = ports::connection(line)?;
        (state == ports::LISTEN && !local.ip().is_loopback()).then_some(local.port())
    };
    table.lines().filter_map(port).collect()
}

/// The sockets that listen at a port of this network namespace, by their inode numbers.
pub fn sockets_here(port: u16) -> BTreeSet<u64> {
    let tables = ["tcp", "tcp6"].into_iter();
    let tables =
        tables.filter_map(|file| fs::read_to_string(format!("/proc/self/net/{file}")).ok());
    tables
        .flat_map(|table| sockets_at(&table, |at| at.port() == port))
        .collect()
}

/// The inode numbers of the sockets in LISTEN in such a table, by their address.
fn sockets_at(table: &str, is_wanted: impl Fn(SocketAddr) -> bool) -> Vec<u64> {
    let inode = |line: &str| {
        let (local, _, state) = ports::connection(line)?;
        let inode = line.split_whitespace().nth(9)?.parse().ok()?;
        (state == ports::LISTEN && is_wanted(local)).then_some(inode)
    };
    table.lines().filter_map(inode).collect()
}

/// Whether /proc/net/fib_trie has it as an address of the host: routes to others are in it too.
fn is_local(trie: &str, ip: Ipv4Addr) -> bool {
    let leaf = format!("|-- {ip}");
    let behind = trie.lines().skip_while(|line| line.trim() != leaf).skip(1);
    let mut its = behind.take_while(|line| line.trim().starts_with('/'));
    its.any(|line| line.trim() == "/32 host LOCAL")
}

/// Whether /proc/net/if_inet6 has it.
fn is_listed(table: &str, ip: Ipv6Addr) -> bool {
    let wanted: String = ip
        .octets()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    table.lines().any(|line| line.starts_with(&wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_found_by_its_state_and_address() {
        let table = "  sl  local_address rem_address   st tx_queue\n   \
                     0: 00000000:1F90 00000000:0000 0A 00000000:00000000\n   \
                     1: 0B00007F:94E7 00000000:0000 0A 00000000:00000000\n   \
                     2: 0100000A:0051 0100007F:D431 01 00000000:00000000\n";
        assert_eq!(listening(table), [8080]);
        let table = "  sl  local_address rem_address   st tx_queue\n   \
                     0: 00000000000000000000000001000000:0277 00000000000000000000000000000000:0000 0A 0:0\n   \
                     1: 00000000000000000000000000000000:0050 00000000000000000000000000000000:0000 0A 0:0\n";
        assert_eq!(listening(table), [80]);
    }

    #[test]
    fn an_address_of_the_host_is_told_from_a_route_to_it() {
        let trie = "Local:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 10.0.0.1\n        /32 link UNICAST\n     |-- 10.0.0.2\n        \
                    /32 host LOCAL\n        |-- 10.0.0.3\n           /32 link BROADCAST\n";
        let has = |ip: &str| is_local(trie, ip.parse().unwrap());
        assert!(has("10.0.0.2"));
        assert!(!has("10.0.0.1") && !has("10.0.0.3") && !has("0.0.0.2"));
        let table = "fd000000000000000000000000000002 02 40 00 80     eth0\n";
        assert!(is_listed(table, "fd00::2".parse().unwrap()));
        assert!(!is_listed(table, "fd00::3".parse().unwrap()));
    }

    #[test]
    fn a_namespace_is_called_by_its_name_or_by_a_process_in_it() {
        let process = Process {
            pid: 7,
            comm: "nginx".into(),
            container: Some("3f2a9c0b3f2a".into()),
        };
        let mut space = Space {
            inode: 1,
            name: None,
            process: Some(process),
        };
        assert_eq!(
            space.describe(),
            "the network namespace of nginx (pid 7, container 3f2a9c0b3f2a)"
        );
        assert_eq!(space.enter(), "nsenter -t 7 --net");
        space.process.as_mut().unwrap().comm = "kthreadd".into();
        assert_eq!(space.describe(), "the machine's own network namespace");
        space.name = Some("web".into());
        assert_eq!(space.describe(), "network namespace web");
        assert_eq!(space.enter(), "nsenter --net=/run/netns/web");
        assert_eq!(
            space.protect(80),
            "weir protect 80 --where container:3f2a9c0b3f2a"
        );
        space.process = None;
        assert_eq!(space.protect(80), "weir protect 80 --where netns:web");
    }
}
