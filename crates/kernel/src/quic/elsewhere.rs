//! The guard of QUIC on the interfaces of other network namespaces.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

use super::Quic;
use crate::error::Result;
use crate::guard::attach::{Hook, is_on_device};
use crate::guard::attacher::{Attacher, Done, Job, Left, Outcome};
use crate::guard::chain::Rank;
use crate::guard::elsewhere::duplicate;
use crate::namespace::{Namespace, NamespacePath};

/// First the way out: without it no answer is seen.
const HOOKS: [Hook; 2] = [Hook::TcxOut, Hook::Tcx(Rank::Quic)];

/// An interface, by its number in its namespace.
type Place = (Namespace, u32);

/// What is attached there, and what is about to be.
#[derive(Default)]
pub(super) struct Elsewhere {
    // Before the links: it begins nothing more then.
    attacher: Option<Attacher>,
    interfaces: BTreeMap<Place, [End; 2]>,
}

/// One of the two programs of an interface.
#[derive(Default)]
enum End {
    #[default]
    Absent,
    Awaited,
    On(OwnedFd),
    Failed(String),
}

impl End {
    fn is_on(&self) -> bool {
        matches!(self, End::On(link) if is_on_device(link.as_fd()))
    }
}

impl Quic {
    /// Attaches to an interface of another namespace, in a while; [`Quic::attached_in`] says whether it is. Attaching twice is no
    /// error, and attaches again where it has failed.
    ///
    /// # Errors
    /// No thread can be started, or no descriptors are left.
    pub fn attach_in(
        &mut self,
        at: &NamespacePath,
        namespace: Namespace,
        ifindex: u32,
    ) -> Result<()> {
        let place = (namespace, ifindex);
        let ends = self.elsewhere.interfaces.get(&place);
        let stays = |end: &End| end.is_on() || matches!(end, End::Awaited);
        if ends.is_some_and(|ends| ends.iter().all(stays)) {
            return Ok(());
        }
        // What is left of it: the kernel takes no program twice.
        self.detach_in(namespace, ifindex);
        for hook in HOOKS {
            let job = Job {
                at: at.clone(),
                namespace,
                ifindex,
                hook,
                program: self.program_at(hook)?,
                bare: None,
                urgent: true,
            };
            self.elsewhere.attacher()?.attach(job);
        }
        let awaited = [End::Awaited, End::Awaited];
        self.elsewhere.interfaces.insert(place, awaited);
        Ok(())
    }

    /// A descriptor of the program for devices with a link header.
    fn program_at(&self, hook: Hook) -> Result<OwnedFd> {
        let programs = self.programs();
        match hook {
            Hook::TcxOut => duplicate(programs.leave),
            _ => duplicate(programs.enter),
        }
    }

    /// Notes what has come of [`Quic::attach_in`].
    pub fn follow_attached(&mut self) {
        let attacher = self.elsewhere.attacher.as_ref();
        let done = attacher.map(Attacher::done).unwrap_or_default();
        for Done {
            namespace,
            ifindex,
            hook,
            outcome,
        } in done
        {
            let end = match outcome {
                Outcome::Linked(link) => End::On(link),
                Outcome::Failed(_, error) => End::Failed(error.to_string()),
                Outcome::Bare(job) => match self.attach_bare(job) {
                    Ok(()) => continue,
                    Err(error) => End::Failed(error.to_string()),
                },
            };
            // It may have been detached from meanwhile: then the link goes.
            let Some(ends) = self.elsewhere.interfaces.get_mut(&(namespace, ifindex)) else {
                continue;
            };
            let before = &mut ends[usize::from(hook != HOOKS[0])];
            // One that was asked for twice is there once.
            if !(matches!(end, End::Failed(_)) && before.is_on()) {
                *before = end;
            }
        }
    }

    fn attach_bare(&mut self, job: Job) -> Result<()> {
        let programs = self.bare.programs(&self.skel)?;
        let bare = match job.hook {
            Hook::TcxOut => duplicate(programs.leave)?,
            _ => duplicate(programs.enter)?,
        };
        let bare = Some(bare);
        self.elsewhere.attacher()?.attach(Job { bare, ..job });
        Ok(())
    }

    /// Whether both programs are on this interface of another namespace; or why not, if that is known.
    pub fn attached_in(
        &self,
        namespace: Namespace,
        ifindex: u32,
    ) -> std::result::Result<bool, &str> {
        let Some(ends) = self.elsewhere.interfaces.get(&(namespace, ifindex)) else {
            return Ok(false);
        };
        let failed = ends.iter().find_map(|end| match end {
            End::Failed(why) => Some(why.as_str()),
            _ => None,
        });
        match failed {
            Some(why) => Err(why),
            None => Ok(ends.iter().all(End::is_on)),
        }
    }

    /// Detaches from one interface of another namespace, in a while; no error if not attached.
    pub fn detach_in(&mut self, namespace: Namespace, ifindex: u32) {
        let Some(ends) = self.elsewhere.interfaces.remove(&(namespace, ifindex)) else {
            return;
        };
        // First the way in: it would see no answers without the way out.
        for end in ends.into_iter().rev() {
            if let (End::On(link), Some(attacher)) = (end, &self.elsewhere.attacher) {
                attacher.close(Left {
                    namespace,
                    ifindex,
                    link,
                });
            }
        }
    }

    /// Takes the guard off in other namespaces in a thread of its own: after each link the kernel waits some 10 ms.
    pub fn leave_elsewhere(&mut self) {
        let left = std::mem::take(&mut self.elsewhere);
        let name = std::thread::Builder::new().name("weir-attach".into());
        // Without a thread they are closed here.
        let _ = name.spawn(move || drop(left));
    }

    /// The interfaces of other namespaces to which it is attached, or about to be.
    pub fn interfaces_elsewhere(&self) -> Vec<(Namespace, u32)> {
        self.elsewhere.interfaces.keys().copied().collect()
    }
}

impl Elsewhere {
    fn attacher(&mut self) -> Result<&Attacher> {
        let attacher = match self.attacher.take() {
            Some(attacher) => attacher,
            None => Attacher::start()?,
        };
        Ok(self.attacher.insert(attacher))
    }
}
