//! Skeleton of bpf/residence.bpf.c.
#![allow(missing_docs, clippy::all, clippy::undocumented_unsafe_blocks)]

include!(concat!(env!("OUT_DIR"), "/residence.skel.rs"));
