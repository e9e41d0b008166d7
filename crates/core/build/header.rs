//! Reads the headers in bpf/abi/: constants, enumerations and the list of verdicts.
//!
//! It reads what those headers contain and stops the build at anything else, so that nothing is overlooked.
//! The build of weir-kernel asks the C compiler whether it read every value right
//! ([`Headers::assertions`]).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

/// What crosses between BPF and Rust, without the structures.
#[derive(Default)]
pub struct Headers {
    /// `#define WEIR_NAME value`, without the prefix, in the order of the headers.
    pub constants: Vec<Constant>,
    /// The enumerators of every enumeration but those of verdicts.
    pub enumerators: Vec<Constant>,
    /// The rows of GUARD_VERDICTS.
    pub verdicts: Vec<VerdictRow>,
    /// The rows of QUIC_VERDICTS.
    pub quic_verdicts: Vec<VerdictRow>,
}

/// A number with a name.
pub struct Constant {
    /// As Rust has it.
    pub name: String,
    /// As C has it.
    pub c_name: String,
    /// Its value.
    pub value: u64,
    /// The comment before it, or the enumeration that it is of.
    pub text: String,
}

/// `X(name, kind, "text")`.
pub struct VerdictRow {
    pub name: String,
    pub kind: String,
    pub text: String,
}

impl Headers {
    /// Reads every header of the folder.
    pub fn read(folder: &Path) -> Headers {
        let entries =
            std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        let mut paths: Vec<_> = entries
            .map(|entry| entry.expect("readable").path())
            .collect();
        paths.sort();
        let mut headers = Headers::default();
        let mut values = BTreeMap::new();
        for path in paths
            .iter()
            .filter(|path| path.extension().is_some_and(|e| e == "h"))
        {
            let source =
                std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            headers.read_constants(&source, &mut values);
            headers.read_enumerations(&source);
            let rows = |list| verdict_rows(&source, list);
            headers.verdicts.extend(rows("GUARD_VERDICTS"));
            headers.quic_verdicts.extend(rows("QUIC_VERDICTS"));
        }
        assert!(
            !headers.verdicts.is_empty() && !headers.quic_verdicts.is_empty(),
            "bpf/abi has no list GUARD_VERDICTS, or no QUIC_VERDICTS"
        );
        headers
    }

    fn read_constants(&mut self, source: &str, values: &mut BTreeMap<String, u64>) {
        let mut comment = String::new();
        for line in source.lines() {
            let Some(definition) = line.strip_prefix("#define WEIR_") else {
                comment = match line
                    .strip_prefix("/* ")
                    .and_then(|text| text.strip_suffix(" */"))
                {
                    Some(text) => text.to_owned(),
                    None => String::new(),
                };
                continue;
            };
            let (name, expression) = match definition.split_once(char::is_whitespace) {
                Some(parts) => parts,
                // An include guard.
                None => continue,
            };
            let value = value_of(expression.trim(), values).unwrap_or_else(|| {
                panic!("bpf/abi: cannot read the value of WEIR_{name}: {expression}")
            });
            let c_name = format!("WEIR_{name}");
            values.insert(c_name.clone(), value);
            let text = std::mem::take(&mut comment);
            self.constants.push(Constant {
                name: name.to_owned(),
                c_name,
                value,
                text,
            });
        }
    }

    fn read_enumerations(&mut self, source: &str) {
        let mut rest = source;
        while let Some(at) = rest.find("\nenum ") {
            rest = &rest[at + "\nenum ".len()..];
            let (name, body) = rest.split_once('{').expect("an enumeration has a body");
            let (body, _) = body.split_once("};").expect("an enumeration ends");
            let name = name.trim();
            // Made from a list of verdicts.
            if name.ends_with("verdict") {
                continue;
            }
            let members = body
                .split(',')
                .map(str::trim)
                .filter(|member| !member.is_empty());
            for (value, member) in members.enumerate() {
                let plain = member
                    .bytes()
                    .all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_');
                assert!(plain, "bpf/abi: cannot read `{member}` in enum {name}");
                self.enumerators.push(Constant {
                    name: member.to_owned(),
                    c_name: member.to_owned(),
                    value: value as u64,
                    text: format!("Of `enum {name}`"),
                });
            }
        }
    }

    /// C code that does not compile unless the compiler has the same values.
    pub fn assertions(&self) -> String {
        let mut c = String::new();
        for constant in self.constants.iter().chain(&self.enumerators) {
            let Constant { c_name, value, .. } = constant;
            writeln!(c, "_Static_assert({c_name} == {value}u, \"{c_name}\");").unwrap();
        }
        for (count, rows) in [
            ("VERDICT_COUNT", &self.verdicts),
            ("QUIC_VERDICT_COUNT", &self.quic_verdicts),
        ] {
            for (index, VerdictRow { name, .. }) in rows.iter().enumerate() {
                writeln!(c, "_Static_assert(VERDICT_{name} == {index}, \"{name}\");").unwrap();
            }
            let all = rows.len();
            writeln!(c, "_Static_assert({count} == {all}, \"{count}\");").unwrap();
        }
        c
    }
}

/// A number, a known name, or two of these with an operator.
fn value_of(expression: &str, values: &BTreeMap<String, u64>) -> Option<u64> {
    let expression = match expression.strip_prefix('(') {
        Some(inner) => inner.strip_suffix(')')?,
        None => expression,
    };
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    let operand = |text: &str| number(text).or_else(|| values.get(text).copied());
    match expression.split_whitespace().collect::<Vec<_>>()[..] {
        [one] => operand(one),
        [one, "<<", two] => Some(operand(one)? << operand(two)?),
        [one, "+", two] => Some(operand(one)? + operand(two)?),
        [one, "*", two] => Some(operand(one)? * operand(two)?),
        _ => None,
    }
}

/// The lines `X(name, kind, "text")` between `#define LIST(X)` and the first line that does not
/// continue.
fn verdict_rows(source: &str, list: &str) -> Vec<VerdictRow> {
    let mut rows = Vec::new();
    let begin = format!("#define {list}(X)");
    let mut lines = source.lines().skip_while(|line| !line.starts_with(&begin));
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
        rows.push(VerdictRow {
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
