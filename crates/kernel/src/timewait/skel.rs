//! Skeleton of bpf/timewait.bpf.c; its `types` are the structures of bpf/abi/timewait.h.
#![allow(missing_docs, clippy::all, clippy::undocumented_unsafe_blocks)]

include!(concat!(env!("OUT_DIR"), "/timewait.skel.rs"));
