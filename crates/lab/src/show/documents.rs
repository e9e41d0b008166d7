//! Tables in the documents, written from results.
//!
//! `experiments/tables.toml` says what is in each; a document has it between `<!-- table: NAME -->` and `<!-- end -->`.
//! `papers: KEY` is a table of the verdicts of a paper, which needs no line there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::quotes;
use super::template::fill;
use crate::error::{Context, Error, Result};
use crate::papers::markdown;
use crate::run::results::{Case, Parameters, Results};
use crate::run::store;

/// One table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Spec {
    /// Results file, from `experiments/`.
    results: String,
    /// The file may be missing: nobody has measured it yet, and the documents say so.
    #[serde(default)]
    awaited: bool,
    /// Heads of the columns: templates parted by ` | `.
    head: String,
    /// Parameters of the cases in it; values may be several, parted by `|`.
    #[serde(default)]
    only: Parameters,
    /// A row for each case: templates parted by ` | `.
    #[serde(default)]
    each: String,
    /// Rows for no case in particular: each reference names its own.
    #[serde(default)]
    rows: Vec<String>,
    /// A column for each of these values of a parameter, behind the first one of each row.
    #[serde(default)]
    across: Option<Across>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Across {
    parameter: String,
    values: Vec<String>,
}

/// `weir-lab tables`: the tables in the documents under a folder, and what sentences there quote.
pub fn run(root: &Path, check: bool) -> Result<()> {
    let changed = update(root, check)?;
    for document in &changed {
        super::print(&format!("{}\n", document.display()));
    }
    if check && !changed.is_empty() {
        return Err(Error::failed(
            "tables differ from their results",
            format!("{} documents", changed.len()),
        )
        .hint("weir-lab tables"));
    }
    let differing = quotes::differing(root)?;
    match differing.is_empty() {
        true => Ok(()),
        false => Err(
            Error::failed("sentences differ from their results", differing.join("\n"))
                .hint("write these into the pages, or change experiments/quotes.toml"),
        ),
    }
}

/// Writes all tables of the documents under a folder; returns those that were not as they are now. With `check` nothing
/// is written.
pub fn update(root: &Path, check: bool) -> Result<Vec<PathBuf>> {
    let path = root.join("experiments/tables.toml");
    let text = std::fs::read_to_string(&path).context(format!("cannot read {}", path.display()))?;
    let specs: BTreeMap<String, Spec> = toml::from_str(&text)
        .map_err(|cause| Error::failed(format!("cannot read {}", path.display()), cause))?;
    let mut unused: Vec<&String> = specs.keys().collect();
    let mut changed = Vec::new();
    for document in documents(root)? {
        let what = || format!("cannot read {}", document.display());
        let old = std::fs::read_to_string(&document).context(what())?;
        let mut block = |name: &str| {
            if let Some(paper) = name.strip_prefix(OF_PAPER) {
                return markdown::of_stored(&root.join("experiments"), paper);
            }
            let spec = specs.get(name).ok_or_else(|| {
                let what = format!("no table `{name}` in {}", path.display());
                Error::failed(what, document.display())
            })?;
            unused.retain(|one| *one != name);
            let results = root.join("experiments").join(&spec.results);
            match spec.awaited && !results.exists() {
                true => Ok(NO_RESULTS.to_owned()),
                false => table(spec, &store::read(&results)?),
            }
        };
        let new = replaced(&old, &mut block)?;
        if new != old {
            if !check {
                std::fs::write(&document, new)
                    .context(format!("cannot write {}", document.display()))?;
            }
            changed.push(document);
        }
    }
    match unused.first() {
        Some(name) => Err(Error::failed(
            format!("no document has table `{name}`"),
            path.display(),
        )),
        None => Ok(changed),
    }
}

