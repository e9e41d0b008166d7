//! What a guard does in other network namespaces than weir's own.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use weir_core::listener::Listener;
use weir_core::policy::Services;
use weir_core::verdict::Counters;

use super::Guard;
use super::attach::{self, Hook};
use super::attacher::{Attacher, Done, Job, Left, Outcome};
use super::chain::{self, Rank};
use super::counters::sum_of;
use super::listeners::{self, ListenSocket};
use super::namespaces::Common;
use super::policy::{Place, table_of};
use super::skel::types;
use crate::error::{Error, Result};
use crate::namespace::{Namespace, NamespacePath};

/// What has come of [`Guard::attach_in`].
#[derive(Debug)]
pub struct AttachedIn {
    /// Where.
    pub namespace: Namespace,
    /// The interface's number there.
    pub ifindex: u32,
    /// As of [`Guard::attach`]. Or another namespace was there, or none.
    pub outcome: Result<()>,
}

impl Guard {
    /// Puts a policy in force in another network namespace, atomically for every packet, and so for each namespace by
    /// itself. Its listeners have their own names, addresses, ports, interfaces and counters. They keep their counters by
    /// name. Classes are those of [`Guard::apply`] and [`Guard::set_classes`]: one that names a listener is of the
    /// listeners of that name in every namespace, and has one rate and one set of counters for all of them.
    ///
    /// `cookies` as of [`Guard::allow_cookies`]. `front`, `queue` and `residence` are not there yet: SYNs are judged at tc,
    /// the server accepts in order, and requests are not looked at. Nor are services of IPVS there ([`Guard::pass_by`]).
    ///
    /// # Errors
    /// The namespace cannot be entered, or is weir's own; there is no room ([`super::Limits`]); two listeners have the same
    /// address. Then nothing has changed. Or the kernel has no memory for it: then the policy before holds.
    pub fn apply_in(
        &mut self,
        at: &NamespacePath,
        listeners: &[Listener],
        cookies: bool,
    ) -> Result<Namespace> {
        let namespace = at.enter(Ok)?;
        self.prepare_in(at, namespace, listeners, cookies)?;
        self.put_in_force()?;
        Ok(namespace)
    }

    /// The first half of [`Guard::apply_in`]: until [`Guard::put_in_force`] the policy before holds, or none. The kernel waits
    /// for packets once for all that are prepared.
    ///
    /// # Errors
    /// Another namespace is here by now; else as of [`Guard::apply_in`], but for the kernel's memory.
    pub fn prepare_in(
        &mut self,
        at: &NamespacePath,
        namespace: Namespace,
        listeners: &[Listener],
        cookies: bool,
    ) -> Result<()> {
        let table = table_of(listeners, &Services::default())?;
        let policies: Vec<_> = at.enter_if(namespace, || {
            let place = Place::here(cookies);
            let policies = listeners
                .iter()
                .map(|l| (l.name.clone(), place.listener_policy(l)));
            Ok(policies.collect())
        })?;
        if namespace == self.namespaces.own() {
            return Err(Error::Failed {
                what: format!("guard {} as another network namespace", at.path().display()),
                cause: "it is weir's own".into(),
            });
        }
        // The number of a new name may have been another's, and stand in the rules of its classes.
        let is_new = |(name, _): &(String, _)| self.namespaces.owner(name).is_none();
        let mut classes = self.classes.list().iter();
        let rules = classes.any(|class| class.listener.is_some()) && policies.iter().any(is_new);
        let maps = &self.skel.maps;
        self.namespaces.set(maps, namespace, policies, table)?;
        self.rules_wait |= rules;
        Ok(())
    }

    /// Puts in force what is prepared in other namespaces.
    ///
    /// # Errors
    /// The kernel has no memory for it: in some of them the policy before holds.
    pub fn put_in_force(&mut self) -> Result<()> {
        // Ports first: a packet to one that no policy has yet passes.
        self.mark_elsewhere();
        self.names = None;
        if self.rules_wait {
            let classes = self.classes.list().to_vec();
            self.set_classes(&classes)?;
            self.rules_wait = false;
        } else {
            let (other, copy) = (self.classes.other_is_controlled(), self.classes.in_force());
            self.renew(true, &|name| copy.mark(name, other))?;
        }
        self.namespaces.forget_owners();
        Ok(())
    }

    /// Takes network namespaces out of the guard, whether or not they are still there. Their interfaces are let go soon, and
    /// until then all passes there.
    pub fn remove(&mut self, namespaces: &[Namespace]) {
        let links = self.namespaces.remove(&self.skel.maps, namespaces);
        self.mark_elsewhere();
        self.names = None;
        for left in links {
            self.let_go(left);
        }
    }

    /// The other namespaces that are guarded.
    pub fn namespaces(&self) -> impl Iterator<Item = Namespace> {
        self.namespaces.all()
    }

