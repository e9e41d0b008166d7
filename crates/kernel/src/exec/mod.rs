//! The parts of `weir exec` that touch the kernel: a seccomp filter on the server, the calls of accept()
//! that it tells of, and connections that are put into the server's descriptor table.
//!
//! [`refuse_mptcp`] has the kernel refuse MPTCP sockets to this process and to what it becomes. With
//! [`Calls`] another process decides what accept() returns, and [`SharedState`] is the memory that outlives
//! that process, so that a successor can go on where it was killed.

mod call;
mod calls;
mod filter;
mod helper;
mod memory;
mod shared;
mod sockets;
mod threads;

pub use call::{Accept, Asked, Call};
pub use calls::Calls;
pub use filter::{notify_of_accepts, refuse_mptcp};
pub use helper::{
    Fork, adopt_connection, allow_tracer, block_signals, close_all_but, fork,
    fork_sharing_descriptors, leave_standard_streams, open_descriptors, restore_sigpipe,
};
pub use memory::{read_length, write_address};
pub use shared::{CALL_SLOTS, CallSlot, Entered, SharedState};
pub use sockets::{
    Backlog, Kind, SocketAddress, backlog, has_sent, kind, receive_timeout, reset_on_close,
};
pub use threads::{Threads, holder, number_of, pidfd_open};

/// Nanoseconds on the monotonic clock.
pub fn now_ns() -> u64 {
    crate::clock::now_ns()
}

/// Whether parked connections can be handed to a server here.
///
/// # Errors
/// Why not.
pub fn can_park() -> crate::Result<()> {
    crate::queue::can_migrate()
}
