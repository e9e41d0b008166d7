//! Makes `verdicts.rs` from the list GUARD_VERDICTS in bpf/abi.h, so that a verdict is declared
//! once for the BPF programs, the metrics, the status columns and the documentation.

use std::fmt::Write as _;
use std::path::Path;

struct Row {
    name: String,
    kind: String,
    text: String,
}

fn main() {
    let abi = Path::new(&std::env::var("CARGO_MANIFEST_DIR").unwrap()).join("../../bpf/abi.h");
    println!("cargo:rerun-if-changed={}", abi.display());
    println!("cargo:rerun-if-changed=build.rs");
    let source = std::fs::read_to_string(&abi).expect("bpf/abi.h is readable");
    let rows = verdict_rows(&source);
    assert!(!rows.is_empty(), "bpf/abi.h has no GUARD_VERDICTS list");
    let out = Path::new(&std::env::var("OUT_DIR").unwrap()).join("verdicts.rs");
    std::fs::write(out, rust_source(&rows)).expect("OUT_DIR is writable");
}

/// Reads the lines `X(name, kind, "text")` between `#define GUARD_VERDICTS(X)` and the first
/// line that does not continue.
fn verdict_rows(source: &str) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut lines = source
        .lines()
        .skip_while(|l| !l.starts_with("#define GUARD_VERDICTS(X)"));
    lines.next();
    for line in lines {
        let Some(body) = line.trim().strip_prefix("X(") else {
            break;
        };
        let mut parts = body.splitn(3, ',').map(str::trim);
        let (name, kind) = (parts.next().expect("name"), parts.next().expect("kind"));
        let text = parts
            .next()
            .expect("text")
            .trim_end_matches('\\')
            .trim_end();
        let text = text
            .strip_prefix('"')
            .and_then(|t| t.strip_suffix("\")"))
            .expect("quoted text");
        rows.push(Row {
            name: name.into(),
            kind: kind.into(),
            text: text.into(),
        });
        if !line.trim_end().ends_with('\\') {
            break;
        }
    }
    rows
}

fn variant(name: &str) -> String {
    name.split('_')
        .map(|w| w[..1].to_uppercase() + &w[1..])
        .collect()
}

fn rust_source(rows: &[Row]) -> String {
    let mut s = String::from(
        "/// What the guard decided about a packet. Discriminants are the indices of `enum verdict` in bpf/abi.h.\n\
         #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]\n#[repr(u8)]\npub enum Verdict {\n",
    );
    for row in rows {
        writeln!(s, "    /// {}.\n    {},", row.text, variant(&row.name)).unwrap();
    }
    s.push_str("}\n\n/// Every verdict with its name, kind and text, in the order of bpf/abi.h.\n");
    writeln!(s, "pub const VERDICTS: [VerdictInfo; {}] = [", rows.len()).unwrap();
    for row in rows {
        let (v, k) = (variant(&row.name), variant(&row.kind));
        writeln!(
            s,
            "    VerdictInfo {{ verdict: Verdict::{v}, name: \"{}\", kind: Kind::{k}, text: \"{}\" }},",
            row.name, row.text
        )
        .unwrap();
    }
    s.push_str("];\n");
    s
}
