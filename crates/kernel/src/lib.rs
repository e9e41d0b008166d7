//! Loads weir's BPF programs and talks to them: the only crate with libbpf and with `unsafe`.
//!
//! Everything works on the network namespace of the calling thread. Nothing is pinned: what a
//! process attached goes with it, also after `kill -9`.

mod error;
pub mod exec;
mod guard;
mod listeners;
mod probe;
pub mod queue;
mod sockets;
mod splice;
mod sysctl;
mod testing;

/// Skeleton of bpf/guard.bpf.c.
#[allow(missing_docs, clippy::all, clippy::undocumented_unsafe_blocks)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/guard.skel.rs"));
}

pub use error::{Error, Result};
pub use guard::{CONTROLLED_FOR, ClassMaps, Event, Guard};
pub use listeners::ListenSocket;
pub use probe::{Mechanism, has_cookie_kfunc, native_xdp, probe};
pub use sockets::{OwnedSocket, owned_sockets};
pub use splice::{Splice, SpliceLane, SplicePair};
pub use testing::{pure, run as testrun};
