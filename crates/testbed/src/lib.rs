//! What weir's integration tests and its lab run in: namespaces of their own, with links, devices and the
//! built `weir` in them.
//!
//! - [`netns`]: network namespaces that remove themselves;
//! - [`bed`]: a server namespace and a client namespace with links, and the kernel's counters;
//! - [`program`]: the project's own programs, and one that runs in the background;
//! - [`weir`]: a `weir run` with its configuration and its runtime directory;
//! - [`process`], [`cpu`]: what processes and CPUs hold and use, by /proc;
//! - [`interrupt`]: Ctrl-C ends in order what waits;
//! - [`error`]: one error for all of it, with what failed on which object.

pub mod bed;
pub mod cpu;
pub mod error;
pub mod interrupt;
pub mod netns;
pub mod process;
pub mod program;
pub mod sys;
pub mod weir;
