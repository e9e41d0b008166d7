//! Loads weir's BPF programs and talks to them: the only crate with libbpf and with `unsafe`.
//!
//! Everything works on the network namespace of the calling thread. Nothing is pinned: what a
//! process attached goes with it, also after `kill -9`.

mod cgroups;
mod clock;
mod cookies;
mod discover;
mod error;
pub mod exec;
mod filters;
mod guard;
mod namespace;
mod object;
mod own_filters;
pub mod privileges;
mod probe;
mod programs;
pub mod queue;
mod quic;
mod random;
mod residence;
mod seccomp;
pub mod shape;
mod sockets;
mod splice;
mod sysctl;
#[cfg(feature = "testing")]
pub mod testing;
mod timewait;
mod watch;

pub use cgroups::cgroup_root;
pub use clock::monotonic;
pub use discover::{Discovery, FoundListener, Notice};
pub use error::{Error, Result};
pub use filters::{
    PacketFilters, is_mere_target, nat_ends, nat_target, packet_filters, tables_that_drop,
    tcp_match,
};
pub use guard::chain::{Neighbours, Program, chain, has_front, is_own, neighbours, xdp};
pub use guard::listeners::ListenSocket;
pub use guard::{AttachedIn, CONTROLLED_FOR, ClassCounters, ClassMaps, Guard, Limits};
pub use namespace::{Namespace, NamespacePath};
pub use own_filters::OwnFilters;
pub use probe::{Mechanism, has_cookie_kfunc, native_xdp};
pub use programs::probe_all;
pub use quic::{Around, Quic};
pub use random::random;
pub use residence::{MAX_PORTS, Residences, tick};
pub use sockets::{
    BoundUdp, ListenQueue, OwnedSocket, Unaccepted, bound_udp, listen_queues, owned_sockets,
    unaccepted,
};
pub use splice::{Splice, SpliceLane, SplicePair};
pub use sysctl::TcpOptions;
pub use timewait::{TimeWait, TimeWaitFigures};
pub use watch::{Established, program_name};
