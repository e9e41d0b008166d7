//! The headers in bpf/ are the only source of what the BPF programs and user space agree on.

#[path = "../build/compile.rs"]
mod compile;
#[allow(dead_code, reason = "the builds of two crates use it")]
#[path = "../../core/build/header.rs"]
mod header;

use std::path::{Path, PathBuf};
use std::process::Command;

use header::Headers;
use tempfile::TempDir;

fn bpf() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bpf")
}

/// The headers of a folder of bpf/, by their path from there.
fn headers(folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(bpf().join(folder)).unwrap();
    let name = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.unwrap().file_name().into_string().unwrap()
    };
    let names = entries.map(name).filter(|name| name.ends_with(".h"));
    names.map(|name| format!("{folder}/{name}")).collect()
}

/// A copy of bpf/.
fn copy() -> TempDir {
    let copy = tempfile::tempdir().unwrap();
    let status = Command::new("cp")
        .arg("-r")
        .arg(bpf().join("."))
        .arg(copy.path())
        .status();
    assert!(status.unwrap().success());
    copy
}

/// Makes another text of one in a file, at its first place.
fn change(path: &Path, from: &str, to: &str) {
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.contains(from), "{} has no {from:?}", path.display());
    std::fs::write(path, text.replacen(from, to, 1)).unwrap();
}

/// A copy of bpf/ in which one text is another.
fn changed(file: &str, from: &str, to: &str) -> TempDir {
    let copy = copy();
    change(&copy.path().join(file), from, to);
    copy
}

/// What the build makes of a program whose headers are in this folder.
fn skeleton(bpf: &Path, program: &str) -> String {
    let out = tempfile::NamedTempFile::new().unwrap();
    compile::skeleton(&bpf.join(program), bpf, out.path());
    std::fs::read_to_string(out.path()).unwrap()
}

/// What the build of this crate has made of a program.
fn built(program: &str) -> String {
    let name = program.strip_suffix(".bpf.c").unwrap();
    let path = Path::new(env!("OUT_DIR")).join(format!("{name}.skel.rs"));
    std::fs::read_to_string(path).unwrap()
}

/// The fields of the Rust structure that a skeleton has of a C one.
fn fields(skeleton: &str, name: &str) -> Vec<String> {
    let (_, body) = skeleton
        .split_once(&format!("pub struct {name} {{"))
        .expect("the structure is there");
    let (body, _) = body.split_once('}').unwrap();
    body.split(',')
        .map(|field| field.trim().to_owned())
        .filter(|field| !field.is_empty())
        .collect()
}

#[test]
fn every_header_compiles_alone() {
    let libbpf = Path::new(env!("DEP_BPF_INCLUDE"));
    let folder = tempfile::tempdir().unwrap();
    for header in [headers("abi"), headers("lib")].concat() {
        let source = folder.path().join("alone.c");
        std::fs::write(
            &source,
            format!("#include \"{header}\"\n#include \"{header}\"\n"),
        )
        .unwrap();
        assert!(
            compile::is_valid_with(&source, &bpf(), Some(libbpf)),
            "{header}"
        );
    }
}

/// arm64 orders what is around an atomic that has a result, and nothing around one without.
#[test]
fn an_ordered_atomic_keeps_the_result_that_nobody_uses() {
    let libbpf = Path::new(env!("DEP_BPF_INCLUDE"));
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("atomic.c");
    let made_of = |code: &str| {
        let code = format!(
            "#include \"lib/ledger.h\"\nint f(struct listen_state *s) {{ {code}; return 0; }}\n"
        );
        std::fs::write(&source, code).unwrap();
        compile::assembly(&source, &bpf(), libbpf)
    };
    for code in [
        "claim_begin(s)",
        "claims_first(s)",
        "claim_made(s->claim, 0)",
        "in_order(0)",
    ] {
        let made = made_of(code);
        assert!(made.contains("atomic_fetch_"), "{code}: {made}");
        assert!(!made.contains("lock *"), "{code}: {made}");
    }
    assert!(made_of("__sync_fetch_and_add(&s->claims, 1)").contains("lock *"));
}

