//! What the guard asks of the machine around it: who listens where, and what it is called.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};

use weir_config::{Environment, SynFilter};
use weir_core::workload::Workload;
use weir_kernel::{Discovery, FoundListener, Namespace, NamespacePath, Notice};

use crate::failure::Result;
use crate::host::filters::Filters;
use crate::host::links::{self, Link};
use crate::host::published::keeps_ports;
use crate::host::{containers, environment, namespaces};

/// So many interfaces of another namespace are guarded at most. Who may make them there is not to keep weir busy: each takes the
/// kernel some milliseconds, in which it lets nobody else change any.
pub const MOST_INTERFACES: usize = 64;

/// The machine.
pub trait World {
    /// Readable when there are [notices](Self::notices).
    fn fd(&self) -> BorrowedFd<'_>;
    /// All that listen now, in every network namespace, except those who only keep published ports for a container engine.
    fn listeners(&self) -> Result<Vec<FoundListener>>;
    /// Who has begun or ceased to since the last call.
    fn notices(&self) -> Vec<Notice>;
    /// Notices that were lost, ever.
    fn lost(&self) -> u32;
    /// What people call those who listen, in the same order; `None`: the process has ended.
    fn workloads(&self, found: &[FoundListener]) -> Vec<Option<Workload>>;
    /// What is in a network namespace.
    fn look(&self, at: &NamespacePath, namespace: Namespace) -> Result<Inside>;
}

/// A network namespace as it is at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Inside {
    /// Its interfaces.
    pub links: Vec<Link>,
    /// What policies depend on there.
    pub environment: Environment,
}

/// The real one.
pub struct Machine(Discovery);

impl Machine {
    /// Notes from now on who listens.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn open() -> Result<Box<dyn World>> {
        Ok(Box::new(Machine(Discovery::load()?)))
    }
}

impl World for Machine {
    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn listeners(&self) -> Result<Vec<FoundListener>> {
        let mut found = self.0.listeners()?;
        found.retain(|one| !keeps_ports(one.pid));
        Ok(found)
    }

    fn notices(&self) -> Vec<Notice> {
        let mut notices = self.0.notices();
        notices.retain(|notice| match notice {
            Notice::Listens(one) => !keeps_ports(one.pid),
            Notice::Ceased { .. } => true,
        });
        notices
    }

    fn lost(&self) -> u32 {
        self.0.lost()
    }

    fn workloads(&self, found: &[FoundListener]) -> Vec<Option<Workload>> {
        if found.is_empty() {
            return Vec::new();
        }
        let names = namespaces::names();
        // A server with a socket for each of its workers has many.
        let mut known = BTreeMap::new();
        let mut workload = |pid: u32| -> Option<Workload> {
            let one = known.entry(pid);
            one.or_insert_with(|| containers::workload(pid, &names))
                .clone()
        };
        found.iter().map(|one| workload(one.pid)).collect()
    }

    fn look(&self, at: &NamespacePath, namespace: Namespace) -> Result<Inside> {
        at.enter_if(namespace, || Ok(look_here()))?
    }
}

/// Where the calling thread is.
fn look_here() -> Result<Inside> {
    let links = links::list()?;
    let filter = match links.len() {
        ..=MOST_INTERFACES => Filters::default().first_behind(&links),
        many => Some(SynFilter::Unread {
            what: "tc",
            cause: format!("there are {many} interfaces"),
        }),
    };
    Ok(Inside {
        environment: environment::read(filter),
        links,
    })
}
