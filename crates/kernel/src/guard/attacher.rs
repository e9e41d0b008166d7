//! Attaches to the interfaces of other network namespaces, and detaches, in a thread of its own.
//!
//! After each the kernel waits until no packet meets the programs that were there before: 8 to 20 ms, in which it holds the
//! lock over all network settings of the machine (RTNL). So several threads are no faster than one, and the thread that
//! guards has other things to do. The program itself sees packets before the kernel begins to wait.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use nix::sys::eventfd::{EfdFlags, EventFd};
use weir_core::turns::Turns;

use super::attach::{self, Hook, link_header_len};
use crate::error::{Error, Result};
use crate::namespace::{Namespace, NamespacePath};

/// The thread and what it has to do. Dropping it begins nothing more, and waits for what is under way.
pub(crate) struct Attacher {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    work: Mutex<Work>,
    more: Condvar,
    /// Readable while there is something [done](Attacher::done).
    told: EventFd,
}

#[derive(Default)]
struct Work {
    tasks: Turns<Task>,
    done: Vec<Done>,
    ends: bool,
}

enum Task {
    Attach(Job),
    Close(Left),
}

/// A link to an interface that is to be let go.
pub(crate) struct Left {
    pub namespace: Namespace,
    pub ifindex: u32,
    pub link: OwnedFd,
}

/// An interface that is to be attached to.
pub(crate) struct Job {
    pub at: NamespacePath,
    pub namespace: Namespace,
    pub ifindex: u32,
    /// Where at the interface.
    pub hook: Hook,
    /// For devices with a link header.
    pub program: OwnedFd,
    /// For those without one.
    pub bare: Option<OwnedFd>,
    /// Before those that are not.
    pub urgent: bool,
}

/// What has come of it.
pub(crate) struct Done {
    pub namespace: Namespace,
    pub ifindex: u32,
    pub hook: Hook,
    pub outcome: Outcome,
}

pub(crate) enum Outcome {
    Linked(OwnedFd),
    /// The program for devices without a link header is needed.
    Bare(Job),
    Failed(NamespacePath, Error),
}

impl Attacher {
    /// # Errors
    /// No thread, or no descriptor.
    pub fn start() -> Result<Attacher> {
        let failed = |cause: String| Error::Failed {
            what: "start a thread that attaches to interfaces".into(),
            cause,
        };
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let told = EventFd::from_flags(flags).map_err(|e| failed(e.to_string()))?;
        let shared = Arc::new(Shared {
            work: Mutex::default(),
            more: Condvar::new(),
            told,
        });
        let its = shared.clone();
        let thread = std::thread::Builder::new().name("weir-attach".into());
        let thread = thread.spawn(move || its.run());
        Ok(Attacher {
            shared,
            thread: Some(thread.map_err(|e| failed(e.to_string()))?),
        })
    }

    /// Attaches soon, but after a link that this interface has had is closed: the kernel takes no program twice.
    pub fn attach(&self, job: Job) {
        self.shared.work().attach(job);
        self.shared.more.notify_one();
    }

    /// Closes a link some time.
    pub fn close(&self, left: Left) {
        self.shared.work().tasks.push(Task::Close(left), false);
        self.shared.more.notify_one();
    }

    /// What has been done since the last call.
    pub fn done(&self) -> Vec<Done> {
        // Nothing was told: then nothing is there.
        let _ = self.shared.told.read();
        std::mem::take(&mut self.shared.work().done)
    }
}

impl AsFd for Attacher {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.told.as_fd()
    }
}

impl Drop for Attacher {
    fn drop(&mut self) {
        self.shared.work().ends = true;
        self.shared.more.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        while let Some(task) = self.next() {
            match task {
                Task::Close(Left { link, .. }) => drop(link),
                Task::Attach(job) => {
                    let done = job.run();
                    self.work().done.push(done);
                    // It cannot be full: each of its reads takes all.
                    let _ = self.told.write(1);
                }
            }
        }
    }

