//! What the guard asks of the machine around it: who listens where, and what it is called.

use std::os::fd::{AsFd, BorrowedFd};

use weir_config::Environment;
use weir_core::workload::Workload;
use weir_kernel::{Discovery, FoundListener, Namespace, NamespacePath, Notice};

use crate::failure::Result;
use crate::host::filters::Filters;
use crate::host::links::{self, Link};
use crate::host::{containers, environment, namespaces};

/// The machine.
pub trait World {
    /// Readable when there are [notices](Self::notices).
    fn fd(&self) -> BorrowedFd<'_>;
    /// All that listen now, in every network namespace.
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
        Ok(self.0.listeners()?)
    }

    fn notices(&self) -> Vec<Notice> {
        self.0.notices()
    }

    fn lost(&self) -> u32 {
        self.0.lost()
    }

    fn workloads(&self, found: &[FoundListener]) -> Vec<Option<Workload>> {
        if found.is_empty() {
            return Vec::new();
        }
        let names = namespaces::names();
        let pids = found.iter().map(|found| found.pid);
        pids.map(|pid| containers::workload(pid, &names)).collect()
    }

    fn look(&self, at: &NamespacePath, namespace: Namespace) -> Result<Inside> {
        at.enter_if(namespace, || Ok(look_here()))?
    }
}

/// Where the calling thread is.
fn look_here() -> Result<Inside> {
    let links = links::list()?;
    Ok(Inside {
        environment: environment::read(Filters::default().first_behind(&links)),
        links,
    })
}
