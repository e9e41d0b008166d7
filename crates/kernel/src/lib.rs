//! Loads weir's BPF programs and talks to them: the only crate with libbpf and with `unsafe`.
//!
//! Everything works on the network namespace of the calling thread. Nothing is pinned: what a
//! process attached goes with it, also after `kill -9`.

mod cgroups;
mod clock;
mod conntrack;
mod cookies;
mod error;
pub mod exec;
mod guard;
mod object;
pub mod privileges;
mod probe;
mod programs;
pub mod queue;
mod random;
mod seccomp;
pub mod shape;
mod sockets;
mod splice;
mod sysctl;
#[cfg(feature = "testing")]
pub mod testing;
mod timewait;

pub use cgroups::cgroup_root;
pub use clock::monotonic;
pub use conntrack::conntrack_follows;
pub use error::{Error, Result};
pub use guard::listeners::ListenSocket;
pub use guard::{CONTROLLED_FOR, Guard};
pub use probe::{Mechanism, has_cookie_kfunc, native_xdp};
pub use programs::probe_all;
pub use random::random;
pub use sockets::{OwnedSocket, owned_sockets};
pub use splice::{Splice, SpliceLane, SplicePair};
pub use timewait::{TimeWait, TimeWaitFigures};
