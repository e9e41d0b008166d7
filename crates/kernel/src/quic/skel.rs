//! Skeleton of bpf/quic.bpf.c; its `types` are the structures of bpf/abi/quic.h.
#![allow(missing_docs, clippy::all, clippy::undocumented_unsafe_blocks)]

include!(concat!(env!("OUT_DIR"), "/quic.skel.rs"));
