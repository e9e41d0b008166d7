//! Skeleton of bpf/watch.bpf.c.
#![allow(missing_docs, clippy::all, clippy::undocumented_unsafe_blocks)]

include!(concat!(env!("OUT_DIR"), "/watch.skel.rs"));