    /// Attaches to an interface of another namespace in which listeners are guarded, as [`Guard::attach`] does to one of
    /// weir's own, but in a while: [`Guard::attached`] says when. `urgent`: before others that are not. The XDP front is for
    /// weir's own.
    ///
    /// # Errors
    /// The namespace is not guarded, or no thread can be started.
    pub fn attach_in(
        &mut self,
        at: &NamespacePath,
        namespace: Namespace,
        ifindex: u32,
        urgent: bool,
    ) -> Result<()> {
        let guarded = self.namespaces.get(namespace)?;
        let is_there = |link: &OwnedFd| attach::is_on_device(link.as_fd());
        if guarded.awaited.contains(&ifindex) || guarded.links.get(&ifindex).is_some_and(is_there) {
            return Ok(());
        }
        let program = duplicate(self.tc())?;
        let job = Job {
            at: at.clone(),
            namespace,
            ifindex,
            hook: Hook::Tcx(Rank::Guard),
            program,
            bare: None,
            urgent,
        };
        self.attacher()?.attach(job);
        self.namespaces.get_mut(namespace)?.awaited.insert(ifindex);
        Ok(())
    }

    /// What has come of [`Guard::attach_in`] since the last call.
    pub fn attached(&mut self) -> Vec<AttachedIn> {
        let done = self.attacher.as_ref().map(Attacher::done);
        let done = done.into_iter().flatten();
        done.filter_map(|done| self.take_done(done)).collect()
    }

