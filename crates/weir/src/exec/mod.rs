//! `weir exec --order exact`: what a server's accept() returns is decided outside of it.
//!
//! Three processes. The *server* is the one that was started, so its process id, signals and exit status are
//! its own; a seccomp filter has the kernel stop each of its accept() calls until it is answered. The
//! *orderer* ([`orderer::Orderer`]) answers: it takes what waits out of the kernel's queue, keeps it in the order of
//! [`weir_core::queue::ReleaseOrder`], and puts the first of it into the server's descriptor table. The *supervisor*
//! ([`supervisor`]) waits for the orderer's death and starts another one. Both have one descriptor table
//! and some memory in common, so that no connection and no waiting call is lost between two orderers.
//! Supervisor and orderer end when no process of the server is left.

mod orderer;
mod policy;
mod queue;
mod supervisor;
mod wake_connection;

use std::io::Read;
use std::os::unix::net::UnixStream;

use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use weir_kernel::exec::{self as kernel, Fork, SharedState};

use crate::failure::{Failure, Result};
pub use policy::Policy;
pub use supervisor::Source;

/// Has another process answer each accept() of this one and of what it becomes.
///
/// # Errors
/// The kernel cannot, or the helpers cannot be started. This process must not become a server then, unless
/// the failure came before the filter, which [`Failure::code`] 3 says.
pub fn start(source: Source, policy: Policy) -> Result<()> {
    let failed = |what: &'static str| move |error| Failure::io(what, error);
    let shared = SharedState::new()?;
    let (mut ours, theirs) = UnixStream::pair().map_err(failed("talk to the supervisor"))?;
    // A child of a child: no server expects to have a child that it has not started.
    match kernel::fork().map_err(|e| Failure::io("fork", e.into()))? {
        Fork::Child => {
            let code = match kernel::fork() {
                Ok(Fork::Child) => supervisor::run(theirs, shared, source, policy),
                Ok(Fork::Parent(_)) => 0,
                Err(_) => 1,
            };
            std::process::exit(code);
        }
        Fork::Parent(child) => {
            drop(theirs);
            waitpid(Pid::from_raw(child), None).map_err(|e| Failure::io("fork", e.into()))?;
        }
    }
    let calls = kernel::notify_of_accepts()?;
    let told = calls.send(&ours).map_err(Into::into).and_then(|()| {
        let mut answer = String::new();
        ours.read_to_string(&mut answer).map(|_| answer)
    });
    let answer = told.map_err(failed("talk to the supervisor"))?;
    let supervisor = answer.trim().parse().map_err(|_| {
        Failure::failed(
            "the process that is to answer the server's accept() did not start",
            "its message, if any, is above",
        )
    })?;
    kernel::allow_tracer(supervisor);
    Ok(())
}