/// README.md, and all Markdown in `docs` and `experiments`.
fn documents(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = vec![root.join("README.md")];
    let mut folders = vec![root.join("docs"), root.join("experiments")];
    while let Some(folder) = folders.pop() {
        let what = || format!("cannot read {}", folder.display());
        for entry in std::fs::read_dir(&folder).context(what())? {
            let path = entry.context(what())?.path();
            match path.is_dir() {
                true => folders.push(path),
                false if path.extension().is_some_and(|ending| ending == "md") => found.push(path),
                false => {}
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Before the key of a paper, in place of a table's name.
const OF_PAPER: &str = "papers: ";
const NO_RESULTS: &str = "There are no stored results yet.\n";
const BEGIN: &str = "<!-- table: ";
const END: &str = "<!-- end -->";

/// The text with the inside of each marker made anew.
fn replaced(text: &str, block: &mut dyn FnMut(&str) -> Result<String>) -> Result<String> {
    let mut new = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(BEGIN) {
        let bad = || {
            let line = rest[at..].lines().next().unwrap_or_default();
            Error::failed("a marker has no end", line)
        };
        let open = rest[at..].find("-->").ok_or_else(bad)? + at;
        let end = rest[open..].find(END).ok_or_else(bad)? + open;
        let name = rest[at + BEGIN.len()..open].trim();
        new += &format!("{}-->\n\n{}\n{END}", &rest[..open], block(name)?);
        rest = &rest[end + END.len()..];
    }
    Ok(new + rest)
}

fn table(spec: &Spec, results: &Results) -> Result<String> {
    let none = Case::default();
    let is_in = |case: &&Case| {
        spec.only
            .iter()
            .all(|(name, values)| values.split('|').any(|value| case.parameter(name) == value))
    };
    let mut rows: Vec<Vec<String>> = Vec::new();
    let fill_all = |templates: &str, case: &Case| -> Result<Vec<String>> {
        templates
            .split(" | ")
            .map(|template| fill(template, results, case))
            .collect()
    };
    if !spec.each.is_empty() {
        for case in results.cases.iter().filter(is_in) {
            rows.push(fill_all(&spec.each, case)?);
        }
    }
    for row in &spec.rows {
        match &spec.across {
            None => rows.push(fill_all(row, &none)?),
            Some(across) => rows.push(across_row(row, across, spec, results)?),
        }
    }
    let heads = fill_all(&spec.head, &none)?;
    if let Some(row) = rows.iter().find(|row| row.len() != heads.len()) {
        let cause = format!("{} heads and {} cells: {row:?}", heads.len(), row.len());
        return Err(Error::failed(
            format!("a table of {} is not one", spec.results),
            cause,
        ));
    }
    let line = |cells: Vec<String>| {
        let text = format!("| {} |\n", cells.join(" | "));
        text.replace("|  |", "| |")
    };
    let rule = format!("|{}\n", "---|".repeat(heads.len()));
    let mut text = line(heads) + &rule;
    text += &rows.into_iter().map(line).collect::<String>();
    Ok(text)
}

/// `LABEL | param=value,… | TEMPLATE`: the template once for each value.
fn across_row(row: &str, across: &Across, spec: &Spec, results: &Results) -> Result<Vec<String>> {
    let parts: Vec<&str> = row.splitn(3, " | ").collect();
    let [label, filter, template] = parts[..] else {
        return Err(
            Error::failed("bad row of a table", row).hint("LABEL | param=value,… | TEMPLATE")
        );
    };
    let mut wanted = spec.only.clone();
    let pairs = filter.split(',').filter_map(|pair| pair.split_once('='));
    wanted.extend(pairs.map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned())));
    let mut cells = vec![label.to_owned()];
    for value in &across.values {
        wanted.insert(across.parameter.clone(), value.clone());
        let case = results.cases.iter().find(|case| case.is(&wanted));
        cells.push(match case {
            Some(case) => fill(template, results, case)?,
            None => String::new(),
        });
    }
    Ok(cells)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_between_markers_is_replaced_and_nothing_else() {
        let text = "a\n<!-- table: x -->\nold\n<!-- end -->\nb";
        let new = replaced(text, &mut |name| Ok(format!("| {name} |\n"))).unwrap();
        assert_eq!(new, "a\n<!-- table: x -->\n\n| x |\n\n<!-- end -->\nb");
        assert!(replaced("<!-- table: x -->", &mut |_| Ok(String::new())).is_err());
    }

    #[test]
    fn a_table_without_results_is_an_error_unless_they_are_awaited() {
        let write = |awaited: &str| {
            let root = tempfile::tempdir().unwrap();
            for folder in ["docs", "experiments"] {
                std::fs::create_dir(root.path().join(folder)).unwrap();
            }
            let specs = format!("[x]\nresults = \"none.json\"\nhead = \"a\"\n{awaited}");
            std::fs::write(root.path().join("experiments/tables.toml"), specs).unwrap();
            let page = "<!-- table: x -->\n<!-- end -->\n";
            std::fs::write(root.path().join("README.md"), page).unwrap();
            root
        };
        assert!(update(write("").path(), true).is_err());
        let root = write("awaited = true\n");
        assert_eq!(update(root.path(), false).unwrap().len(), 1);
        let page = std::fs::read_to_string(root.path().join("README.md")).unwrap();
        assert!(page.contains(NO_RESULTS), "{page}");
        assert_eq!(update(root.path(), true).unwrap().len(), 0);
    }

    #[test]
    fn tables_in_the_documents_are_those_of_the_results() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        let differ = update(root, true).unwrap();
        assert_eq!(differ, Vec::<PathBuf>::new(), "run `weir-lab tables`");
    }
}
