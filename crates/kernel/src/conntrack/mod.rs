//! Whether conntrack follows connections here (bpf/conntrack.bpf.c).

mod skel;

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::OnceLock;

use crate::error::{Error, Result, of_libbpf};
use crate::object::{self, open_in};
use crate::sysctl;
use skel::ConntrackSkelBuilder;

/// Whether conntrack follows the connections of the calling thread's network namespace, because some rule there
/// needs it. Takes some microseconds, and the first call of a process some milliseconds. Where the kernel's list
/// of hooks cannot be read, it tells by the connections that conntrack knows at the moment.
pub fn conntrack_follows() -> bool {
    // The program is the same for every namespace: it looks at the caller's.
    static PROGRAM: OnceLock<Option<OwnedFd>> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| load().ok());
    program.as_ref().and_then(run).unwrap_or_else(has_entries)
}

pub(crate) fn load() -> Result<OwnedFd> {
    const WHAT: &str = "load the program that reads the list of netfilter hooks";
    let mut memory = MaybeUninit::uninit();
    let open = open_in::<ConntrackSkelBuilder>(&mut memory).map_err(of_libbpf(WHAT))?;
    let loaded = object::load(open, WHAT)?;
    let program = loaded.progs.conntrack_follows.as_fd();
    program.try_clone_to_owned().map_err(|e| Error::Failed {
        what: WHAT.into(),
        cause: e.to_string(),
    })
}

/// What the program says; `None` if it cannot be run.
fn run(program: &OwnedFd) -> Option<bool> {
    let mut run = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as u64,
        ..Default::default()
    };
    // SAFETY: the options are initialised, outlive the call and name no buffers.
    let failed = unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &mut run) };
    (failed == 0).then_some(run.retval != 0)
}

fn has_entries() -> bool {
    sysctl::read("netfilter/nf_conntrack_count").is_some_and(|count| count > 0)
}
