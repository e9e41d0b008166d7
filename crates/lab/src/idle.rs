//! How long a CPU had nothing to do, to the microsecond.
//!
//! /proc/stat charges whole ticks to whoever runs when the tick comes (this kernel has no
//! IRQ_TIME_ACCOUNTING), so it misjudges work that comes and goes between ticks, softirqs above all, and in
//! a second of 250 ticks its grain alone is 0.4 %. Here a thread of the idle scheduling class spins on the
//! CPU and reads the clock: time between two reads that is longer than the loop itself went to something
//! else, be it programs, softirqs, kworkers, interrupts or the switches between them. A CPU that spins
//! never sleeps either, so that what it costs a virtual machine to halt and wake is in no contender's bill.
//!
//! The idle class alone is not enough. Autogroup gives each session an equal share of the CPU
//! whatever runs in it, so the spinner could keep ksoftirqd waiting; its thread therefore goes into a
//! cgroup that is itself idle (`cpu.idle`), where the cgroup-v1 controller `cpu` is mounted.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::cpu;
use crate::error::{Context, Result};
use crate::sys;

/// Two reads of the clock further apart than this had something else in between. A turn of the loop
/// takes 50 to 80 ns, the shortest interrupt about 1000.
const INTERRUPTED: Duration = Duration::from_nanos(300);
const CGROUPS: &str = "/sys/fs/cgroup/cpu";
const PREFIX: &str = "weir-lab-";

/// Measures the idle time of one CPU for as long as it exists.
#[derive(Debug)]
pub struct IdleMeter {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    _group: Option<Group>,
}

#[derive(Debug, Default)]
struct Shared {
    idle_ns: AtomicU64,
    stop: AtomicBool,
}

impl IdleMeter {
    /// Starts to measure.
    pub fn start(cpu: usize) -> Result<IdleMeter> {
        let group = Group::create(cpu)?;
        let shared = Arc::new(Shared::default());
        let (sender, started) = std::sync::mpsc::channel();
        let thread = {
            let shared = shared.clone();
            let members = group.as_ref().map(|group| group.0.join("tasks"));
            std::thread::spawn(move || {
                let prepared = prepare(cpu, members.as_deref());
                let ready = prepared.is_ok();
                let _ = sender.send(prepared);
                if ready {
                    shared.spin();
                }
            })
        };
        let meter = IdleMeter {
            shared,
            thread: Some(thread),
            _group: group,
        };
        started
            .recv()
            .context(format!("the idle meter of CPU {cpu} has died"))??;
        Ok(meter)
    }

    /// Idle time of the CPU since the meter was started.
    pub fn idle(&self) -> Duration {
        Duration::from_nanos(self.shared.idle_ns.load(Ordering::Relaxed))
    }
}

impl Drop for IdleMeter {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn spin(&self) {
        let mut last = Instant::now();
        let mut idle = Duration::ZERO;
        while !self.stop.load(Ordering::Relaxed) {
            std::hint::spin_loop();
            let now = Instant::now();
            let step = now - last;
            last = now;
            if step < INTERRUPTED {
                idle += step;
                self.idle_ns
                    .store(idle.as_nanos() as u64, Ordering::Relaxed);
            }
        }
    }
}

fn prepare(cpu: usize, members: Option<&Path>) -> Result<()> {
    cpu::pin_this_thread(cpu)?;
    if let Some(path) = members {
        let thread = nix::unistd::gettid().to_string();
        std::fs::write(path, thread).context(format!("cannot write {}", path.display()))?;
    }
    sys::run_only_when_idle().context("cannot enter the idle scheduling class")
}

/// An idle cgroup; removed on drop.
#[derive(Debug)]
struct Group(PathBuf);

impl Group {
    /// `None` where the cgroup-v1 controller `cpu` is not mounted.
    fn create(cpu: usize) -> Result<Option<Group>> {
        remove_stale_groups();
        if !Path::new(CGROUPS).join("cpu.shares").exists() {
            return Ok(None);
        }
        let name = format!("{PREFIX}{}-idle-{cpu}", std::process::id());
        let group = Group(Path::new(CGROUPS).join(name));
        let what = || format!("cannot create the idle cgroup {}", group.0.display());
        std::fs::create_dir(&group.0).context(what())?;
        std::fs::write(group.0.join("cpu.idle"), "1").context(what())?;
        Ok(Some(group))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A failure leaves an empty group, which the next lab removes.
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Removes what killed labs have left behind. A group that is in use cannot be removed.
fn remove_stale_groups() {
    let entries = std::fs::read_dir(CGROUPS).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        let owner = owner.and_then(|rest| rest.split('-').next());
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let _ = std::fs::remove_dir(entry.path());
        }
    }
}
