//! What running programs hold and use, by /proc.

use std::collections::BTreeMap;
use std::iter::Sum;
use std::process::Child;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde::Serialize;

use crate::error::{Context, Error, Result};
use crate::wait::until;

/// What processes hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Holdings {
    /// Descriptors of all kinds.
    pub descriptors: usize,
    /// Sockets.
    pub sockets: usize,
    /// Ends of pipes.
    pub pipes: usize,
    /// Resident memory, in KiB. Pages that two processes share count twice.
    pub rss_kib: u64,
}

impl Holdings {
    /// Of one process.
    pub fn of(pid: u32) -> Result<Holdings> {
        let descriptors = descriptors(pid)?;
        let of_kind = |kind| descriptors.get(kind).copied().unwrap_or(0);
        Ok(Holdings {
            descriptors: descriptors.values().sum(),
            sockets: of_kind("socket"),
            pipes: of_kind("pipe"),
            rss_kib: rss_kib(pid)?,
        })
    }
}

/// How many descriptors of each kind a process has: `socket`, `pipe`, `anon_inode:[eventpoll]`; files by
/// their path.
pub fn descriptors(pid: u32) -> Result<BTreeMap<String, usize>> {
    let path = format!("/proc/{pid}/fd");
    let entries = std::fs::read_dir(&path).context(format!("cannot read {path}"))?;
    let mut descriptors = BTreeMap::new();
    for entry in entries.flatten() {
        // One that was closed meanwhile has no link any more.
        if let Ok(link) = std::fs::read_link(entry.path()) {
            let kind = kind(&link.to_string_lossy());
            *descriptors.entry(kind).or_default() += 1;
        }
    }
    Ok(descriptors)
}

/// Resident memory of a process, in KiB.
pub fn rss_kib(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let status = std::fs::read_to_string(&path).context(format!("cannot read {path}"))?;
    Ok(number(&status, "VmRSS:").unwrap_or(0))
}

/// `socket:[4711]` is a `socket`; what has no number in brackets is of its own kind.
fn kind(link: &str) -> String {
    match link.split_once(":[") {
        Some((kind, number)) if number.trim_end_matches(']').parse::<u64>().is_ok() => kind.into(),
        _ => link.into(),
    }
}

impl Sum for Holdings {
    fn sum<I: Iterator<Item = Holdings>>(all: I) -> Holdings {
        all.fold(Holdings::default(), |sum, one| Holdings {
            descriptors: sum.descriptors + one.descriptors,
            sockets: sum.sockets + one.sockets,
            pipes: sum.pipes + one.pipes,
            rss_kib: sum.rss_kib + one.rss_kib,
        })
    }
}

/// What processes have used so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time of all threads, to the ns (/proc/PID/task/TID/schedstat).
    pub cpu: Duration,
    /// Of it, the time in the program's own code and not in the kernel's: in steps of 10 ms, divided by the
    /// kernel's timer ticks (/proc/PID/stat).
    pub user: Duration,
    /// How often a thread gave its CPU up, or lost it.
    pub switches: u64,
}

impl Usage {
    /// Of one process.
    pub fn of(pid: u32) -> Result<Usage> {
        let what = || format!("cannot see what process {pid} uses");
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).context(what())?;
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).context(what())?;
        let mut usage = Usage {
            user: user_time(&stat).unwrap_or_default(),
            ..Usage::default()
        };
        for task in tasks.flatten() {
            let read = |file| std::fs::read_to_string(task.path().join(file));
            let (Ok(times), Ok(status)) = (read("schedstat"), read("status")) else {
                // A thread that has ended.
                continue;
            };
            let ran_ns = times
                .split(' ')
                .next()
                .and_then(|text| text.trim().parse().ok());
            usage.cpu += Duration::from_nanos(ran_ns.unwrap_or(0));
            for key in ["voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"] {
                usage.switches += number(&status, key).unwrap_or(0);
            }
        }
        Ok(usage)
    }

    /// What was used since `earlier`.
    pub fn since(&self, earlier: &Usage) -> Usage {
        Usage {
            cpu: self.cpu.saturating_sub(earlier.cpu),
            user: self.user.saturating_sub(earlier.user),
            switches: self.switches.saturating_sub(earlier.switches),
        }
    }
}

impl Sum for Usage {
    fn sum<I: Iterator<Item = Usage>>(all: I) -> Usage {
        all.fold(Usage::default(), |sum, one| Usage {
            cpu: sum.cpu + one.cpu,
            user: sum.user + one.user,
            switches: sum.switches + one.switches,
        })
    }
}

/// The processes of these groups.
pub fn members(groups: &[u32]) -> Result<Vec<u32>> {
    let is_member = |stat: &str| {
        let group = stat_field(stat, 5).and_then(|group| u32::try_from(group).ok());
        group.is_some_and(|group| groups.contains(&group))
    };
    let members = stats()?.filter(|(_, stat)| is_member(stat));
    Ok(members.map(|(pid, _)| pid).collect())
}

/// Kills a child that setsid(1) gives a session of its own, with the whole session, and waits for it. Also one that has no
/// session yet, since it was started a moment ago: its group does not exist then.
pub fn end_session(child: &mut Child) {
    let _ = child.kill();
    let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
    let _ = child.wait();
}

