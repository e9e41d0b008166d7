//! Links, anchors and config files of all Markdown pages.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use weir_testbed::pages::{self, Block, Page};

/// Stands before a fragment that does not have these tables itself.
const LISTENER: &str = "[[listener]]\nname = \"web\"\naddress = \"*:80\"\n";
const PROXY: &str = "[[proxy]]\nname = \"edge\"\nlisten = \"*:8080\"\nmode = \"reverse\"\nbackends = [\"10.0.0.5:80\"]\n";

fn is_elsewhere(link: &str) -> bool {
    ["http://", "https://", "mailto:"]
        .iter()
        .any(|scheme| link.starts_with(scheme))
}

/// What is wrong with a link to this place, if anything.
fn fault(
    anchors: &BTreeMap<PathBuf, BTreeSet<String>>,
    path: &Path,
    anchor: Option<&str>,
) -> Option<&'static str> {
    let exists = pages::root().unwrap().join(path).exists();
    match (anchor, anchors.get(path)) {
        _ if !exists => Some("there is no such file"),
        (None, _) => None,
        (Some(anchor), Some(known)) if known.contains(anchor) => None,
        (Some(_), Some(_)) => Some("the page has no such heading"),
        (Some(_), None) => Some("only pages have headings"),
    }
}

fn anchors(pages: &[Page]) -> BTreeMap<PathBuf, BTreeSet<String>> {
    let of = |page: &Page| (page.path.clone(), page.anchors.clone());
    pages.iter().map(of).collect()
}

#[test]
fn every_link_of_a_page_leads_to_a_file_and_a_heading() {
    let pages = pages::all().unwrap();
    let anchors = anchors(&pages);
    let mut faults = Vec::new();
    let mut seen = 0;
    for page in &pages {
        for link in page.links.iter().filter(|link| !is_elsewhere(&link.text)) {
            seen += 1;
            let fault = match page.target(&link.text) {
                None => Some("it leads out of the repository"),
                Some((path, anchor)) => fault(&anchors, &path, anchor.as_deref()),
            };
            faults.extend(
                fault.map(|fault| format!("{}: {}: {fault}", page.at(link.line), link.text)),
            );
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(seen > 100, "{seen} links");
}

/// Hints of errors and comments name pages too.
#[test]
fn every_page_that_the_sources_name_is_there() {
    let anchors = anchors(&pages::all().unwrap());
    let mut faults = Vec::new();
    let mut seen = 0;
    for end in [".rs", ".h", ".c", ".service", ".sh", "control.in"] {
        for file in pages::files(end).unwrap() {
            let text =
                std::fs::read_to_string(pages::root().unwrap().join(&file)).unwrap_or_default();
            for named in named_pages(&text) {
                seen += 1;
                let (path, anchor) = match named.split_once('#') {
                    Some((path, anchor)) => (path, Some(anchor)),
                    None => (named.as_str(), None),
                };
                let fault = fault(&anchors, Path::new(path), anchor);
                faults.extend(fault.map(|fault| format!("{}: {named}: {fault}", file.display())));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(seen > 10, "{seen} names");
}

/// `docs/….md`, with an anchor where there is one.
fn named_pages(text: &str) -> Vec<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "/-_.#".contains(c);
    let names = text.match_indices("docs/").filter_map(|(at, _)| {
        let rest = &text[at..];
        let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let name = rest[..end].trim_end_matches('.');
        name.contains(".md").then(|| name.to_owned())
    });
    names.collect()
}

#[test]
fn the_index_has_every_page_of_the_folder() {
    let index = Page::read("docs/README.md").unwrap();
    let named: BTreeSet<PathBuf> = index
        .links
        .iter()
        .filter_map(|link| Some(index.target(&link.text)?.0))
        .collect();
    let missing: Vec<PathBuf> = pages::files(".md")
        .unwrap()
        .into_iter()
        .filter(|path| path.starts_with("docs") && *path != index.path && !named.contains(path))
        .collect();
    assert!(
        missing.is_empty(),
        "docs/README.md does not name {missing:?}"
    );
}

/// A block fenced as `toml` is a whole file. One fenced as `toml fragment`, or one that is indented and begins with a
/// table, is a part of one: it passes beside a listener `web` and a proxy `edge`.
#[test]
fn every_config_file_of_a_page_passes_weir_check() {
    let folder = TempDir::with_prefix("weir-docs-").unwrap();
    let mut faults = Vec::new();
    let mut seen = 0;
    for page in pages::all().unwrap() {
        for block in page.blocks.iter().filter(|block| is_config(block)) {
            seen += 1;
            let file = folder.path().join("weir.toml");
            std::fs::write(&file, whole(block)).unwrap();
            let output = Command::new(env!("CARGO_BIN_EXE_weir"))
                .arg("check")
                .arg(&file)
                .output()
                .unwrap();
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stderr);
                faults.push(format!("{}:\n{}{said}", page.at(block.line), block.text));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(seen > 10, "{seen} config files");
}

fn is_config(block: &Block) -> bool {
    let mut lines = block.text.lines().map(str::trim);
    let first = lines
        .find(|line| !line.is_empty() && !line.starts_with('#'))
        .unwrap_or_default();
    // Those of systemd have a capital.
    let is_table = first
        .trim_start_matches('[')
        .starts_with(|c: char| c.is_ascii_lowercase());
    let is_table = first.starts_with('[') && first.ends_with(']') && is_table;
    block.info.starts_with("toml") || block.info.is_empty() && is_table
}

fn whole(block: &Block) -> String {
    if block.info == "toml" {
        return block.text.clone();
    }
    let missing =
        |table: &str, text: &'static str| match block.text.contains(&format!("[[{table}]]")) {
            true => "",
            false => text,
        };
    let listener = missing("listener", LISTENER);
    format!("{listener}{}{}", missing("proxy", PROXY), block.text)
}

/// What one looks things up in, and does not read from the begin to the end.
const REFERENCES: [&str; 5] = [
    "docs/dependencies.md",
    "docs/design/",
    "docs/glossary.md",
    "docs/metrics.md",
    "docs/reference.md",
];
const WORDS_OF_A_PAGE: usize = 1500;

#[test]
fn no_page_has_more_words_than_one_reads_in_ten_minutes() {
    let pages = pages::all().unwrap();
    let is_reference = |path: &Path| {
        let path = path.to_string_lossy();
        REFERENCES.iter().any(|start| path.starts_with(start))
    };
    let of_docs = pages.iter().filter(|page| page.path.starts_with("docs"));
    let read: Vec<&Page> = of_docs.filter(|page| !is_reference(&page.path)).collect();
    let words = |page: &Page| -> usize {
        let written = page.paragraphs.iter().filter(|one| !one.generated);
        written.map(|one| one.text.split_whitespace().count()).sum()
    };
    let counted = read.iter().map(|page| (page.path.display(), words(page)));
    let (short, long): (Vec<_>, Vec<_>) = counted.partition(|(_, n)| *n <= WORDS_OF_A_PAGE);
    assert!(long.is_empty(), "over {WORDS_OF_A_PAGE} words: {long:?}");
    assert!(short.len() > 50, "{} pages", short.len());
}
