//! Network namespaces with unique names that disappear with their owner.
//!
//! A namespace is named `weir-lab-<pid>-<role>-<serial>` under /run/netns, so that `ip netns` and
//! `nsenter --net=` can look into it while an experiment runs. [`Netns`] removes it on drop (also in
//! a panic); what a killed lab left behind is removed by [`sweep_stale`], which every lab calls
//! first and which touches only names of this form whose process is dead.
//!
//! Code gets into a namespace by [`Netns::run`]: a thread of its own enters it (setns works on a
//! thread), so the caller's thread never changes its namespace. A child started inside `run`
//! inherits the namespace, the CPU affinity and the mounts of that thread; this is how servers are
//! started, without code between fork and exec.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::error::{Context, Error, Result};

const PREFIX: &str = "weir-lab-";
const NETNS_DIR: &str = "/run/netns";

/// A network namespace of the lab; removed on drop.
#[derive(Debug)]
pub struct Netns {
    name: String,
}

impl Netns {
    /// Creates a namespace named after this process and `role`, with loopback up.
    ///
    /// Needs root and iproute2.
    pub fn create(role: &str) -> Result<Netns> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        require_root()?;
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{role}-{serial}", std::process::id());
        ip(&["netns", "add", &name])?;
        let netns = Netns { name };
        netns.ip(&["link", "set", "lo", "up"])?;
        Ok(netns)
    }

    /// Its name, as `ip netns` lists it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file that holds it open, for setns(2) or `nsenter --net=`.
    pub fn path(&self) -> PathBuf {
        Path::new(NETNS_DIR).join(&self.name)
    }

    /// Runs `ip` with these arguments inside the namespace.
    pub fn ip(&self, arguments: &[&str]) -> Result<()> {
        ip(&[&["-n", &self.name], arguments].concat())
    }

    /// Runs several `ip` commands, one a line, inside the namespace.
    pub fn ip_batch(&self, lines: &str) -> Result<()> {
        for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
            self.ip(&line.split_whitespace().collect::<Vec<_>>())?;
        }
        Ok(())
    }

    /// Loses so many of a thousand TCP segments with data that arrive, at random, so that they are sent again; of those
    /// without any none. A RST is never sent again, and nor is the ACK by which its receiver asks for one that fits
    /// (RFC 5961, 3.2): where one of them is lost, the end never comes, whatever a proxy does.
    pub fn lose(&self, permille: u32) -> Result<()> {
        /// Longer than IPv4 with a SYN or an ACK and all their options.
        const DATA_BYTES: u32 = 100;
        let rule = format!(
            "add table inet weir_lab; add chain inet weir_lab loss {{ type filter hook input priority 0; }}; \
             add rule inet weir_lab loss meta l4proto tcp meta length > {DATA_BYTES} \
             numgen random mod 1000 < {permille} drop"
        );
        self.run(|| command("nft", &[&rule], "install nftables"))
    }

    /// Loses so many of a thousand TCP segments that it forwards, of whatever kind, at random. Needs nftables.
    pub fn lose_forwarded(&self, permille: u32) -> Result<()> {
        let rule = format!(
            "add table inet weir_lab; add chain inet weir_lab loss {{ type filter hook forward priority 0; }}; \
             add rule inet weir_lab loss meta l4proto tcp numgen random mod 1000 < {permille} counter drop"
        );
        self.run(|| command("nft", &[&rule], "install nftables"))
    }

    /// Runs a closure inside the namespace, on a thread of its own, and waits for it.
    ///
    /// Read counters there under /proc/thread-self/net: /proc/net means the main thread's namespace.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        self.run_on(None, work)
    }

    /// Like [`Netns::run`], with the thread pinned to one CPU.
    pub fn run_on<T: Send>(
        &self,
        cpu: Option<usize>,
        work: impl FnOnce() -> Result<T> + Send,
    ) -> Result<T> {
        let file = self.open()?;
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                enter(&file, &self.name, cpu)?;
                work()
            });
            match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// Starts a thread inside the namespace that has a table of descriptors of its own
    /// (CLONE_FILES): each such thread may hold as many as RLIMIT_NOFILE allows one process.
    pub fn spawn<T: Send + 'static>(
        &self,
        cpu: usize,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<JoinHandle<Result<T>>> {
        let (file, name) = (self.open()?, self.name.clone());
        Ok(std::thread::spawn(move || {
            enter(&file, &name, Some(cpu))?;
            unshare(CloneFlags::CLONE_FILES)
                .context("cannot give a thread a table of descriptors")?;
            work()
        }))
    }

    /// Like [`Netns::run`], with /sys showing this namespace's devices (sysfs shows those of the
    /// namespace in which it was mounted, so the thread gets a mount namespace and a mount of its own).
    pub fn run_with_sysfs<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        self.run(|| {
            unshare(CloneFlags::CLONE_NEWNS).context("cannot create a mount namespace")?;
            let none = None::<&str>;
            mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)
                .context("cannot make mounts private")?;
            mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), none)
                .context("cannot mount sysfs")?;
            work()
        })
    }

    /// Sets a sysctl of this namespace, named with dots or slashes (`net.core.somaxconn`).
    pub fn set_sysctl(&self, name: &str, value: &str) -> Result<()> {
        let path = format!("/proc/sys/{}", name.replace('.', "/"));
        self.run(|| {
            std::fs::write(&path, value)
                .context(format!("cannot set sysctl {name}={value} in {}", self.name))
        })
    }

    /// Moves the receive work of a device's packets, behind GRO, to one CPU (RPS).
    pub fn steer_receive_work(&self, device: &str, cpu: usize) -> Result<()> {
        let path = format!("/sys/class/net/{device}/queues/rx-0/rps_cpus");
        self.run_with_sysfs(|| {
            std::fs::write(&path, crate::cpu::mask(cpu)).context(format!(
                "cannot steer the receive work of {device} (RPS) through {path}"
            ))
        })
    }

    fn open(&self) -> Result<File> {
        File::open(self.path()).context(format!("cannot open network namespace {}", self.name))
    }
}

