//! Fuzzing of everything in weir that reads bytes of somebody else.
//!
//! `src/targets` has a function for each reader: it takes any bytes, and panics where something does not hold that
//! must. Two programs call them:
//!
//! - `src/fuzz.rs` under libFuzzer (`make fuzz`), which looks for bytes that reach new code;
//! - `src/replay.rs`, a test of the stable toolchain: the committed inputs (`corpus`), and each with small damage.
//!
//! The C core, `bpf/lib`, is also fuzzed by itself, with sanitizers: `bpf/tests/fuzz.c`.

use std::path::{Path, PathBuf};

/// Longest committed input, in bytes: a corpus stays small enough to read and to replay in every test run.
pub const INPUT_BYTES_MAX: u64 = 4096;

/// The folder of the inputs of a target.
pub fn folder(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(target)
}

/// The committed inputs of a target with their file names, in the order of these.
///
/// # Panics
/// The folder cannot be read.
pub fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = folder(target);
    let entries =
        std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.expect("a folder is listed to its end").path())
        .collect();
    paths.sort();
    let read = |path: &PathBuf| {
        let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let name = path.file_name().unwrap_or_default();
        (name.to_string_lossy().into_owned(), bytes)
    };
    paths.iter().map(read).collect()
}
