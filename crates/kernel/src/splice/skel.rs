//! Skeleton of bpf/splice.bpf.c; its `types` are the structures of bpf/abi/splice.h.
#![allow(missing_docs, clippy::all, clippy::undocumented_unsafe_blocks)]

include!(concat!(env!("OUT_DIR"), "/splice.skel.rs"));