    /// Readable when there is something [attached](Guard::attached); `None`: nothing was to be yet.
    pub fn attached_fd(&self) -> Option<BorrowedFd<'_>> {
        self.attacher.as_ref().map(AsFd::as_fd)
    }

    /// `None`: there is nothing to say of it, or not yet.
    fn take_done(&mut self, done: Done) -> Option<AttachedIn> {
        let Done {
            namespace,
            ifindex,
            outcome,
            ..
        } = done;
        if !self.namespaces.awaits(namespace, ifindex) {
            // It was taken out meanwhile.
            if let Outcome::Linked(link) = outcome {
                self.let_go(Left {
                    namespace,
                    ifindex,
                    link,
                });
            }
            return None;
        }
        let outcome = match outcome {
            Outcome::Linked(link) => Ok(Some(link)),
            Outcome::Failed(at, error) => {
                let there = at.enter_if(namespace, || chain::tcx(ifindex));
                let link = there.ok().and_then(|chain| self.take_link(&chain.links));
                link.map(Some).ok_or(error)
            }
            Outcome::Bare(job) => match self.attach_bare(job) {
                Ok(()) => return None,
                Err(error) => Err(error),
            },
        };
        let guarded = self.namespaces.get_mut(namespace).ok()?;
        guarded.awaited.remove(&ifindex);
        // The link before, if there was one, is of a device that has gone.
        let outcome = outcome.map(|link| guarded.links.extend(link.map(|link| (ifindex, link))));
        Some(AttachedIn {
            namespace,
            ifindex,
            outcome,
        })
    }

    /// The link of ours that is one of these, taken from where it was. A device may have moved from one namespace to another, as
    /// engines move those of containers that start and end, and its link has moved with it: the kernel takes no program twice.
    pub(super) fn take_link(&mut self, there: &[u32]) -> Option<OwnedFd> {
        let is_there = |link: &OwnedFd| {
            let id = attach::link_id(link.as_fd());
            id.is_some_and(|id| there.contains(&id))
        };
        let mut own = self.links.iter();
        let found = own.find(|(_, attached)| is_there(&attached.tcx));
        if let Some((&ifindex, _)) = found {
            return self.links.remove(&ifindex).map(|attached| attached.tcx);
        }
        self.namespaces.take_link(is_there)
    }

    fn attach_bare(&mut self, job: Job) -> Result<()> {
        let bare = Some(duplicate(self.further.tc_bare(&self.skel)?)?);
        self.attacher()?.attach(Job { bare, ..job });
        Ok(())
    }

    fn attacher(&mut self) -> Result<&Attacher> {
        let attacher = match self.attacher.take() {
            Some(attacher) => attacher,
            None => Attacher::start()?,
        };
        Ok(self.attacher.insert(attacher))
    }

    /// Closes a link, after which the kernel waits as after a new one.
    fn let_go(&self, left: Left) {
        match &self.attacher {
            Some(attacher) => attacher.close(left),
            None => drop(left),
        }
    }

    /// As [`Guard::go_first`], at an interface of another namespace.
    ///
    /// # Errors
    /// As of [`Guard::attach_in`].
    pub fn go_first_in(
        &mut self,
        at: &NamespacePath,
        namespace: Namespace,
        ifindex: u32,
    ) -> Result<()> {
        if !self.devices_in(namespace).contains(&ifindex) {
            return Ok(());
        }
        let neighbours = at.enter_if(namespace, || chain::neighbours(ifindex))?;
        if neighbours.before.is_empty() {
            return Ok(());
        }
        // At once: the kernel takes no program twice.
        drop(self.namespaces.get_mut(namespace)?.links.remove(&ifindex));
        self.attach_in(at, namespace, ifindex, true)
    }

    /// Detaches from one interface of another namespace; no error if not attached.
    pub fn detach_in(&mut self, namespace: Namespace, ifindex: u32) {
        let Ok(guarded) = self.namespaces.get_mut(namespace) else {
            return;
        };
        guarded.awaited.remove(&ifindex);
        if let Some(link) = guarded.links.remove(&ifindex) {
            self.let_go(Left {
                namespace,
                ifindex,
                link,
            });
        }
    }

    /// The interfaces of another namespace that the guard was attached to, by their numbers there. Those that have gone are
    /// not among them, and so none of a namespace that has ended. One that was moved is: its packets go by the policy of where
    /// it is now.
    pub fn devices_in(&self, namespace: Namespace) -> BTreeSet<u32> {
        let links = self.namespaces.get(namespace).map(|guarded| &guarded.links);
        let links = links.into_iter().flatten();
        let there = links.filter(|(_, link)| attach::is_on_device(link.as_fd()));
        there.map(|(ifindex, _)| *ifindex).collect()
    }

    /// Counters of a listener of another namespace, since it was first guarded.
    ///
    /// # Errors
    /// There is none of this name, or they cannot be read.
    pub fn counters_in(&self, namespace: Namespace, name: &str) -> Result<Counters> {
        let slot = self.namespaces.get(namespace)?.slot(name);
        sum_of(&self.skel.maps, name, slot)
    }

    /// All listening TCP sockets of another namespace, whether or not it is guarded.
    ///
    /// # Errors
    /// Another namespace is there now, or none; or they cannot be read.
    pub fn listen_sockets_in(
        &self,
        at: &NamespacePath,
        namespace: Namespace,
    ) -> Result<Vec<ListenSocket>> {
        let iterator: BorrowedFd<'_> = self.listeners.iterator();
        let records = at.enter_if(namespace, || listeners::records(iterator))?;
        let sockets = records.iter().map(ListenSocket::of).collect();
        if let Ok(guarded) = self.namespaces.get(namespace) {
            guarded.sockets.replace(records);
        }
        Ok(sockets)
    }

    /// The same for who asks many times a second, of a namespace that is guarded: those that [`Guard::listen_sockets_in`] has
    /// found are read where they are, and the namespace is entered only once one of them has gone. One that is new is not
    /// among them before: [`crate::Discovery`] says when there is.
    ///
    /// # Errors
    /// As of [`Guard::listen_sockets_in`].
    pub fn known_sockets_in(
        &self,
        at: &NamespacePath,
        namespace: Namespace,
    ) -> Result<Vec<ListenSocket>> {
        let sockets = self.namespaces.get(namespace)?.sockets.borrow();
        let again = self.listeners.again_in(&self.skel, namespace, &sockets)?;
        drop(sockets);
        match again {
            Some(sockets) => Ok(sockets),
            None => self.listen_sockets_in(at, namespace),
        }
    }

    /// Puts in force what has changed of other namespaces, or only what is prepared there. `mark`: as of [`Common`].
    pub(super) fn renew(&mut self, only_prepared: bool, mark: &dyn Fn(&str) -> u8) -> Result<()> {
        let common = Common {
            own: &self.slots,
            mark,
            draining: self.draining,
        };
        let prepared = self.namespaces.prepare(only_prepared, &common)?;
        self.namespaces.put(&self.skel.maps, prepared)
    }

    /// Says in both copies of the policy which ports are guarded in other namespaces. A port that is marked for nothing
    /// costs its packets some nanoseconds.
    fn mark_elsewhere(&mut self) {
        let ports = self.namespaces.ports();
        let marked = std::mem::replace(&mut self.elsewhere, ports.clone());
        for policy in &mut self.bss().policies {
            for port in marked.difference(&ports) {
                set_elsewhere(policy, *port, 0);
            }
            for port in ports.difference(&marked) {
                set_elsewhere(policy, *port, 1);
            }
        }
    }
}

pub(crate) fn duplicate(program: BorrowedFd<'_>) -> Result<OwnedFd> {
    program.try_clone_to_owned().map_err(|e| Error::Failed {
        what: "have a program attached by another thread".into(),
        cause: e.to_string(),
    })
}

fn set_elsewhere(policy: &mut types::policy, port: u16, mark: u16) {
    let entry = &mut policy.ports[usize::from(port.to_be())];
    // SAFETY: mapped and aligned; BPF programs only read it.
    unsafe { std::ptr::write_volatile(&mut entry.elsewhere, mark) };
}