    /// `None`: the end.
    fn next(&self) -> Option<Task> {
        let idle = |work: &mut Work| !work.ends && work.tasks.is_empty();
        let work = self.more.wait_while(self.work(), idle);
        work.unwrap_or_else(PoisonError::into_inner).next()
    }
}

impl Work {
    fn next(&mut self) -> Option<Task> {
        if self.ends {
            return None;
        }
        self.tasks.pop().map(|(task, _)| task)
    }

    fn attach(&mut self, job: Job) {
        let at = (job.namespace, job.ifindex);
        let is_left =
            |task: &Task| matches!(task, Task::Close(left) if (left.namespace, left.ifindex) == at);
        let is_urgent = job.urgent && !self.tasks.others().any(is_left);
        self.tasks.push(Task::Attach(job), is_urgent);
    }
}

impl Job {
    fn run(self) -> Done {
        let (namespace, ifindex, hook) = (self.namespace, self.ifindex, self.hook);
        // Whoever waits for it must hear of it, and others have their turn.
        let linked = catch_unwind(AssertUnwindSafe(|| self.link()));
        let outcome = match linked.unwrap_or_else(|_| Err(panicked(ifindex))) {
            Ok(Some(link)) => Outcome::Linked(link),
            Ok(None) => Outcome::Bare(self),
            Err(error) => Outcome::Failed(self.at, error),
        };
        Done {
            namespace,
            ifindex,
            hook,
            outcome,
        }
    }

    /// `None`: there is no program for this device.
    fn link(&self) -> Result<Option<OwnedFd>> {
        self.at.enter_if(self.namespace, || {
            let header = link_header_len(self.ifindex)?;
            let program = match header.ok_or_else(attach::unknown_link)? {
                0 => self.bare.as_ref(),
                _ => Some(&self.program),
            };
            let link = |program: &OwnedFd| attach::link(program.as_fd(), self.ifindex, self.hook);
            program.map(link).transpose()
        })
    }
}

fn panicked(ifindex: u32) -> Error {
    Error::Failed {
        what: format!("attach to interface {ifindex} of another network namespace"),
        cause: "a fault of weir's: its log has it".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::chain::Rank;
    use super::*;

    fn at() -> Namespace {
        Namespace::with_cookie(1)
    }

    fn null() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }

    fn job(ifindex: u32) -> Job {
        Job {
            at: NamespacePath::at("/nowhere"),
            namespace: at(),
            ifindex,
            hook: Hook::Tcx(Rank::Guard),
            program: null(),
            bare: None,
            urgent: true,
        }
    }

    #[test]
    fn no_interface_is_attached_to_before_its_last_link_is_closed() {
        let mut work = Work::default();
        for ifindex in [1, 2] {
            let left = Left {
                namespace: at(),
                ifindex,
                link: null(),
            };
            work.tasks.push(Task::Close(left), false);
        }
        [2, 3].map(job).into_iter().for_each(|job| work.attach(job));
        let said = |task: Task| match task {
            Task::Attach(job) => ("attach", job.ifindex),
            Task::Close(left) => ("close", left.ifindex),
        };
        let all: Vec<_> = std::iter::from_fn(|| work.next().map(said)).collect();
        let closed = [("close", 1), ("close", 2), ("attach", 2)];
        assert_eq!((all[0], &all[1..]), (("attach", 3), &closed[..]));
    }

    #[test]
    fn a_namespace_that_has_ended_is_told_and_the_thread_ends() {
        let attacher = Attacher::start().unwrap();
        attacher.attach(job(7));
        let mut fds = [nix::poll::PollFd::new(
            attacher.as_fd(),
            nix::poll::PollFlags::POLLIN,
        )];
        nix::poll::poll(&mut fds, 10_000u16).unwrap();
        let done = attacher.done();
        assert_eq!(done.len(), 1);
        assert!(done[0].ifindex == 7 && matches!(done[0].outcome, Outcome::Failed(..)));
        assert!(attacher.done().is_empty());
    }
}
