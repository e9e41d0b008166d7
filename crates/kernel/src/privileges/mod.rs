//! What a process of weir gives up once it runs: capabilities that it does not need, and system calls that it never makes.
//!
//! Capabilities belong to threads: [`keep_only`] is called before the threads begin that are to lack them. System calls
//! are refused to all threads of the process at once ([`refuse_calls`]).

mod calls;
mod capabilities;

pub use calls::{Beside, refuse_calls, refuse_calls_here};
pub use capabilities::{Capability, keep_only};