#[test]
fn every_pure_header_compiles_natively_alone() {
    let folder = tempfile::tempdir().unwrap();
    let pure = headers("lib")
        .into_iter()
        .filter(|name| !name.ends_with(".bpf.h"));
    for header in pure
        .chain(headers("abi"))
        .filter(|name| name != "lib/kernel.h")
    {
        let source = folder.path().join("alone.c");
        std::fs::write(&source, format!("#include \"{header}\"\n")).unwrap();
        let mut cc = Command::new("cc");
        cc.args(["-fsyntax-only", "-I"]).arg(bpf()).arg(&source);
        assert!(cc.status().unwrap().success(), "{header}");
    }
}

#[test]
fn a_field_that_is_added_to_a_header_is_a_field_in_rust() {
    let guard: &[_] = &[
        ("guard_event", "__u32 class;"),
        ("listen_record", "__u32 addr[4];"),
    ];
    for (header, program, structures) in [
        ("abi/guard.h", "guard.bpf.c", guard),
        (
            "abi/queue.h",
            "queue.bpf.c",
            &[("parking_server", "__u64 socket;")],
        ),
        (
            "abi/quic.h",
            "quic.bpf.c",
            &[("quic_state", "__u64 service_ns;")],
        ),
        (
            "abi/splice.h",
            "splice.bpf.c",
            &[("splice_way", "__u64 redirected;")],
        ),
        (
            "abi/timewait.h",
            "timewait.bpf.c",
            &[("timewait_record", "__u64 until_ns;")],
        ),
    ] {
        let copy = copy();
        let path = copy.path().join(header);
        for (name, first) in structures {
            let begin = format!("struct {name} {{\n\t");
            let added = format!("{begin}__u64 added;\n\t{first}");
            change(&path, &format!("{begin}{first}"), &added);
        }
        // What is said of the old sizes is no longer so.
        let text = std::fs::read_to_string(&path).unwrap();
        let kept = text
            .lines()
            .filter(|line| !line.starts_with("_Static_assert(sizeof"));
        std::fs::write(&path, kept.collect::<Vec<_>>().join("\n")).unwrap();
        let (before, after) = (built(program), skeleton(copy.path(), program));
        for (name, _) in structures {
            let fields_after = fields(&after, name);
            assert_eq!(fields_after[0], "pub added: u64", "{name}");
            assert_eq!(fields_after[1..], fields(&before, name), "{name}");
        }
    }
}

#[test]
fn a_field_that_is_renamed_in_a_header_is_gone_in_rust() {
    let copy = changed("abi/class.h", "__u64 until_ns;", "__u64 ends_ns;");
    let rate = copy.path().join("lib/rate.bpf.h");
    let text = std::fs::read_to_string(&rate)
        .unwrap()
        .replace("->until_ns", "->ends_ns");
    std::fs::write(rate, text).unwrap();
    let after = fields(&skeleton(copy.path(), "guard.bpf.c"), "class_limit");
    assert_eq!(after, ["pub limit: bucket_limit", "pub ends_ns: u64"]);
}

#[test]
fn a_verdict_is_added_by_one_line() {
    let last = "\tX(syn_reset_residence, refuse, ";
    let copy = changed(
        "abi/guard.h",
        last,
        &format!("\tX(added, refuse, \"for a test\") \\\n{last}"),
    );
    let read = Headers::read(&copy.path().join("abi"));
    let names: Vec<_> = read.verdicts.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names[names.len() - 2..], ["added", "syn_reset_residence"]);
    let counters = fields(&skeleton(copy.path(), "guard.bpf.c"), "guard_counters");
    assert_eq!(counters.len(), names.len());
    assert_eq!(counters[names.len() - 2], "pub added: u64");
}

#[test]
fn a_value_that_rust_reads_wrongly_stops_the_build() {
    let source = |headers: &Headers, folder: &Path| {
        let source = folder.join("values.c");
        let includes = "#include \"abi/filters.h\"\n#include \"abi/guard.h\"\n#include \"abi/queue.h\"\n#include \"abi/quic.h\"\n#include \"abi/residence.h\"\n#include \"abi/shape.h\"\n#include \"abi/splice.h\"\n#include \"abi/timewait.h\"\n#include \"abi/watch.h\"\n";
        std::fs::write(&source, format!("{includes}{}", headers.assertions())).unwrap();
        source
    };
    let folder = tempfile::tempdir().unwrap();
    let mut headers = Headers::read(&bpf().join("abi"));
    assert!(compile::is_valid(&source(&headers, folder.path()), &bpf()));
    headers.constants[0].value += 1;
    assert!(!compile::is_valid(&source(&headers, folder.path()), &bpf()));
}
