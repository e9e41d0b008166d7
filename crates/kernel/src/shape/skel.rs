//! Skeleton of bpf/shape.bpf.c.
#![allow(missing_docs, clippy::all, clippy::undocumented_unsafe_blocks)]

include!(concat!(env!("OUT_DIR"), "/shape.skel.rs"));
