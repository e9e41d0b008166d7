//! Compiles the BPF programs in `bpf/` and makes their skeletons.
//!
//! The compiler is `$CLANG`, or `clang-16`, or any later `clang`: 14 drops the type tags that
//! kernel functions need.

use std::path::{Path, PathBuf};
use std::process::Command;

use libbpf_cargo::SkeletonBuilder;

fn main() {
    let root = Path::new(&std::env::var("CARGO_MANIFEST_DIR").unwrap()).join("../..");
    let bpf = root.canonicalize().unwrap().join("bpf");
    let out = PathBuf::from(std::env::var("OUT_DIR").unwrap());
    println!("cargo:rerun-if-changed={}", bpf.display());
    println!("cargo:rerun-if-env-changed=CLANG");
    let clang = compiler();
    build_pure(&bpf);
    for (source, name) in [
        ("guard.bpf.c", "guard"),
        ("queue.bpf.c", "queue"),
        ("splice.bpf.c", "splice"),
        ("tests/bench.bpf.c", "bench"),
    ] {
        SkeletonBuilder::new()
            .source(bpf.join(source))
            .clang(&clang)
            .clang_args([
                "-mcpu=v3".to_owned(),
                "-Wall".to_owned(),
                "-Wextra".to_owned(),
                "-Wno-unused-parameter".to_owned(),
                // Checksums read headers as words, as the kernel itself does.
                "-fno-strict-aliasing".to_owned(),
                "-Werror".to_owned(),
                // bpf_tracing.h wants to know whose registers; these programs read none.
                "-D__TARGET_ARCH_x86".to_owned(),
                format!("-I{}", bpf.display()),
                // The paths in the programs' line information do not depend on where they are compiled.
                format!("-ffile-prefix-map={}=bpf", bpf.display()),
                format!(
                    "-I/usr/include/{}-linux-gnu",
                    std::env::var("CARGO_CFG_TARGET_ARCH").unwrap()
                ),
            ])
            .build_and_generate(out.join(format!("{name}.skel.rs")))
            .unwrap_or_else(|e| panic!("bpf/{source} does not compile with {clang}: {e:#}"));
    }
}

/// The pure headers once more, natively, for the property tests.
fn build_pure(bpf: &Path) {
    cc::Build::new()
        .file(bpf.join("tests/pure.c"))
        .flag("-fno-strict-aliasing")
        .flag_if_supported("-Wno-unused-function")
        .flag_if_supported("-Wno-unknown-pragmas")
        .flag_if_supported("-Wno-address-of-packed-member")
        .opt_level(1)
        .compile("weir_pure");
}

fn compiler() -> String {
    if let Ok(chosen) = std::env::var("CLANG") {
        return chosen;
    }
    let runs = |name: &&&str| Command::new(name).arg("--version").output().is_ok();
    [
        "clang-16", "clang-17", "clang-18", "clang-19", "clang-20", "clang",
    ]
    .iter()
    .find(runs)
    .unwrap_or_else(|| panic!("no clang found; `scripts/setup` installs clang-16"))
    .to_string()
}
