//! Makes `abi.rs` and `verdicts.rs` from the headers in bpf/abi/, so that a constant, an enumeration or a
//! verdict is declared once for the BPF programs, the models, the metrics, the status columns and the docs.

#[allow(dead_code, reason = "the builds of two crates use it")]
mod header;

use std::fmt::Write as _;
use std::path::Path;

use header::{Constant, Headers, VerdictRow};

fn main() {
    let folder = Path::new(&std::env::var("CARGO_MANIFEST_DIR").unwrap()).join("../../bpf/abi");
    println!("cargo:rerun-if-changed={}", folder.display());
    println!("cargo:rerun-if-changed=build");
    let headers = Headers::read(&folder);
    let out = std::env::var("OUT_DIR").unwrap();
    let write = |name: &str, text: String| {
        std::fs::write(Path::new(&out).join(name), text).expect("OUT_DIR is writable");
    };
    write("abi.rs", constants(&headers));
    let guard = Names {
        verdict: "Verdict",
        all: "VERDICTS",
        info: "VerdictInfo",
        decides: "the guard decided about a packet",
        declared: "`enum verdict` in bpf/abi/guard.h",
    };
    write("verdicts.rs", verdicts(&headers.verdicts, &guard));
    let quic = Names {
        verdict: "QuicVerdict",
        all: "QUIC_VERDICTS",
        info: "QuicVerdictInfo",
        decides: "weir decided about an attempt to open a QUIC connection",
        declared: "`enum quic_verdict` in bpf/abi/quic.h",
    };
    write("quic_verdicts.rs", verdicts(&headers.quic_verdicts, &quic));
}

/// Sizes are u32, as in the programs; members of enumerations u8, as in the structures.
fn constants(headers: &Headers) -> String {
    let mut s = String::new();
    let mut add = |constant: &Constant, ty: &str, max: u64| {
        let Constant {
            name,
            c_name,
            value,
            text,
        } = constant;
        assert!(*value <= max, "bpf/abi: {c_name} is too large for {ty}");
        let text = text.trim_end_matches('.').replace(['<', '>', '[', ']'], "");
        let text = match text.is_empty() {
            true => format!("`{c_name}`"),
            false => format!("{text} (`{c_name}`)"),
        };
        writeln!(s, "/// {text}.\npub const {name}: {ty} = {value};").unwrap();
    };
    headers
        .constants
        .iter()
        .for_each(|constant| add(constant, "u32", u32::MAX.into()));
    headers
        .enumerators
        .iter()
        .for_each(|constant| add(constant, "u8", u8::MAX.into()));
    s
}

fn variant(name: &str) -> String {
    name.split('_')
        .map(|w| w[..1].to_uppercase() + &w[1..])
        .collect()
}

/// How Rust names what comes from a list of verdicts.
struct Names {
    /// The enumeration.
    verdict: &'static str,
    /// All of them.
    all: &'static str,
    /// The type of a row.
    info: &'static str,
    decides: &'static str,
    declared: &'static str,
}

fn verdicts(rows: &[VerdictRow], names: &Names) -> String {
    let Names {
        verdict,
        all,
        info,
        decides,
        declared,
    } = names;
    let mut s = format!(
        "/// What {decides}. Discriminants are those of {declared}.\n\
         #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]\n#[repr(u8)]\npub enum {verdict} {{\n",
    );
    for row in rows {
        writeln!(s, "    /// {}.\n    {},", row.text, variant(&row.name)).unwrap();
    }
    let count = rows.len();
    writeln!(
        s,
        "}}\n\n/// Every verdict with its name, kind and text, in the order of {declared}.\npub const {all}: [{info}; {count}] = ["
    )
    .unwrap();
    for row in rows {
        let (v, k) = (variant(&row.name), variant(&row.kind));
        writeln!(
            s,
            "    {info} {{ verdict: {verdict}::{v}, name: \"{}\", kind: Kind::{k}, text: \"{}\" }},",
            row.name, row.text
        )
        .unwrap();
    }
    s.push_str("];\n");
    s
}
