//! The process that sees to it that there is always an orderer.
//!
//! It has the orderer's descriptors (they share one table) and the shared state, and does nothing but wait: for the
//! orderer's death, and for news of the classes, with which it starts another orderer.

use std::ffi::CStr;
use std::io::Write;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::prctl::set_name;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{Pid, setsid};
use weir_api::{Answer, ExecReport, Question};
use weir_core::class::Class;
use weir_kernel::exec::{self as kernel, Calls, Fork, SharedState};

use super::orderer::{End, Orderer, Tools};
use super::policy::Policy;
use crate::host::config;
use crate::ipc::control;
use crate::show::settings::class_of;

/// How often the classes are looked at, and whether the orderer answers.
const LOOK: Duration = Duration::from_secs(1);
/// An orderer that has given no sign of life for longer than this hangs, or is stopped. It gives one a second when
/// nothing happens, and each thing that it does takes microseconds.
const HANGS: Duration = Duration::from_secs(2);
/// Its name in ps(1), so that `killall weir` means the daemon.
const NAME: &CStr = c"weir-supervisor";
/// That of the orderer.
const ORDERER_NAME: &CStr = c"weir-orderer";
/// More deaths than this within [`OFTEN`], and the next orderer only hands out what is held.
const DEATHS: usize = 5;
const OFTEN: Duration = Duration::from_secs(10);

/// What an orderer's exit status says.
const SERVER_GONE: i32 = 0;
const STEPPED_DOWN: i32 = 10;
const FAILED: i32 = 11;

/// Where classes come from while the server runs.
#[derive(Debug, Clone)]
pub struct Source {
    /// The server's process.
    pub server: u32,
    /// Where a running weir is asked.
    pub runtime_dir: PathBuf,
    /// The config file.
    pub file: PathBuf,
}

/// The supervisor, until no process of the server is left. Returns its exit status.
pub fn run(mut server: UnixStream, shared: SharedState, source: Source, policy: Policy) -> i32 {
    kernel::block_signals();
    let _ = set_name(NAME);
    let _ = setsid();
    // Nothing of the server's must stay open here.
    let own = [0, 1, 2, server.as_raw_fd()];
    if kernel::close_all_but(&own, false).is_err() {
        return FAILED;
    }
    let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
    let (waker, news) = (EventFd::from_flags(flags), EventFd::from_flags(flags));
    let (Ok(calls), Ok(waker), Ok(news)) = (Calls::receive(&server), waker, news) else {
        return FAILED;
    };
    let supervisor = Supervisor {
        calls,
        waker,
        news,
        shared,
        source,
        policy,
        deaths: Vec::new(),
        stamp: None,
    };
    // The server may begin before there is an orderer: its calls wait.
    if ready(&mut server).is_err() {
        return FAILED;
    }
    drop(server);
    kernel::leave_standard_streams();
    supervisor.supervise()
}

struct Supervisor {
    calls: Calls,
    waker: EventFd,
    news: EventFd,
    shared: SharedState,
    source: Source,
    policy: Policy,
    /// When orderers died.
    deaths: Vec<Instant>,
    /// Of the config file when it was last read.
    stamp: Option<Stamp>,
}

type Stamp = (std::time::SystemTime, u64);

impl Supervisor {
    fn supervise(mut self) -> i32 {
        self.stamp = self.stamp_now();
        loop {
            let Some(orderer) = self.start_orderer() else {
                return FAILED;
            };
            match self.wait_for(orderer) {
                Some(SERVER_GONE) => return 0,
                Some(STEPPED_DOWN) => {}
                _ => self.deaths.push(Instant::now()),
            }
        }
    }

    fn own(&self) -> [RawFd; 6] {
        [
            0,
            1,
            2,
            self.calls.as_fd().as_raw_fd(),
            self.waker.as_fd().as_raw_fd(),
            self.news.as_fd().as_raw_fd(),
        ]
    }

    fn start_orderer(&mut self) -> Option<Pid> {
        // What the last orderer had open besides connections.
        kernel::close_all_but(&self.own(), true).ok()?;
        self.shared.ask_to_step_down(false);
        self.deaths.retain(|at| at.elapsed() < OFTEN);
        let plain = self.deaths.len() >= DEATHS;
        match kernel::fork_sharing_descriptors().ok()? {
            Fork::Parent(orderer) => Some(Pid::from_raw(orderer)),
            Fork::Child => std::process::exit(self.be_orderer(plain)),
        }
    }

