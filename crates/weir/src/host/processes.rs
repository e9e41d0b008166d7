//! Processes of this machine as people know them, and whose a socket is.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its id.
    pub pid: u32,
    /// Its name, of at most 15 bytes.
    pub comm: String,
    /// The id of its container, shortened as container tools do; `None` if it is in none that weir recognizes.
    pub container: Option<String>,
}

impl Process {
    /// The process of this id; `None` if it has ended.
    pub fn of(pid: u32) -> Option<Process> {
        let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).ok();
        Some(Process {
            pid,
            comm: read("comm")?.trim().to_owned(),
            container: read("cgroup").as_deref().and_then(container),
        })
    }

    /// The arguments that it was started with, as far as this process may see them.
    pub fn arguments(&self) -> Vec<String> {
        let line = fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        let words = line.split(|byte| *byte == 0);
        words
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .collect()
    }
}

/// The ids of all processes that this one sees, the lowest first.
pub fn ids() -> Vec<u32> {
    let mut ids: Vec<u32> = entries(Path::new("/proc"))
        .filter_map(|path| path.file_name()?.to_str()?.parse().ok())
        .collect();
    ids.sort_unstable();
    ids
}

/// The process with the lowest id that has each of these sockets open, by the socket's inode number. This reads the
/// descriptors of every process.
pub fn owners(sockets: &BTreeSet<u64>) -> BTreeMap<u64, Process> {
    let mut owners = BTreeMap::new();
    for pid in ids() {
        if owners.len() == sockets.len() {
            break;
        }
        let descriptors = entries(Path::new(&format!("/proc/{pid}/fd")));
        let targets = descriptors.filter_map(|path| fs::read_link(path).ok());
        let its: BTreeSet<u64> = targets.filter_map(|target| socket_inode(&target)).collect();
        for inode in its.intersection(sockets) {
            if let Some(process) = Process::of(pid) {
                owners.entry(*inode).or_insert(process);
            }
        }
    }
    owners
}

/// The inode number of a descriptor's target `socket:[4711]`.
pub fn socket_inode(target: &Path) -> Option<u64> {
    let text = target.to_str()?.strip_prefix("socket:[")?;
    text.strip_suffix(']')?.parse().ok()
}

/// What is in a directory; nothing if it cannot be read.
pub fn entries(dir: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.path())
}

/// The id of a container in /proc/PID/cgroup: 64 hex digits, as Docker, containerd, CRI-O and Podman name cgroups.
fn container(cgroup: &str) -> Option<String> {
    const DIGITS: usize = 64;
    const SHOWN: usize = 12;
    let words = cgroup.split(|c: char| !c.is_ascii_alphanumeric());
    let is_id = |word: &&str| word.len() == DIGITS && word.chars().all(|c| c.is_ascii_hexdigit());
    words.rev().find(is_id).map(|id| id[..SHOWN].to_owned())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_container_is_known_by_the_id_in_its_cgroup() {
        let id = "3f2a9c0b".repeat(8);
        for cgroup in [
            format!("0::/system.slice/docker-{id}.scope\n"),
            format!("0::/kubepods/burstable/pod1/{id}\n"),
            format!("12:cpu:/docker/{id}\n0::/docker/{id}\n"),
        ] {
            let found = container(&cgroup);
            assert_eq!(found.as_deref(), Some("3f2a9c0b3f2a"), "{cgroup}");
        }
        assert_eq!(container("0::/system.slice/ssh.service\n"), None);
    }

    #[test]
    fn a_socket_is_found_at_its_process() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let fd = format!("/proc/self/fd/{}", listener.as_raw_fd());
        let inode = socket_inode(&fs::read_link(fd).unwrap()).unwrap();
        let owners = owners(&BTreeSet::from([inode]));
        let owner = &owners[&inode];
        assert_eq!(owner.pid, std::process::id());
        assert!(owner.arguments()[0].contains("weir"), "{owner:?}");
    }
}
