//! What the daemon needs of the kernel in other network namespaces than its own.

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;

use weir_core::listener::Listener;
use weir_core::refusals::Refusal;
use weir_core::verdict::Counters;
use weir_kernel::{AttachedIn, Guard, ListenSocket, Namespace, NamespacePath, Result};

/// The other namespaces of a loaded guard; see [`weir_kernel::Guard`] for what each function promises.
pub trait Spaces {
    /// Has listeners ready for one, if it is still here; on failure nothing has changed.
    fn prepare_in(
        &mut self,
        at: &NamespacePath,
        namespace: Namespace,
        listeners: &[Listener],
        cookies: bool,
    ) -> Result<()>;
    /// Puts all that is ready in force, in each atomically.
    fn put_in_force(&mut self) -> Result<()>;
    /// Takes some out, whether or not they are still there.
    fn remove(&mut self, namespaces: &[Namespace]);
    /// Begins to attach to one of its interfaces; `urgent`: before those that are not.
    fn attach_in(
        &mut self,
        at: &NamespacePath,
        namespace: Namespace,
        ifindex: u32,
        urgent: bool,
    ) -> Result<()>;
    /// What has come of it since the last call.
    fn attached(&mut self) -> Vec<AttachedIn>;
    /// Readable when there is some of that; `None`: nothing was begun yet.
    fn attached_fd(&self) -> Option<BorrowedFd<'_>>;
    /// Detaches from one.
    fn detach_in(&mut self, namespace: Namespace, ifindex: u32);
    /// Puts the guard before all others on one of them again.
    fn go_first_in(&mut self, at: &NamespacePath, namespace: Namespace, ifindex: u32)
    -> Result<()>;
    /// Its interfaces that are there still and that the guard is on; none once it has ended.
    fn devices_in(&self, namespace: Namespace) -> BTreeSet<u32>;
    /// Counters of one of its listeners.
    fn counters_in(&self, namespace: Namespace, name: &str) -> Result<Counters>;
    /// Its listening sockets, for who asks many times a second.
    fn sockets_in(&self, at: &NamespacePath, namespace: Namespace) -> Result<Vec<ListenSocket>>;
    /// Sampled refusals of all namespaces since the last call, weir's own among them.
    fn events(&mut self) -> Result<Vec<(Namespace, Refusal)>>;
}

impl Spaces for Guard {
    fn prepare_in(
        &mut self,
        at: &NamespacePath,
        namespace: Namespace,
        listeners: &[Listener],
        cookies: bool,
    ) -> Result<()> {
        Guard::prepare_in(self, at, namespace, listeners, cookies)
    }

    fn put_in_force(&mut self) -> Result<()> {
        Guard::put_in_force(self)
    }

    fn remove(&mut self, namespaces: &[Namespace]) {
        Guard::remove(self, namespaces);
    }

    fn attach_in(
        &mut self,
        at: &NamespacePath,
        namespace: Namespace,
        ifindex: u32,
        urgent: bool,
    ) -> Result<()> {
        Guard::attach_in(self, at, namespace, ifindex, urgent)
    }

    fn attached(&mut self) -> Vec<AttachedIn> {
        Guard::attached(self)
    }

    fn attached_fd(&self) -> Option<BorrowedFd<'_>> {
        Guard::attached_fd(self)
    }

    fn detach_in(&mut self, namespace: Namespace, ifindex: u32) {
        Guard::detach_in(self, namespace, ifindex);
    }

    fn go_first_in(
        &mut self,
        at: &NamespacePath,
        namespace: Namespace,
        ifindex: u32,
    ) -> Result<()> {
        Guard::go_first_in(self, at, namespace, ifindex)
    }

    fn devices_in(&self, namespace: Namespace) -> BTreeSet<u32> {
        Guard::devices_in(self, namespace)
    }

    fn counters_in(&self, namespace: Namespace, name: &str) -> Result<Counters> {
        Guard::counters_in(self, namespace, name)
    }

    fn sockets_in(&self, at: &NamespacePath, namespace: Namespace) -> Result<Vec<ListenSocket>> {
        Guard::known_sockets_in(self, at, namespace)
    }

    fn events(&mut self) -> Result<Vec<(Namespace, Refusal)>> {
        Guard::all_events(self)
    }
}
