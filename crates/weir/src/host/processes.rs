//! Processes of this machine as people know them, and whose a socket is.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Ticks of a second in /proc: the same on every machine that Linux runs on but Alpha.
const USER_HZ: u64 = 100;

/// A process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its id.
    pub pid: u32,
    /// Its name, of at most 15 bytes, [made printable](printable).
    pub comm: String,
    /// The id of its container, shortened as container tools do, or its name; `None` if it is in none that weir recognizes.
    pub container: Option<String>,
}

impl Process {
    /// The process of this id; `None` if it has ended.
    pub fn of(pid: u32) -> Option<Process> {
        let read = |file: &str| fs::read(format!("/proc/{pid}/{file}")).ok();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let comm = text(read("comm")?);
        Some(Process {
            pid,
            comm: printable(comm.strip_suffix('\n').unwrap_or(&comm)),
            container: read("cgroup").map(text).as_deref().and_then(container),
        })
    }

    /// When it was started, to a hundredth of a second; `None` if /proc does not say.
    pub fn started(&self) -> Option<SystemTime> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).ok()?;
        // The name in parentheses may hold anything; starttime is the 20th word behind it (proc(5)).
        let (_, behind) = stat.rsplit_once(')')?;
        let ticks: u64 = behind.split_whitespace().nth(19)?.parse().ok()?;
        let boot = fs::read_to_string("/proc/stat").ok()?;
        let boot = boot.lines().find_map(|line| line.strip_prefix("btime "))?;
        let since_boot = Duration::from_millis(ticks * 1000 / USER_HZ);
        Some(UNIX_EPOCH + Duration::from_secs(boot.trim().parse().ok()?) + since_boot)
    }

    /// The arguments that it was started with, as far as this process may see them, as they are: to be compared or parsed.
    pub fn arguments(&self) -> Vec<String> {
        let line = fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        let words = line.split(|byte| *byte == 0);
        words
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .collect()
    }
}

/// What anybody on this machine may have chosen, such as the name of a process, as text that does nothing to a terminal or
/// a log: characters that control one are escaped (`\u{1b}`), also those that turn the direction of what follows.
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for char in text.chars() {
        match char.is_control() || turns_direction(char) {
            true => shown.extend(char.escape_unicode()),
            false => shown.push(char),
        }
    }
    shown
}

fn turns_direction(char: char) -> bool {
    matches!(char, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
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
        for inode in sockets_of(pid).intersection(sockets) {
            if let Some(process) = Process::of(pid) {
                owners.entry(*inode).or_insert(process);
            }
        }
    }
    owners
}

/// The sockets that a process has open, by their inode numbers.
pub fn sockets_of(pid: u32) -> BTreeSet<u64> {
    let descriptors = entries(Path::new(&format!("/proc/{pid}/fd")));
    let targets = descriptors.filter_map(|path| fs::read_link(path).ok());
    targets.filter_map(|target| socket_inode(&target)).collect()
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

    /// prctl(PR_SET_NAME) takes any bytes, and anybody may call it.
    #[test]
    fn a_name_that_controls_a_terminal_is_shown_and_does_not() {
        let name = std::thread::spawn(|| {
            let thread = nix::unistd::gettid();
            fs::write("/proc/thread-self/comm", b"\x1b]0;pwn\x07\xff").unwrap();
            Process::of(thread.as_raw().unsigned_abs()).unwrap().comm
        });
        assert_eq!(name.join().unwrap(), "\\u{1b}]0;pwn\\u{7}\u{fffd}");
        assert_eq!(printable("nginx: Prüfer"), "nginx: Prüfer");
        assert_eq!(printable("a\u{202e}b\u{9b}"), "a\\u{202e}b\\u{9b}");
    }

    #[test]
    fn this_process_was_started_a_little_while_ago() {
        let own = Process::of(std::process::id()).unwrap();
        let ago = own.started().unwrap().elapsed().unwrap_or_default();
        assert!(ago < Duration::from_secs(3600), "{ago:?}");
    }

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
