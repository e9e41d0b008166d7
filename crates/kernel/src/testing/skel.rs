//! Skeleton of bpf/tests/bench.bpf.c, with the types of the pure headers.
#![allow(missing_docs, clippy::all, clippy::undocumented_unsafe_blocks)]

include!(concat!(env!("OUT_DIR"), "/bench.skel.rs"));
