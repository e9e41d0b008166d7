//! Skeleton of bpf/queue.bpf.c; its `types` are the structures of bpf/abi/queue.h.
#![allow(missing_docs, clippy::all, clippy::undocumented_unsafe_blocks)]

include!(concat!(env!("OUT_DIR"), "/queue.skel.rs"));
