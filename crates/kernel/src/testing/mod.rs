//! The programs and the pure C code under test and under measurement. Only with feature `testing`, which tests
//! and benchmarks of this crate have.

pub mod calls;
pub mod datagrams;
pub mod kills;
pub mod migration;
pub mod negotiate;
pub mod options;
pub mod pure;
pub mod qdisc;
pub mod quic;
pub mod run;
mod skel;
