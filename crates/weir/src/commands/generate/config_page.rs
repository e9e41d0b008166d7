//! weir.toml(5): the tables and keys of the config file, from the declarations that `docs/reference.md` is made of.

use std::fmt::Write as _;

use weir_config::{KeyDoc, TableDoc, tables};

use super::man::{CONFIG, escaped, references};

const DESCRIPTION: &str = "\
The listeners that \\fBweir run\\fR guards, the proxies of \\fBweir proxy\\fR, and what goes with them, in TOML. \
\\fBweir check \\-\\-example\\fR prints a file with every key, \\fBweir check FILE\\fR shows the values in effect, and \
\\fBweir explain KEY\\fR explains one key. weir refuses unknown tables and keys.
.PP
A duration is a number with its unit: us, ms, s, min or h (\"1.5s\"). A size is a whole number with its unit: B, KiB, MiB \
or GiB. Words, names, addresses, durations and sizes stand in double quotes; numbers, true and false stand without. Of \
keys that take the word none, none takes the value away.
";

const EXAMPLE: &str = "\
[[listener]]
name = \"web\"
address = \"*:80\"

[[class]]
name = \"crawlers\"
from = [\"192.0.2.0/24\"]
rate = 20
";

/// The page; `others` are the names of the commands' pages.
pub fn page(others: &[String]) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let mut page = format!(
        ".TH WEIR.TOML {} \"\" \"weir {version}\" \"\"\n\
         .SH NAME\nweir.toml \\- the config file of weir\n.SH DESCRIPTION\n{DESCRIPTION}",
        CONFIG.1,
    );
    for table in tables() {
        write_table(&mut page, table);
    }
    let _ = write!(page, ".SH EXAMPLE\n.nf\n{}.fi\n", escaped(EXAMPLE));
    page += ".SH FILES\n.TP\n\\fB/etc/weir/weir.toml\\fR\nThe config file of the packaged units.\n";
    page += ".SH \"SEE ALSO\"\n";
    page += &(references(others) + "\n");
    page
}

fn write_table(page: &mut String, table: &TableDoc) {
    let (head, text) = (escaped(&table.head), escaped(table.text));
    let _ = writeln!(
        page,
        ".SH \"{}\"\n{head}\n.PP\n{text}",
        table.title.to_uppercase()
    );
    for key in &table.keys {
        write_key(page, key);
    }
}

fn write_key(page: &mut String, key: &KeyDoc) {
    let unit = match key.unit {
        "" => String::new(),
        unit => format!(", in {unit}"),
    };
    let default = match (key.is_required, key.absent) {
        (true, _) => "Required.".to_owned(),
        (_, Some(absent)) => format!("Default: {}.", escaped(absent)),
        _ => format!("Default: {}.", escaped(&key.default)),
    };
    let _ = writeln!(
        page,
        ".TP\n\\fB{}\\fR = \\fI{}{unit}\\fR\n{}. {}\n.br\nValues: {}. {default} Since {}.",
        escaped(key.name),
        key.type_name,
        escaped(key.text),
        escaped(key.note),
        escaped(&key.values),
        key.since,
    );
    for (word, text) in &key.words {
        let _ = writeln!(
            page,
            ".RS\n.IP \\fB{}\\fR\n{}\n.RE",
            escaped(word),
            escaped(text)
        );
    }
}
