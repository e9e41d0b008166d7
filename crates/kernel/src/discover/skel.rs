//! Skeleton of bpf/discover.bpf.c; its `types` are the structures of bpf/abi/discover.h.
#![allow(missing_docs, clippy::all, clippy::undocumented_unsafe_blocks)]

include!(concat!(env!("OUT_DIR"), "/discover.skel.rs"));
