//! The guard of QUIC on the interfaces of other network namespaces.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

use super::load::Programs;
use crate::error::Result;
use crate::guard::attach::{Hook, is_on_device};
use crate::guard::attacher::{Attacher, Job, Left, Outcome};
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

impl Elsewhere {
    /// Attaches to an interface, in a while. Attaching twice is no error, and attaches again where it has failed.
    pub fn attach(
        &mut self,
        at: &NamespacePath,
        namespace: Namespace,
        ifindex: u32,
        programs: &Programs<'_>,
    ) -> Result<()> {
        let place = (namespace, ifindex);
        let stays = |end: &End| end.is_on() || matches!(end, End::Awaited);
        let ends = self.interfaces.get(&place);
        if ends.is_some_and(|ends| ends.iter().all(stays)) {
            return Ok(());
        }
        // What is left of it: the kernel takes no program twice.
        self.detach(namespace, ifindex);
        for hook in HOOKS {
            let job = Job {
                at: at.clone(),
                namespace,
                ifindex,
                hook,
                program: program_at(hook, programs)?,
                bare: None,
                urgent: true,
            };
            self.attacher()?.attach(job);
        }
        let awaited = [End::Awaited, End::Awaited];
        self.interfaces.insert(place, awaited);
        Ok(())
    }

    /// Notes what has come of it. `bare`: the programs for devices without a link header, asked for when there is one.
    pub fn follow<'a>(&mut self, bare: impl Fn() -> Result<Programs<'a>>) {
        let done = self.attacher.as_ref().map(Attacher::done);
        for done in done.unwrap_or_default() {
            let end = match done.outcome {
                Outcome::Linked(link) => End::On(link),
                Outcome::Failed(_, error) => End::Failed(error.to_string()),
                Outcome::Bare(job) => match self.attach_bare(job, &bare) {
                    Ok(()) => continue,
                    Err(error) => End::Failed(error.to_string()),
                },
            };
            // It may have been detached from meanwhile: then the link goes.
            let place = (done.namespace, done.ifindex);
            let Some(ends) = self.interfaces.get_mut(&place) else {
                continue;
            };
            let before = &mut ends[usize::from(done.hook != HOOKS[0])];
            // One that was asked for twice is there once.
            if !(matches!(end, End::Failed(_)) && before.is_on()) {
                *before = end;
            }
            self.leave_half(place);
        }
    }

    /// Takes the way in off where there is no way out: none of its attempts would be seen answered.
    fn leave_half(&mut self, (namespace, ifindex): Place) {
        let ends = self.interfaces.get_mut(&(namespace, ifindex));
        let Some([End::Failed(_), enter @ End::On(_)]) = ends else {
            return;
        };
        if let (End::On(link), Some(attacher)) = (std::mem::take(enter), &self.attacher) {
            attacher.close(Left {
                namespace,
                ifindex,
                link,
            });
        }
    }

    fn attach_bare<'a>(
        &mut self,
        job: Job,
        bare: &impl Fn() -> Result<Programs<'a>>,
    ) -> Result<()> {
        let bare = Some(program_at(job.hook, &bare()?)?);
        self.attacher()?.attach(Job { bare, ..job });
        Ok(())
    }

    /// Whether a program is on its way to this interface.
    pub fn is_awaited(&self, namespace: Namespace, ifindex: u32) -> bool {
        let ends = self.interfaces.get(&(namespace, ifindex));
        ends.is_some_and(|ends| ends.iter().any(|end| matches!(end, End::Awaited)))
    }

    /// Whether both programs are on this interface; or why not, if that is known.
    pub fn is_attached(
        &self,
        namespace: Namespace,
        ifindex: u32,
    ) -> std::result::Result<bool, &str> {
        let Some(ends) = self.interfaces.get(&(namespace, ifindex)) else {
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

    /// Detaches from one interface, in a while; no error if not attached.
    pub fn detach(&mut self, namespace: Namespace, ifindex: u32) {
        let Some(ends) = self.interfaces.remove(&(namespace, ifindex)) else {
            return;
        };
        // First the way in: it would see no answers without the way out.
        for end in ends.into_iter().rev() {
            if let (End::On(link), Some(attacher)) = (end, &self.attacher) {
                attacher.close(Left {
                    namespace,
                    ifindex,
                    link,
                });
            }
        }
    }

    /// Detaches from all in a thread of its own: after each link the kernel waits some 10 ms.
    pub fn leave(self) {
        let name = std::thread::Builder::new().name("weir-attach".into());
        // Without a thread they are closed here.
        let _ = name.spawn(move || drop(self));
    }

    /// The interfaces to which it is attached, or about to be.
    pub fn interfaces(&self) -> Vec<(Namespace, u32)> {
        self.interfaces.keys().copied().collect()
    }

    fn attacher(&mut self) -> Result<&Attacher> {
        let attacher = match self.attacher.take() {
            Some(attacher) => attacher,
            None => Attacher::start()?,
        };
        Ok(self.attacher.insert(attacher))
    }
}

/// A descriptor of the program that goes to this hook.
fn program_at(hook: Hook, programs: &Programs<'_>) -> Result<OwnedFd> {
    match hook {
        Hook::TcxOut => duplicate(programs.leave),
        _ => duplicate(programs.enter),
    }
}