    /// In the orderer. A panic ends it like a signal: unwinding would close what it holds.
    fn be_orderer(&self, plain: bool) -> i32 {
        let _ = set_name(ORDERER_NAME);
        std::panic::set_hook(Box::new(|_| std::process::exit(FAILED)));
        let tools = Tools {
            calls: &self.calls,
            waker: &self.waker,
            news: &self.news,
            shared: self.shared,
        };
        let orderer = Orderer::resume(tools, self.policy.clone(), plain);
        match orderer.map(ManuallyDrop::new).and_then(|mut u| u.run()) {
            Ok(End::ServerGone) => SERVER_GONE,
            Ok(End::SteppedDown) => STEPPED_DOWN,
            Err(_) => FAILED,
        }
    }

    /// Waits until the orderer has ended; meanwhile looks for news. Returns its exit status; `None`: killed.
    fn wait_for(&mut self, orderer: Pid) -> Option<i32> {
        let pidfd = kernel::pidfd_open(orderer.as_raw(), 0);
        let mut pulse = Pulse::new(self.shared.turns());
        loop {
            if let Ok(pidfd) = &pidfd {
                wait_for_either(pidfd.as_fd(), self.news.as_fd(), LOOK);
                let _ = self.news.read();
            }
            let flag = nix::sys::wait::WaitPidFlag::WNOHANG;
            match waitpid(orderer, pidfd.is_ok().then_some(flag)) {
                Ok(WaitStatus::StillAlive) => {}
                Ok(WaitStatus::Exited(_, status)) => return Some(status),
                _ => return None,
            }
            match pulse.is_lost(self.shared.turns()) {
                true => drop(kill(orderer, Signal::SIGKILL)),
                false => self.look_for_news(),
            }
        }
    }

    fn look_for_news(&mut self) {
        let mut policy = self.policy.clone();
        let stamp = self.stamp_now();
        if stamp != self.stamp {
            self.stamp = stamp;
            // A bad file changes nothing.
            if let Ok(config) = config::read(&self.source.file) {
                policy = Policy::of(Some(config));
            }
        }
        if let Some(classes) = self.classes_in_force() {
            policy = policy.with_classes(classes);
        }
        self.replace_policy(policy);
    }

    /// Tells the running weir for which sockets calls are answered, and asks for its classes. `None`: there is
    /// none, or no right to ask it; then those of the file hold.
    fn classes_in_force(&self) -> Option<Vec<Class>> {
        let report = ExecReport {
            server: self.source.server,
            held: self.shared.told(),
        };
        let namespace = control::namespace().ok()?;
        let question = Question::Exec(report);
        match control::ask(&self.source.runtime_dir, namespace, &question) {
            Ok(Some(Answer::Exec { classes })) => classes.into_iter().map(class_of).collect(),
            _ => None,
        }
    }

    /// Another orderer has the new one; this one leaves it what waits.
    fn replace_policy(&mut self, policy: Policy) {
        if policy != self.policy {
            self.policy = policy;
            self.shared.ask_to_step_down(true);
            let _ = self.waker.write(1);
        }
    }

    fn stamp_now(&self) -> Option<Stamp> {
        let meta = std::fs::metadata(&self.source.file).ok()?;
        Some((meta.modified().ok()?, meta.len()))
    }
}

/// What is known of the orderer's life.
struct Pulse {
    turns: u64,
    since: Instant,
    /// Looks at it since then.
    looks: u32,
}

impl Pulse {
    fn new(turns: u64) -> Pulse {
        Pulse {
            turns,
            since: Instant::now(),
            looks: 0,
        }
    }

    /// The time alone says nothing: both may have been frozen and thaw together.
    fn is_lost(&mut self, turns: u64) -> bool {
        if turns != self.turns {
            *self = Pulse::new(turns);
        }
        self.looks += 1;
        self.looks > 2 && self.since.elapsed() > HANGS
    }
}

fn wait_for_either(one: BorrowedFd<'_>, other: BorrowedFd<'_>, time: Duration) {
    let timeout = PollTimeout::try_from(time.as_millis()).unwrap_or(PollTimeout::MAX);
    let mut fds = [one, other].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
    let _ = poll(&mut fds, timeout);
}

/// Tells the server that its calls are answered from now on.
fn ready(to: &mut UnixStream) -> std::io::Result<()> {
    write!(to, "{}", std::process::id())
}
