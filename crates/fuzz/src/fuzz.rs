//! The fuzzer: libFuzzer on the target that `$WEIR_FUZZ_TARGET` names. `scripts/fuzz` builds and runs it.
#![no_main]

mod targets;

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;

static TARGET: OnceLock<fn(&[u8])> = OnceLock::new();

fn chosen() -> fn(&[u8]) {
    let name = std::env::var("WEIR_FUZZ_TARGET").unwrap_or_default();
    let found = targets::TARGETS.iter().find(|target| target.name == name);
    let names: Vec<&str> = targets::TARGETS.iter().map(|target| target.name).collect();
    let found = found.unwrap_or_else(|| panic!("WEIR_FUZZ_TARGET is one of {names:?}"));
    found.run
}

fuzz_target!(|data: &[u8]| TARGET.get_or_init(chosen)(data));
