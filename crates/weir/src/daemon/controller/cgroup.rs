//! CPU time: of the machine, and of the cgroups of the processes that listen.

use crate::host::processes::socket_inode;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use weir_core::controller::CpuTime;

/// Unit of /proc/stat, in ms: USER_HZ is 100 on every architecture that weir runs on.
const TICK_MS: u64 = 10;

/// CPU time of all CPUs since boot.
pub fn machine() -> Option<CpuTime> {
    // The first line is enough, and shorter than this; all of it takes eight reads.
    let mut begin = [0; 512];
    let mut file = fs::File::open("/proc/stat").ok()?;
    let read = file.read(&mut begin).ok()?;
    machine_of(std::str::from_utf8(&begin[..read]).ok()?)
}

/// The first line: cpu user nice system idle iowait irq softirq steal guest guest_nice; guest times are
/// in user and nice already (proc_stat(5)).
fn machine_of(stat: &str) -> Option<CpuTime> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = line
        .split_whitespace()
        .take(8)
        .map(str::parse)
        .collect::<Result<_, _>>()
        .ok()?;
    let all = ticks.iter().copied().fold(0, u64::saturating_add);
    let idle = ticks.get(3)?.saturating_add(*ticks.get(4)?);
    let time = |ticks: u64| Duration::from_millis(ticks.saturating_mul(TICK_MS));
    Some(CpuTime {
        used: time(all.saturating_sub(idle)),
        available: time(all),
    })
}

/// A cgroup whose CPU time is read.
#[derive(Debug, Clone, PartialEq)]
pub struct Cgroup {
    /// Below /sys/fs/cgroup.
    pub path: String,
    folder: PathBuf,
    /// CPUs that it may use at a time: its quota, or the nearest one above it, or all.
    cpus: f64,
}

impl Cgroup {
    /// CPU time since it was made; `available` counts from any start.
    pub fn time(&self, now: Duration) -> Option<CpuTime> {
        let stat = fs::read_to_string(self.folder.join("cpu.stat")).ok()?;
        Some(CpuTime {
            used: usage_of(&stat)?,
            available: now.mul_f64(self.cpus),
        })
    }
}

/// The line `usage_usec N` of cpu.stat.
fn usage_of(stat: &str) -> Option<Duration> {
    let line = stat
        .lines()
        .find_map(|line| line.strip_prefix("usage_usec "))?;
    Some(Duration::from_micros(line.trim().parse().ok()?))
}

/// The line of cpu.max: `QUOTA PERIOD`, in µs; `max` is no quota.
fn quota_of(max: &str) -> Option<f64> {
    let (quota, period) = max.trim().split_once(' ')?;
    let (quota, period): (f64, f64) = (quota.parse().ok()?, period.parse().ok()?);
    (period > 0.0).then_some(quota / period)
}

/// The cgroups (v2) of the processes that have one of these sockets open, by their inodes. This reads
/// the descriptors of every process, so it is asked seldom.
pub fn of_sockets(inodes: &BTreeSet<u64>) -> Vec<Cgroup> {
    let mut found = BTreeMap::new();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    for process in processes.map(|entry| entry.path()) {
        if has_socket(&process, inodes)
            && let Some(path) = cgroup_path(&process)
        {
            found.entry(path).or_insert(());
        }
    }
    found.into_keys().filter_map(cgroup).collect()
}

fn has_socket(process: &Path, inodes: &BTreeSet<u64>) -> bool {
    let descriptors = fs::read_dir(process.join("fd"))
        .into_iter()
        .flatten()
        .flatten();
    descriptors
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .any(|target| socket_inode(&target).is_some_and(|inode| inodes.contains(&inode)))
}

/// The line `0::PATH` of /proc/PID/cgroup: that of the unified hierarchy.
fn cgroup_path(process: &Path) -> Option<String> {
    let text = fs::read_to_string(process.join("cgroup")).ok()?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::"))?;
    Some(path.to_owned())
}

fn cgroup(path: String) -> Option<Cgroup> {
    let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
    let inside = path.trim_start_matches('/');
    let mut folders = roots.iter().map(|root| Path::new(root).join(inside));
    let folder = folders.find(|folder| folder.join("cpu.stat").exists())?;
    let quotas = folder.ancestors().filter_map(|above| {
        let max = fs::read_to_string(above.join("cpu.max")).ok()?;
        quota_of(&max)
    });
    let cpus = std::thread::available_parallelism().map_or(1.0, |n| n.get() as f64);
    let cpus = quotas.fold(cpus, f64::min);
    Some(Cgroup { path, folder, cpus })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_waiting_for_io_is_not_used() {
        let stat = "cpu  10 5 15 60 10 0 0 0 3 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        let time = machine_of(stat).unwrap();
        assert_eq!(time.used, Duration::from_millis(300));
        assert_eq!(time.available, Duration::from_secs(1));
        assert_eq!(machine_of("intr 1 2 3"), None);
    }

    #[test]
    fn cpu_time_goes_on_after_a_year_on_many_cpus() {
        // 2^32 ticks over all CPUs: 31 days on 16 of them.
        let stat = |more: u64| {
            let (user, idle) = (3 * (1_u64 << 32), 5 * (1_u64 << 32));
            let text = format!("cpu  {} 0 0 {} 0 0 0 0 0 0\n", user + more, idle + 3 * more);
            machine_of(&text).unwrap()
        };
        let (before, now) = (stat(0), stat(100));
        assert_eq!(now.used - before.used, Duration::from_secs(1));
        assert_eq!(now.available - before.available, Duration::from_secs(4));
        // No count that the kernel can write ends weir.
        let all = u64::MAX;
        assert!(machine_of(&format!("cpu {all} {all} 0 {all} 0 0 0 0 0 0")).is_some());
    }

    #[test]
    fn this_machine_has_a_cpu_time() {
        let time = machine().unwrap();
        assert!(
            time.available >= time.used && !time.used.is_zero(),
            "{time:?}"
        );
    }

    #[test]
    fn quotas_and_usage_are_read() {
        assert_eq!(quota_of("150000 100000\n"), Some(1.5));
        assert_eq!(quota_of("max 100000\n"), None);
        let stat = "usage_usec 2500\nuser_usec 2000\n";
        assert_eq!(usage_of(stat), Some(Duration::from_micros(2500)));
    }

    #[test]
    fn the_cgroup_of_a_socket_is_that_of_its_process() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&listener);
        let link = fs::read_link(format!("/proc/self/fd/{fd}")).unwrap();
        let inode = socket_inode(&link).unwrap();
        assert!(has_socket(
            Path::new("/proc/self"),
            &BTreeSet::from([inode])
        ));
        assert!(!has_socket(Path::new("/proc/self"), &BTreeSet::from([0])));
    }
}