fn enter(netns: &File, name: &str, cpu: Option<usize>) -> Result<()> {
    setns(netns.as_fd(), CloneFlags::CLONE_NEWNET)
        .context(format!("cannot enter network namespace {name}"))?;
    cpu.map_or(Ok(()), crate::cpu::pin_this_thread)
}

impl Drop for Netns {
    fn drop(&mut self) {
        // Nothing can be done about a failure here; sweep_stale of the next run tries again.
        let _ = ip(&["netns", "delete", &self.name]);
    }
}

/// Gives the calling thread a network namespace of its own, in which only loopback is, and up. Threads and
/// children that it starts from then on are in it too; it ends with the last of them.
///
/// Needs root and iproute2.
pub fn enter_new() -> Result<()> {
    require_root()?;
    unshare(CloneFlags::CLONE_NEWNET).context("cannot create a network namespace")?;
    ip(&["link", "set", "lo", "up"])
}

/// Runs a closure on a thread in a network namespace of its own, and waits for it. A panic of the closure
/// goes on in the caller.
///
/// Needs root and iproute2.
pub fn run_in_new<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| enter_new().map(|()| work()));
        match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Mounts `source` over the file `target` for the calling thread alone, and what it starts from then on.
/// The first call gives the thread a mount namespace.
pub fn bind_over(source: &Path, target: &Path) -> Result<()> {
    let none = None::<&str>;
    let what = || {
        format!(
            "cannot mount {} over {}",
            source.display(),
            target.display()
        )
    };
    unshare(CloneFlags::CLONE_NEWNS).context(what())?;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).context(what())?;
    mount(Some(source), target, none, MsFlags::MS_BIND, none).context(what())
}

/// Refuses to go on without root.
pub fn require_root() -> Result<()> {
    if nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    Err(
        Error::failed("cannot create network namespaces", "this needs root")
            .hint("run it with sudo"),
    )
}

/// Removes the namespaces of labs that were killed, and ends the processes inside them. Returns
/// the names that were removed. A namespace whose process id is in use (even by another program,
/// after reuse of the id) is left alone.
pub fn sweep_stale() -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(NETNS_DIR) else {
        return Vec::new();
    };
    let names = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok());
    names
        .filter(|name| is_stale(name))
        .filter(|name| remove_stale(name))
        .collect()
}

fn is_stale(name: &str) -> bool {
    let owner = name
        .strip_prefix(PREFIX)
        .and_then(|rest| rest.split('-').next());
    let pid: Option<u32> = owner.and_then(|pid| pid.parse().ok());
    pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())
}

fn remove_stale(name: &str) -> bool {
    let pids = Command::new("ip").args(["netns", "pids", name]).output();
    let pids = pids.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    for pid in pids
        .unwrap_or_default()
        .split_whitespace()
        .flat_map(str::parse)
    {
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
    ip(&["netns", "delete", name]).is_ok()
}

fn ip(arguments: &[&str]) -> Result<()> {
    command("ip", arguments, "install iproute2")
}

fn command(program: &str, arguments: &[&str], hint: &str) -> Result<()> {
    let what = || format!("cannot run `{program} {}`", arguments.join(" "));
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|cause| Error::failed(what(), cause).hint(hint))?;
    if output.status.success() {
        return Ok(());
    }
    Err(Error::failed(
        what(),
        String::from_utf8_lossy(&output.stderr).trim(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_living_processes_and_of_others_are_never_stale() {
        assert!(!is_stale(&format!(
            "{PREFIX}{}-server-0",
            std::process::id()
        )));
        assert!(!is_stale("cni-1234"));
        assert!(!is_stale("weir-lab-x-server-0"));
        // Above the largest pid that Linux gives out (2^22).
        assert!(is_stale("weir-lab-4999999-server-0"));
    }
}
