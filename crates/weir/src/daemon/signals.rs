//! The signals that end a service or make it reload.

use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::failure::{Failure, Result};

/// SIGINT, SIGTERM and SIGHUP as a descriptor. They have to be blocked before anything is attached and before any
/// thread starts, so that Ctrl-C never leaves by the default action.
pub struct Signals {
    descriptor: SignalFd,
}

impl Signals {
    /// Takes the signals over.
    ///
    /// # Errors
    /// The kernel gives no signalfd.
    pub fn take() -> Result<Signals> {
        let take = || -> nix::Result<SignalFd> {
            let mut set = SigSet::empty();
            for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
                set.add(signal);
            }
            set.thread_block()?;
            SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
        };
        let descriptor = take().map_err(|errno| Failure::io("take signals over", errno.into()))?;
        Ok(Signals { descriptor })
    }

    /// The next signal that has come.
    pub fn next(&self) -> Option<Signal> {
        let info = self.descriptor.read_signal().ok().flatten()?;
        Signal::try_from(info.ssi_signo as i32).ok()
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Whether a command that has nothing to reload ends on this signal.
pub fn ends(signal: Signal) -> bool {
    signal != Signal::SIGHUP || !hangup_is_ignored()
}

/// Whether the command was started so that the end of its terminal does not end it (`nohup`). The
/// kernel hands an ignored signal to a signalfd all the same.
fn hangup_is_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // Bit 0 is signal 1, SIGHUP (proc_pid_status(5)).
    ignored.is_some_and(|mask| u64::from_str_radix(mask.trim(), 16).is_ok_and(|mask| mask & 1 != 0))
}
