//! Network namespaces of this machine: what people call them, and how to enter one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::host::ports;
use crate::host::processes::{self, Process, entries};

/// Where `ip netns` keeps names.
const NAMED: &str = "/run/netns";

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

    /// A file of /proc as a process in the namespace sees it; `None` without such a process.
    fn proc_file(&self, file: &str) -> Option<String> {
        let pid = self.process.as_ref()?.pid;
        fs::read_to_string(format!("/proc/{pid}/net/{file}")).ok()
    }

    /// Whether it has this IPv4 address, as far as can be told.
    pub fn has_address(&self, ip: &str) -> bool {
        let wanted = format!("|-- {ip}");
        let trie = self.proc_file("fib_trie").unwrap_or_default();
        trie.lines().any(|line| line.trim() == wanted)
    }

    /// The ports on which a TCP socket listens in it for connections from outside, as far as can be told.
    pub fn ports(&self) -> BTreeSet<u16> {
        let tables = ["tcp", "tcp6"].into_iter();
        let tables = tables.filter_map(|file| self.proc_file(file));
        tables.flat_map(|table| listening(&table)).collect()
    }
}

/// All but that of this process, in the order of their inode numbers.
pub fn others() -> Vec<Space> {
    let ours = inode_of(Path::new("/proc/self/ns/net"));
    let mut spaces: BTreeMap<u64, Space> = BTreeMap::new();
    for pid in processes::ids() {
        let inode = inode_of(Path::new(&format!("/proc/{pid}/ns/net")));
        if let Some(inode) = inode.filter(|_| inode != ours) {
            let space = spaces.entry(inode).or_insert_with(|| Space::new(inode));
            if space.process.is_none() {
                space.process = Process::of(pid);
            }
        }
    }
    for path in entries(Path::new(NAMED)) {
        let inode = inode_of(&path);
        if let Some(inode) = inode.filter(|_| inode != ours) {
            let space = spaces.entry(inode).or_insert_with(|| Space::new(inode));
            space.name = path
                .file_name()
                .map(|name| name.to_string_lossy().into_owned());
        }
    }
    spaces.into_values().collect()
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
    }
}
