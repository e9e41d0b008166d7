//! Processes that attach the programs of timewait, and are killed. The programs are loaded once, so thousands of deaths take
//! minutes.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use weir_core::listener::Listener;
use weir_core::timewait::Destination;

use crate::cgroups::cgroup_root;
use crate::error::{Error, Result, of_errno};
use crate::timewait::{TimeWait, TimeWaitFigures};

/// More than a process gathers in its short life. Small tables are emptied fast.
const RECORDS: u32 = 16_384;
const PREFIXES: u32 = 64;

/// The programs, loaded, with rules; attached by no process yet.
pub struct Loaded {
    timewait: TimeWait,
    cgroups: OwnedFd,
    ifindex: u32,
}

/// A process that attaches them, as `weir run` does, and waits. Dropping it kills it.
pub struct Holder(Pid);

impl Loaded {
    /// For the calling thread's network namespace and its interface with this index.
    ///
    /// # Errors
    /// As of [`TimeWait::load`] and [`TimeWait::apply`].
    pub fn load(
        destinations: &[Destination],
        listeners: &[Listener],
        ifindex: u32,
    ) -> Result<Loaded> {
        let mut timewait = TimeWait::with_space(RECORDS, PREFIXES)?;
        timewait.enter_unattached(destinations, listeners)?;
        let cgroups = cgroup_root().ok_or_else(|| Error::Failed {
            what: "open the root of the cgroups".into(),
            cause: "there is none".into(),
        })?;
        Ok(Loaded {
            timewait,
            cgroups,
            ifindex,
        })
    }

    /// Starts a process that attaches the programs. It may be killed at any moment from now on. The caller is in the
    /// namespace of [`Loaded::load`].
    ///
    /// # Errors
    /// There can be no process more.
    pub fn attach(&self) -> Result<Holder> {
        let programs = self.timewait.programs().map(|fd| fd.as_raw_fd());
        let (cgroups, [ops, mark, tc]) = (self.cgroups.as_raw_fd(), programs);
        let mut kept = [ops, mark, tc, cgroups];
        kept.sort_unstable();
        // SAFETY: other threads may hold locks, of the allocator for one. The child makes system calls alone.
        match unsafe { libc::fork() } {
            ..0 => Err(of_errno("start a process")),
            // SAFETY: the descriptors are open, and this is the child of fork().
            0 => unsafe { live(kept, programs, cgroups, self.ifindex) },
            pid => Ok(Holder(Pid::from_raw(pid))),
        }
    }

    /// What goes with a process that has died: its records.
    ///
    /// # Errors
    /// The kernel cannot run the program that counts the records.
    pub fn forget(&mut self) -> Result<()> {
        self.timewait.forget()
    }

    /// As of [`TimeWait::figures`], over all processes.
    ///
    /// # Errors
    /// There is no such destination.
    pub fn figures(&self, destination: &str) -> Result<TimeWaitFigures> {
        self.timewait.figures(destination)
    }

    /// As of [`TimeWait::listener_figures`], over all processes.
    ///
    /// # Errors
    /// There is no such listener.
    pub fn listener_figures(&self, listener: &str) -> Result<TimeWaitFigures> {
        self.timewait.listener_figures(listener)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGKILL);
        // Its links are gone by then.
        let _ = waitpid(self.0, None);
    }
}

/// The life of a child: attaches, in the order of `weir run`, and waits for its end. What fails is left out: there would be
/// nobody to tell, and connections without negotiation show it.
///
/// # Safety
/// For a child of fork() alone, with open descriptors. It takes no lock and allocates nothing.
unsafe fn live(kept: [RawFd; 4], programs: [RawFd; 3], cgroups: RawFd, ifindex: u32) -> ! {
    let [ops, mark, tc] = programs;
    let opts: *const libbpf_sys::bpf_link_create_opts = std::ptr::null();
    // SAFETY: system calls, and libbpf's thin wrappers of such; of pointers only a byte's and those of no options.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        // The connections of the other threads must not stay open here.
        let mut from = 0;
        for fd in kept {
            if from < fd {
                libc::syscall(libc::SYS_close_range, from, fd - 1, 0);
            }
            from = fd + 1;
        }
        libc::syscall(libc::SYS_close_range, from, libc::c_int::MAX, 0);
        libbpf_sys::bpf_link_create(ops, cgroups, libbpf_sys::BPF_CGROUP_SOCK_OPS, opts);
        let link = libbpf_sys::bpf_link_create(mark, 0, libbpf_sys::BPF_TRACE_ITER, opts);
        let iterator = libbpf_sys::bpf_iter_create(link);
        let mut byte = 0u8;
        libc::read(iterator, (&raw mut byte).cast(), 1);
        libbpf_sys::bpf_link_create(tc, ifindex as i32, libbpf_sys::BPF_TCX_INGRESS, opts);
        loop {
            libc::pause();
        }
    }
}
