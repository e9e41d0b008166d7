//! What weir's integration tests and its lab run in: namespaces of their own, with links, devices and the
//! built `weir` in them.
//!
//! - [`netns`]: network namespaces that remove themselves;
//! - [`bed`]: a server namespace and a client namespace with links, and the kernel's counters;
//! - [`sockets`]: listeners and clients inside namespaces, and how it went for each client;
//! - [`closing`]: many connections, each of which a given end closes first;
//! - [`duplicates`]: segments of closed connections that come late;
//! - [`quic`]: QUIC servers and clients;
//! - [`raw`]: hosts made of frames, for what no socket sends;
//! - [`program`]: the project's own programs, and one that runs in the background;
//! - [`weir`], [`proxy`]: a `weir run` and a `weir proxy`, with what they need;
//! - [`tomcat`]: Debian's Tomcat in a folder of the test's own;
//! - [`pages`]: the Markdown pages of the repository, and what is in them;
//! - [`tcp_table`]: the TCP sockets of a namespace;
//! - [`process`], [`cpu`]: what processes and CPUs hold and use, by /proc;
//! - [`stranger`]: BPF programs of somebody else on an interface;
//! - [`cgroup`]: a control group with processes of a test;
//! - [`seed`]: the seed of a test with random input;
//! - [`needs`]: what a test needs of the machine, and how it skips;
//! - [`wait`]: waiting for conditions;
//! - [`interrupt`]: Ctrl-C ends in order what waits;
//! - [`error`]: one error for all of it, with what failed on which object.

mod anchors;
pub mod bed;
pub mod cgroup;
pub mod closing;
pub mod cpu;
pub mod duplicates;
pub mod error;
pub mod interrupt;
pub mod needs;
pub mod netns;
pub mod pages;
pub mod paragraphs;
pub mod process;
pub mod program;
pub mod proxy;
pub mod quic;
pub mod raw;
pub mod seed;
pub mod sockets;
pub mod stranger;
pub mod sys;
pub mod tcp_table;
pub mod tomcat;
pub mod wait;
pub mod weir;
