//! Skeleton of bpf/guard.bpf.c; its `types` are the structures of bpf/abi/guard.h.
#![allow(missing_docs, clippy::all, clippy::undocumented_unsafe_blocks)]

include!(concat!(env!("OUT_DIR"), "/guard.skel.rs"));
