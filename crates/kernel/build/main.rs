//! Compiles the BPF programs in bpf/ and makes their skeletons, whose `types` are the structures of bpf/abi/.

mod compile;
#[allow(dead_code, reason = "the builds of two crates use it")]
#[path = "../../core/build/header.rs"]
mod header;

use std::path::{Path, PathBuf};

use compile::{is_valid, skeleton, skeleton_of};
use header::Headers;
use libbpf_cargo::SkeletonBuilder;

/// What weir runs: source in bpf/ and name of the skeleton.
const PROGRAMS: [(&str, &str); 11] = [
    ("discover.bpf.c", "discover"),
    ("filters.bpf.c", "filters"),
    ("guard.bpf.c", "guard"),
    ("qdisc.bpf.c", "qdisc"),
    ("queue.bpf.c", "queue"),
    ("quic.bpf.c", "quic"),
    ("residence.bpf.c", "residence"),
    ("shape.bpf.c", "shape"),
    ("splice.bpf.c", "splice"),
    ("timewait.bpf.c", "timewait"),
    ("watch.bpf.c", "watch"),
];

fn main() {
    let root = Path::new(&std::env::var("CARGO_MANIFEST_DIR").unwrap()).join("../..");
    let bpf = root.canonicalize().unwrap().join("bpf");
    let out = PathBuf::from(std::env::var("OUT_DIR").unwrap());
    println!("cargo:rerun-if-changed={}", bpf.display());
    println!("cargo:rerun-if-changed=build");
    println!("cargo:rerun-if-changed=../core/build/header.rs");
    println!("cargo:rerun-if-env-changed=CLANG");
    check_values(&bpf, &out);
    for (source, name) in PROGRAMS {
        skeleton(
            &bpf.join(source),
            &bpf,
            &out.join(format!("{name}.skel.rs")),
        );
    }
    // For tests and benchmarks only.
    if std::env::var_os("CARGO_FEATURE_TESTING").is_some() {
        let mut builder = SkeletonBuilder::new();
        // Of the guard's name: it uses the maps of a guard that is loaded.
        let objects = out.join("testing");
        std::fs::create_dir_all(&objects).expect("OUT_DIR is writable");
        builder.obj(objects.join("guard.o"));
        let source = bpf.join("tests/bench.bpf.c");
        skeleton_of(&mut builder, &source, &bpf, &out.join("bench.skel.rs"));
        for name in ["datagrams", "options"] {
            let source = bpf.join(format!("tests/{name}.bpf.c"));
            skeleton(&source, &bpf, &out.join(format!("{name}.skel.rs")));
        }
        build_pure(&bpf);
        if let Ok(libbpf) = std::env::var("DEP_BPF_INCLUDE") {
            println!("cargo:rustc-env=DEP_BPF_INCLUDE={libbpf}");
        }
    }
}

/// Has the compiler confirm each constant, enumerator and verdict that Rust reads from the headers' text.
fn check_values(bpf: &Path, out: &Path) {
    let headers = Headers::read(&bpf.join("abi"));
    let source = out.join("values.c");
    let code = format!(
        "#include \"abi/filters.h\"\n#include \"abi/guard.h\"\n#include \"abi/queue.h\"\n#include \"abi/quic.h\"\n#include \"abi/residence.h\"\n\
         #include \"abi/shape.h\"\n#include \"abi/splice.h\"\n#include \"abi/timewait.h\"\n#include \"abi/watch.h\"\n{}",
        headers.assertions()
    );
    std::fs::write(&source, code).expect("OUT_DIR is writable");
    assert!(
        is_valid(&source, bpf),
        "clang and crates/core/build/header.rs read different values from bpf/abi"
    );
}

/// The pure headers once more, natively, for the property tests.
fn build_pure(bpf: &Path) {
    cc::Build::new()
        .file(bpf.join("tests/pure.c"))
        .include(bpf)
        .flag("-fno-strict-aliasing")
        .flag_if_supported("-Wno-unused-function")
        .flag_if_supported("-Wno-unknown-pragmas")
        .flag_if_supported("-Wno-address-of-packed-member")
        .opt_level(1)
        .compile("weir_pure");
}
