//! Where a thread runs, and who else used its CPU.

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

use crate::error::{Context, Result};
use crate::process::{stat_field, stats};

/// Pins the calling thread, and what it starts from then on, to one CPU.
pub fn pin_this_thread(cpu: usize) -> Result<()> {
    pin(Pid::from_raw(0), cpu)
}

/// Pins every thread of a process to one CPU.
pub fn pin_process(pid: u32, cpu: usize) -> Result<()> {
    let path = format!("/proc/{pid}/task");
    let entries = std::fs::read_dir(&path).context(format!("cannot read {path}"))?;
    let threads = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    for thread in threads {
        pin(Pid::from_raw(thread), cpu)?;
    }
    Ok(())
}

fn pin(thread: Pid, cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu).context(format!("CPU {cpu} is out of range"))?;
    sched_setaffinity(thread, &set).context(format!("cannot pin a thread to CPU {cpu}"))
}

/// The CPU, 0 or 1, that received fewer packets while `traffic` ran, and the other one, by /proc/net/softnet_stat.
///
/// Received packets are worked off in the time of whatever runs on their CPU.
pub fn quieter_and_busier_receiver(traffic: impl FnOnce()) -> Result<(usize, usize)> {
    let before = received()?;
    traffic();
    let packets: Vec<u32> = received()?
        .iter()
        .zip(before)
        .map(|(after, before)| after.wrapping_sub(before))
        .collect();
    Ok(match packets.first() > packets.get(1) {
        true => (1, 0),
        false => (0, 1),
    })
}

/// Packets that the CPUs have had no room for in their queues so far (net.core.netdev_max_backlog). All network
/// namespaces share these, and with them all tests that run at a time.
pub fn dropped() -> Result<u64> {
    Ok(softnet_stat(1)?.into_iter().map(u64::from).sum())
}

/// Packets that each CPU has received so far, modulo 2^32.
fn received() -> Result<Vec<u32>> {
    softnet_stat(0)
}

/// A column of /proc/net/softnet_stat, by CPU.
fn softnet_stat(column: usize) -> Result<Vec<u32>> {
    let path = "/proc/net/softnet_stat";
    let stat = std::fs::read_to_string(path).context(format!("cannot read {path}"))?;
    let words = stat.lines().filter_map(|line| line.split(' ').nth(column));
    Ok(words
        .flat_map(|word| u32::from_str_radix(word, 16))
        .collect())
}

/// A one-CPU mask as sysfs wants it: hexadecimal words of 32 bits, highest first.
pub fn mask(cpu: usize) -> String {
    let zero_words = ",00000000".repeat(cpu / 32);
    format!("{:x}{zero_words}", 1u32 << (cpu % 32))
}

/// CPU time that went by on one CPU, and in one session of processes, in clock ticks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ticks {
    /// Programs (user, nice and system time) on the CPU.
    programs: u64,
    /// Time in which the machine's host had the CPU do something else (steal).
    stolen: u64,
    /// Everything on the CPU, idle time included.
    all: u64,
    /// The session's programs, wherever they ran.
    session: u64,
}

impl Ticks {
    /// Reads the ticks of a CPU and of the session with this leader.
    pub fn read(cpu: usize, session: u32) -> Result<Ticks> {
        let columns = columns(cpu)?;
        Ok(Ticks {
            programs: columns.iter().take(3).sum(),
            stolen: columns.get(7).copied().unwrap_or(0),
            all: columns.iter().sum(),
            session: session_ticks(session)?,
        })
    }

    /// The share of the CPU's time since `earlier` that went to programs outside the session, or that the machine's host
    /// kept.
    pub fn taken_by_others_since(&self, earlier: &Ticks) -> f64 {
        let programs = self.programs.saturating_sub(earlier.programs);
        let session = self.session.saturating_sub(earlier.session);
        let stolen = self.stolen.saturating_sub(earlier.stolen);
        let all = self.all.saturating_sub(earlier.all).max(1);
        (programs.saturating_sub(session) + stolen) as f64 / all as f64
    }
}

/// The share of a CPU's time that was spare, idle or spent by programs of positive nice, by /proc/stat.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spare {
    spare: u64,
    all: u64,
}

impl Spare {
    /// Reads it.
    pub fn read(cpu: usize) -> Result<Spare> {
        let columns = columns(cpu)?;
        let column = |index| columns.get(index).copied().unwrap_or(0);
        Ok(Spare {
            spare: column(1) + column(3) + column(4),
            all: columns.iter().sum(),
        })
    }

    /// The share since `earlier`, 0 to 1.
    pub fn share_since(&self, earlier: &Spare) -> f64 {
        (self.spare - earlier.spare) as f64 / (self.all - earlier.all).max(1) as f64
    }
}

/// What all CPUs together have been used, by /proc/stat.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Used {
    used: u64,
    all: u64,
}

impl Used {
    /// Reads it.
    pub fn read() -> Result<Used> {
        let columns = row("cpu ")?;
        let column = |index| columns.get(index).copied().unwrap_or(0);
        let all = columns.iter().sum();
        Ok(Used {
            used: all - column(3) - column(4),
            all,
        })
    }

    /// The share since `earlier`, 0 to 1.
    pub fn share_since(&self, earlier: &Used) -> f64 {
        (self.used - earlier.used) as f64 / (self.all - earlier.all).max(1) as f64
    }
}

/// As [`row`], of one CPU.
fn columns(cpu: usize) -> Result<Vec<u64>> {
    row(&format!("cpu{cpu} "))
}

/// user, nice, system, idle, iowait, irq, softirq and steal of a row of /proc/stat.
fn row(name: &str) -> Result<Vec<u64>> {
    let stat = std::fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
    let row = stat.lines().find_map(|line| line.strip_prefix(name));
    let values = row.unwrap_or_default().split_whitespace();
    Ok(values.flat_map(str::parse).take(8).collect())
}

fn session_ticks(session: u32) -> Result<u64> {
    let ticks = stats()?.filter_map(|(_, stat)| ticks_in_session(&stat, session));
    Ok(ticks.sum())
}

/// utime + stime of a /proc/PID/stat line, if the process is in the session.
fn ticks_in_session(stat: &str, session: u32) -> Option<u64> {
    let field = |number| stat_field(stat, number);
    (field(6)? == u64::from(session)).then_some(field(14)? + field(15)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_have_words_of_32_bits() {
        assert_eq!(mask(1), "2");
        assert_eq!(mask(35), "8,00000000");
    }

    #[test]
    fn a_session_s_ticks_are_found_behind_odd_process_names() {
        let stat = "7 (a b) c) S 1 7 42 0 -1 4194560 1 0 0 0 30 12 0 0 20 0 1 0";
        assert_eq!(ticks_in_session(stat, 42), Some(42));
        assert_eq!(ticks_in_session(stat, 43), None);
    }

    #[test]
    fn programs_outside_the_session_and_the_host_are_others() {
        let before = Ticks {
            programs: 100,
            stolen: 7,
            all: 1000,
            session: 50,
        };
        let after = Ticks {
            programs: 180,
            stolen: 13,
            all: 1200,
            session: 120,
        };
        assert_eq!(after.taken_by_others_since(&before), 16.0 / 200.0);
    }
}