/// Stops every process of a group (SIGSTOP), and waits until each of their threads stands still: the signal reaches
/// one thread, and the others run on until that one is scheduled.
///
/// # Errors
/// There is no such group, or /proc cannot be read.
///
/// # Panics
/// A thread still runs after [`crate::wait::PATIENCE`].
pub fn stop_group(group: u32) -> Result<()> {
    let what = || format!("cannot stop the processes of group {group}");
    killpg(Pid::from_raw(group as i32), Signal::SIGSTOP).context(what())?;
    until("every thread is stopped", || {
        let members = members(&[group]);
        match members.map(|all| all.into_iter().all(stands_still)) {
            Ok(all_stand) => all_stand.then_some(Ok(())),
            Err(error) => Some(Err(error)),
        }
    })
}

/// Whether no thread of a process runs: each is stopped, or has ended and waits for its parent, which may be stopped.
pub fn stands_still(pid: u32) -> bool {
    thread_states(pid)
        .iter()
        .all(|state| ['T', 'Z', 'X'].contains(state))
}

/// What each thread of a process does, by the letters of proc(5). Threads that ended meanwhile are left out.
fn thread_states(pid: u32) -> Vec<char> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    let stats = tasks.into_iter().flatten().flatten();
    stats
        .filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok())
        .filter_map(|stat| stat.rsplit_once(") ")?.1.chars().next())
        .collect()
}

/// /proc/PID/stat of every process.
pub(crate) fn stats() -> Result<impl Iterator<Item = (u32, String)>> {
    let entries = std::fs::read_dir("/proc").context("cannot read /proc")?;
    Ok(entries.flatten().filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        Some((pid, stat))
    }))
}

/// Memory that the machine can still give out without swapping, in bytes.
pub fn available_bytes() -> Result<u64> {
    let path = "/proc/meminfo";
    let text = std::fs::read_to_string(path).context(format!("cannot read {path}"))?;
    let kib = number(&text, "MemAvailable:");
    kib.map(|kib| kib * 1024)
        .ok_or_else(|| Error::failed(format!("cannot read {path}"), "it has no MemAvailable"))
}

/// utime, in ticks of 10 ms (USER_HZ) on every architecture that weir is built for.
fn user_time(stat: &str) -> Option<Duration> {
    Some(Duration::from_millis(10 * stat_field(stat, 14)?))
}

/// A field of /proc/PID/stat by its number in proc(5), from 4 on; the name in parentheses may hold spaces.
pub(crate) fn stat_field(stat: &str, number: usize) -> Option<u64> {
    let fields = stat.rsplit_once(')')?.1;
    fields.split_whitespace().nth(number - 3)?.parse().ok()
}

/// The number behind a key that opens a line, as in `VmRSS:   1234 kB`.
fn number(text: &str, key: &str) -> Option<u64> {
    let row = text.lines().find_map(|line| line.strip_prefix(key))?;
    row.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn groups_and_numbers_are_read_from_proc() {
        let stat = "7 (a b) c) S 1 42 42 0 -1 4194304 1 0 0 0 25 3";
        assert_eq!(stat_field(stat, 5), Some(42));
        assert_eq!(user_time(stat), Some(Duration::from_millis(250)));
        let status = "Name:\tx\nVmRSS:\t    1234 kB\nnonvoluntary_ctxt_switches:\t7\n";
        assert_eq!(number(status, "VmRSS:"), Some(1234));
        assert_eq!(number(status, "voluntary_ctxt_switches:"), None);
    }

    #[test]
    fn a_process_stands_still_when_it_is_stopped_or_has_ended() {
        use std::os::unix::process::CommandExt;
        let mut sleeper = std::process::Command::new("sleep");
        let mut child = sleeper.arg("60").process_group(0).spawn().unwrap();
        assert!(!stands_still(child.id()));
        stop_group(child.id()).unwrap();
        assert!(stands_still(child.id()));
        // Killed and not yet waited for.
        child.kill().unwrap();
        until("it has ended", || {
            (thread_states(child.id()) == ['Z']).then_some(())
        });
        assert!(stands_still(child.id()));
        child.wait().unwrap();
    }

    #[test]
    fn a_child_that_has_no_session_yet_is_ended_too() {
        for _ in 0..20 {
            let mut setsid = std::process::Command::new("setsid");
            let mut child = setsid.args(["sleep", "20"]).spawn().unwrap();
            // Without a wait: whether it leads a session by now, nobody knows.
            end_session(&mut child);
            let killed = child.wait().unwrap().signal();
            assert_eq!(
                killed,
                Some(Signal::SIGKILL as i32),
                "it has slept to its end"
            );
        }
    }

    #[test]
    fn descriptors_are_told_apart_by_kind_not_by_number() {
        assert_eq!(kind("socket:[4711]"), "socket");
        assert_eq!(kind("pipe:[1]"), "pipe");
        assert_eq!(kind("anon_inode:[eventpoll]"), "anon_inode:[eventpoll]");
        assert_eq!(kind("/dev/null"), "/dev/null");
    }

    #[test]
    fn a_pipe_is_two_of_the_descriptors() {
        let pid = std::process::id();
        let before = Holdings::of(pid).unwrap();
        let pipe = std::io::pipe().unwrap();
        let after = Holdings::of(pid).unwrap();
        drop(pipe);
        // Other tests of this process open and close theirs meanwhile.
        assert!(after.pipes >= 2 && after.descriptors >= after.pipes + after.sockets);
        assert!(before.rss_kib > 0);
    }

    #[test]
    fn work_shows_as_cpu_time() {
        let before = Usage::of(std::process::id()).unwrap();
        let begun = std::time::Instant::now();
        while Usage::of(std::process::id()).unwrap().since(&before).cpu < Duration::from_millis(5) {
            assert!(begun.elapsed() < Duration::from_secs(10));
        }
    }
}
