//! Constants and enumerations of bpf/abi/: what the BPF programs and user space agree on. Made from those
//! headers when this crate is built (build/main.rs); weir-kernel has the structures.

include!(concat!(env!("OUT_DIR"), "/abi.rs"));
