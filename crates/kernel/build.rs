//! Compiles the BPF programs and makes their skeletons.
fn main() {}
