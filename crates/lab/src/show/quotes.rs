//! Sentences of the pages that have numbers from results.
//!
//! `experiments/quotes.toml` says for each its page, its results file and its text, with references as [`super::template`]
//! has them in place of the numbers.

use std::path::Path;

use serde::Deserialize;

use super::template::fill;
use crate::error::{Context, Error, Result};
use crate::run::results::{Case, Results};
use crate::run::store;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Quotes {
    quote: Vec<Quote>,
}

/// A part of a page.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Quote {
    /// The page, from the root.
    page: String,
    /// Results file, from `experiments/`.
    results: String,
    /// Its words, with a reference for each number. White space is any.
    text: String,
}

/// What the pages under a folder should say by the results and do not say: `PAGE: TEXT` each.
pub fn differing(root: &Path) -> Result<Vec<String>> {
    let path = root.join("experiments/quotes.toml");
    let text = std::fs::read_to_string(&path).context(format!("cannot read {}", path.display()))?;
    let quotes: Quotes = toml::from_str(&text)
        .map_err(|cause| Error::failed(format!("cannot read {}", path.display()), cause))?;
    let mut differing = Vec::new();
    for quote in &quotes.quote {
        let results = store::read(&root.join("experiments").join(&quote.results))?;
        let wanted = spaced(&filled(&quote.text, &results)?);
        let page = root.join(&quote.page);
        let what = || format!("cannot read {}", page.display());
        let said = spaced(&std::fs::read_to_string(&page).context(what())?);
        if !said.contains(&wanted) {
            differing.push(format!("{}: {wanted}", quote.page));
        }
    }
    Ok(differing)
}

/// The text with the numbers in it. One that was not measured is an error, and so is a text without any.
fn filled(text: &str, results: &Results) -> Result<String> {
    let none = Case::default();
    let references = text.split('{').skip(1);
    let mut seen = 0;
    for reference in references.filter_map(|rest| rest.split_once('}')) {
        let reference = format!("{{{}}}", reference.0);
        if fill(&reference, results, &none)? == "-" {
            return Err(Error::failed("a quote is of nothing measured", reference));
        }
        seen += 1;
    }
    match seen {
        0 => Err(Error::failed("a quote has no reference", text)),
        _ => fill(text, results, &none),
    }
}

/// With one space between two words.
fn spaced(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::results::parameters;
    use crate::run::statistics::Spread;

    #[test]
    fn the_pages_say_what_the_results_have() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        let differing = differing(root).unwrap();
        assert!(
            differing.is_empty(),
            "these are not on their pages:\n{}",
            differing.join("\n")
        );
    }

    #[test]
    fn a_quote_of_nothing_measured_is_an_error() {
        let case = Case {
            parameters: parameters([("guard", "weir".into())]),
            metrics: [("wait_ms".to_owned(), Spread::one(27.98))].into(),
            ..Case::default()
        };
        let results = Results {
            cases: vec![case],
            ..Results::default()
        };
        let of = |text| filled(text, &results);
        assert_eq!(
            of("{wait_ms[guard=weir]|n} ms with\nweir").unwrap(),
            "28 ms with\nweir"
        );
        for text in ["28 ms", "{wait_ms[guard=plain]}", "{wait_s[guard=weir]}"] {
            assert!(of(text).is_err(), "{text}");
        }
        assert_eq!(spaced(" a\n  b\u{a0}c "), "a b c");
    }
}
