//! The process that sees to it that there is always an usher.
//!
//! It has the usher's descriptors (they share one table) and the ledger, and does nothing but wait: for the
//! usher's death, and for news of the classes, with which it starts another usher.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{Pid, setsid};
use weir_kernel::exec::{self as kernel, Calls, Fork, Ledger, now_ns};

use super::policy::Policy;
use super::usher::{End, Tools, Usher};
use super::{Source, ready};
use crate::commands::check;

/// How often the classes are looked at, and whether the usher answers.
const LOOK: Duration = Duration::from_secs(1);
/// An usher that is at work on one thing for longer than this hangs. It takes microseconds.
const HANGS: Duration = Duration::from_secs(2);
/// More deaths than this within [`OFTEN`], and the next usher only hands out what is held.
const DEATHS: usize = 5;
const OFTEN: Duration = Duration::from_secs(10);

/// What an usher's exit status says.
const SERVER_GONE: i32 = 0;
const STEPPED_DOWN: i32 = 10;
const FAILED: i32 = 11;

/// The keeper, until no process of the server is left. Returns its exit status.
pub fn run(mut server: UnixStream, ledger: Ledger, source: Source, policy: Policy) -> i32 {
    kernel::block_signals();
    let _ = setsid();
    // Nothing of the server's must stay open here.
    let own = [0, 1, 2, server.as_raw_fd()];
    if kernel::close_all_but(&own, false).is_err() {
        return FAILED;
    }
    let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
    let (Ok(calls), Ok(bell)) = (Calls::receive(&server), EventFd::from_flags(flags)) else {
        return FAILED;
    };
    let keeper = Keeper {
        calls,
        bell,
        ledger,
        source,
        policy,
        deaths: Vec::new(),
        stamp: None,
    };
    // The server may begin before there is an usher: its calls wait.
    if ready(&mut server).is_err() {
        return FAILED;
    }
    drop(server);
    kernel::leave_standard_streams();
    keeper.keep()
}

struct Keeper {
    calls: Calls,
    bell: EventFd,
    ledger: Ledger,
    source: Source,
    policy: Policy,
    /// When ushers died.
    deaths: Vec<Instant>,
    /// Of the config file when it was last read.
    stamp: Option<Stamp>,
}

type Stamp = (std::time::SystemTime, u64);

impl Keeper {
    fn keep(mut self) -> i32 {
        self.stamp = self.stamp_now();
        loop {
            let Some(usher) = self.start_usher() else {
                return FAILED;
            };
            match self.wait_for(usher) {
                Some(SERVER_GONE) => return 0,
                Some(STEPPED_DOWN) => {}
                _ => self.deaths.push(Instant::now()),
            }
        }
    }

    fn own(&self) -> [RawFd; 5] {
        [
            0,
            1,
            2,
            self.calls.as_fd().as_raw_fd(),
            self.bell.as_fd().as_raw_fd(),
        ]
    }

    fn start_usher(&mut self) -> Option<Pid> {
        // What the last usher had open besides connections.
        kernel::close_all_but(&self.own(), true).ok()?;
        self.ledger.ask_to_step_down(false);
        self.ledger.set_busy_since(0);
        self.deaths.retain(|at| at.elapsed() < OFTEN);
        let plain = self.deaths.len() >= DEATHS;
        match kernel::fork_sharing_descriptors().ok()? {
            Fork::Parent(usher) => Some(Pid::from_raw(usher)),
            Fork::Child => std::process::exit(self.be_usher(plain)),
        }
    }

    /// In the usher. A panic ends it like a signal: unwinding would close what it holds.
    fn be_usher(&self, plain: bool) -> i32 {
        std::panic::set_hook(Box::new(|_| std::process::exit(FAILED)));
        let tools = Tools {
            calls: &self.calls,
            bell: &self.bell,
            ledger: self.ledger,
        };
        let usher = Usher::resume(tools, self.policy.clone(), plain);
        match usher.map(ManuallyDrop::new).and_then(|mut u| u.run()) {
            Ok(End::ServerGone) => SERVER_GONE,
            Ok(End::SteppedDown) => STEPPED_DOWN,
            Err(_) => FAILED,
        }
    }

    /// Waits until the usher has ended; meanwhile looks for news. Returns its exit status; `None`: killed.
    fn wait_for(&mut self, usher: Pid) -> Option<i32> {
        let pidfd = kernel::pidfd_open(usher.as_raw(), 0);
        loop {
            if let Ok(pidfd) = &pidfd {
                readable_within(pidfd, LOOK);
            }
            let flag = nix::sys::wait::WaitPidFlag::WNOHANG;
            match waitpid(usher, pidfd.is_ok().then_some(flag)) {
                Ok(WaitStatus::StillAlive) => {}
                Ok(WaitStatus::Exited(_, status)) => return Some(status),
                _ => return None,
            }
            self.look_after(usher);
        }
    }

    fn look_after(&mut self, usher: Pid) {
        let busy_since = self.ledger.busy_since();
        let busy_for = now_ns().saturating_sub(busy_since);
        if busy_since != 0 && u128::from(busy_for) > HANGS.as_nanos() {
            let _ = kill(usher, Signal::SIGKILL);
            return;
        }
        let stamp = self.stamp_now();
        if stamp == self.stamp {
            return;
        }
        self.stamp = stamp;
        if let Ok(config) = check::read(&self.source.file) {
            self.replace_policy(Policy::of(Some(config)));
        }
    }

    /// Another usher has the new one; this one leaves it what waits.
    fn replace_policy(&mut self, policy: Policy) {
        if policy != self.policy {
            self.policy = policy;
            self.ledger.ask_to_step_down(true);
            let _ = self.bell.write(1);
        }
    }

    fn stamp_now(&self) -> Option<Stamp> {
        let meta = std::fs::metadata(&self.source.file).ok()?;
        Some((meta.modified().ok()?, meta.len()))
    }
}

fn readable_within(fd: &OwnedFd, time: Duration) {
    let timeout = PollTimeout::try_from(time.as_millis()).unwrap_or(PollTimeout::MAX);
    let _ = poll(&mut [PollFd::new(fd.as_fd(), PollFlags::POLLIN)], timeout);
}
