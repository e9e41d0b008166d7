//! How the BPF programs are compiled; for the build and for the tests of the headers.
//!
//! The compiler is `$CLANG`, or `clang-16`, or any later `clang`: 14 drops the type tags that
//! kernel functions need.

use std::path::Path;
use std::process::Command;

use libbpf_cargo::SkeletonBuilder;

/// Compiles a program and writes its skeleton, whose `types` are the structures that its BTF describes.
/// `bpf` is the folder with the headers.
///
/// # Panics
/// It does not compile.
pub fn skeleton(source: &Path, bpf: &Path, to: &Path) {
    skeleton_of(&mut SkeletonBuilder::new(), source, bpf, to);
}

/// The same, with settings of the caller's: the name of the object is part of its maps' names.
pub fn skeleton_of(builder: &mut SkeletonBuilder, source: &Path, bpf: &Path, to: &Path) {
    let clang = compiler();
    builder
        .source(source)
        .clang(&clang)
        .clang_args(arguments(bpf))
        .build_and_generate(to)
        .unwrap_or_else(|e| panic!("{} does not compile with {clang}: {e:#}", source.display()));
}

/// Whether this C source is valid for BPF. It includes none of libbpf's headers.
pub fn is_valid(source: &Path, bpf: &Path) -> bool {
    is_valid_with(source, bpf, None)
}

/// The same of one that may include libbpf's headers, which are in this folder.
pub fn is_valid_with(source: &Path, bpf: &Path, libbpf: Option<&Path>) -> bool {
    let mut command = Command::new(compiler());
    command.args(["-target", "bpf", "-O2", "-fsyntax-only"]);
    command.args(libbpf.map(|folder| format!("-I{}", folder.display())));
    let status = command.args(arguments(bpf)).arg(source).status();
    status.is_ok_and(|status| status.success())
}

/// What the compiler makes of this C source, as text.
#[allow(dead_code, reason = "for the tests of the headers")]
pub fn assembly(source: &Path, bpf: &Path, libbpf: &Path) -> String {
    let mut command = Command::new(compiler());
    command.args(["-target", "bpf", "-O2", "-S", "-o", "-"]);
    command.arg(format!("-I{}", libbpf.display()));
    let output = command.args(arguments(bpf)).arg(source).output();
    String::from_utf8(output.expect("clang runs").stdout).expect("text")
}

fn arguments(bpf: &Path) -> Vec<String> {
    let arch = std::env::consts::ARCH;
    vec![
        "-mcpu=v3".to_owned(),
        "-Wall".to_owned(),
        "-Wextra".to_owned(),
        "-Wno-unused-parameter".to_owned(),
        // A header alone uses none of what it declares.
        "-Wno-unused-function".to_owned(),
        // Checksums read headers as words, as the kernel itself does.
        "-fno-strict-aliasing".to_owned(),
        "-Werror".to_owned(),
        // bpf_tracing.h wants to know whose registers. These programs read none, so they are the same for every machine.
        "-D__TARGET_ARCH_x86".to_owned(),
        // The paths in the programs' line information do not depend on where they are compiled.
        format!("-ffile-prefix-map={}=bpf", bpf.display()),
        format!("-I{}", bpf.display()),
        // Linux's headers, where Debian has them.
        format!("-I/usr/include/{arch}-linux-gnu"),
    ]
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
