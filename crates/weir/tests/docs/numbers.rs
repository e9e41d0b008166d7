//! Numbers in prose that look measured, and where a reader finds what they come from.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml_edit::DocumentMut;
use weir_testbed::pages::{self, Page};
use weir_testbed::paragraphs::Paragraph;

/// Numbers that nobody has measured, by the reason.
const EXCEPTIONS: &str = "crates/weir/tests/docs/numbers.toml";
/// Words behind a number that let it look measured; also all that end in `/s`.
const UNITS: &[&str] = &[
    "%",
    "ns",
    "us",
    "µs",
    "ms",
    "s",
    "second",
    "seconds",
    "minute",
    "minutes",
    "hour",
    "hours",
    "byte",
    "bytes",
    "kB",
    "KB",
    "MB",
    "GB",
    "TB",
    "KiB",
    "MiB",
    "GiB",
    "kbit",
    "Mbit",
    "Gbit",
    "times",
    "points",
    "cycles",
    "instructions",
    "cores",
];
/// Targets of `make` that measure or count something.
const MEASURES: &[&str] = &[
    "arm64", "bench", "deb", "demo", "dist", "fuzz", "judges", "qualify", "test", "test-deb",
    "test-vm",
];

/// Each number of a paragraph that looks measured: `12 ms`, `1 200 connections/s`, `4 000 of them a second`, `3 of 40`,
/// `0.93 of`. Those in code do not count: they are settings and commands.
fn numbers(paragraph: &Paragraph) -> Vec<Range<usize>> {
    let mut text = paragraph.text.clone();
    for code in &paragraph.code {
        text.replace_range(code.clone(), &"`".repeat(code.len()));
    }
    let mut found: Vec<Range<usize>> = Vec::new();
    for (at, c) in text.char_indices() {
        let is_within = found.last().is_some_and(|last| at < last.end);
        let before = text[..at].chars().next_back();
        let is_part = before.is_some_and(|c| c.is_alphanumeric() || "_.-".contains(c));
        let is_first = c.is_ascii_digit() || c == '.' && digits(&text[at + 1..]) > 0;
        if is_first && !is_within && !is_part {
            let end = at + length(&text[at..]);
            if looks_measured(&text[at..end], &text[end..]) {
                found.push(at..end);
            }
        }
    }
    found
}

/// How many digits a text begins with.
fn digits(text: &str) -> usize {
    text.bytes().take_while(u8::is_ascii_digit).count()
}

/// Of the number that a text begins with: `2 560 000`, `0.25`, `20–30`.
fn length(text: &str) -> usize {
    let mut end = digits(text);
    loop {
        let rest = &text[end..];
        let part = ["–", ".", ","].into_iter().find_map(|sign| {
            let more = digits(rest.strip_prefix(sign)?);
            (more > 0).then_some(sign.len() + more)
        });
        let is_group = rest.starts_with(' ') && digits(&rest[1..]) == 3;
        match part {
            Some(part) => end += part,
            None if is_group => end += 4,
            None => return end,
        }
    }
}

fn looks_measured(number: &str, behind: &str) -> bool {
    let behind = behind.strip_prefix(' ').unwrap_or(behind);
    if let Some(rest) = behind.strip_prefix("of ") {
        let whole = rest.strip_prefix("the ").unwrap_or(rest);
        return number.contains('.') || digits(whole) > 0 || is_rate(behind);
    }
    let is_part = |c: char| c.is_ascii_alphabetic() || "µ/".contains(c);
    let end = behind.find(|c| !is_part(c)).unwrap_or(behind.len());
    let unit = if behind.starts_with('%') {
        "%"
    } else {
        &behind[..end]
    };
    UNITS.contains(&unit) || unit.ends_with("/s") || is_rate(behind)
}

/// `4 000 a second`, and with up to two words before `a`.
fn is_rate(behind: &str) -> bool {
    let words: Vec<&str> = behind.split(' ').take(4).collect();
    let is_plain = |word: &&str| word.chars().all(|c| c.is_alphabetic() || c == '/');
    let plain = words.iter().take_while(|word| is_plain(word)).count();
    (0..plain.min(3)).any(|at| {
        let unit = words
            .get(at + 1)
            .map(|word| word.trim_end_matches(|c: char| !c.is_alphabetic()));
        words[at] == "a" && matches!(unit, Some("second" | "minute"))
    })
}

/// The experiments of weir-lab, by the names in its sources.
fn experiments() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for file in pages::files(".rs").unwrap() {
        if file.starts_with("crates/lab/src/experiments") {
            let text = std::fs::read_to_string(pages::root().unwrap().join(file)).unwrap();
            for begin in ["Entry::new", ".preset("] {
                let after = text.split(begin).skip(1);
                let names = after.filter_map(|rest| rest.split('"').nth(1));
                found.extend(names.map(str::to_owned));
            }
        }
    }
    found
}

/// What measures, as a page names it.
struct Sources {
    experiments: BTreeSet<String>,
    /// Page and anchor of the sections that name a command or an experiment.
    sections: BTreeSet<(PathBuf, String)>,
}

impl Sources {
    fn new(pages: &[Page]) -> Sources {
        let mut sources = Sources {
            experiments: experiments(),
            sections: BTreeSet::new(),
        };
        for page in pages {
            for paragraph in &page.paragraphs {
                if paragraph.generated || sources.names_one(page, paragraph) {
                    let section = (page.path.clone(), paragraph.section.clone());
                    sources.sections.insert(section);
                }
            }
        }
        sources
    }

    /// Whether the command measures something.
    fn measures(&self, command: &str) -> bool {
        let is_setting = |word: &&str| word.split_once('=').is_some_and(|(name, _)| is_name(name));
        let words: Vec<&str> = command.split_whitespace().skip_while(is_setting).collect();
        match words[..] {
            ["weir-lab", "run", id, ..] => self.experiments.contains(id),
            ["weir-lab", "load" | "papers", ..] => true,
            ["weir-lab", family, name, ..]
                if self.experiments.contains(&format!("{family}-{name}")) =>
            {
                true
            }
            ["weir-lab", id, ..] => self.experiments.contains(id),
            ["make", target, ..] => MEASURES.contains(&target),
            ["cargo", "test" | "bench", _, ..] | ["perf", "bench", ..] => true,
            [script, ..] => {
                script.starts_with("scripts/") && pages::root().unwrap().join(script).is_file()
            }
            [] => false,
        }
    }

    /// Whether the paragraph itself names a command that measures, or leads to a page of experiments.
    fn names_one(&self, page: &Page, paragraph: &Paragraph) -> bool {
        let is_experiment = |link: &String| {
            page.target(link)
                .is_some_and(|(path, _)| path.starts_with("experiments"))
        };
        paragraph
            .commands
            .iter()
            .any(|command| self.measures(command))
            || paragraph.links.iter().any(is_experiment)
    }

    /// Whether a reader finds what the paragraph's numbers come from.
    fn has(&self, page: &Page, paragraph: &Paragraph) -> bool {
        let of = |one: &Paragraph| {
            let leads = |link: &String| {
                let target = page.target(link);
                target.is_some_and(|(path, anchor)| {
                    anchor.is_some_and(|anchor| self.sections.contains(&(path, anchor)))
                })
            };
            one.generated || self.names_one(page, one) || one.links.iter().any(leads)
        };
        of(paragraph) || paragraph.beside.iter().any(|at| of(&page.paragraphs[*at]))
    }
}

fn is_name(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_uppercase() || c == '_')
}

/// A text of a page whose numbers need no source.
struct Exception {
    page: PathBuf,
    text: String,
    used: bool,
}

fn exceptions() -> Vec<Exception> {
    let text = std::fs::read_to_string(pages::root().unwrap().join(EXCEPTIONS)).unwrap();
    let document: DocumentMut = text.parse().unwrap();
    let mut found = Vec::new();
    for (reason, pages) in document.iter() {
        for (page, texts) in pages
            .as_table()
            .unwrap_or_else(|| panic!("{reason} is no table"))
        {
            for text in texts
                .as_array()
                .unwrap_or_else(|| panic!("{reason}: {page} is no array"))
            {
                found.push(Exception {
                    page: page.into(),
                    text: text.as_str().unwrap().to_owned(),
                    used: false,
                });
            }
        }
    }
    found
}

/// Where a text stands in another, as words of their own.
fn places<'a>(text: &'a str, wanted: &'a str) -> impl Iterator<Item = Range<usize>> + 'a {
    let is_part = |c: char| c.is_alphanumeric();
    text.match_indices(wanted).filter_map(move |(at, found)| {
        let end = at + found.len();
        let (before, behind) = (text[..at].chars().next_back(), text[end..].chars().next());
        let begins = !before.is_some_and(|c| is_part(c) || c == '.');
        let ends = !(behind.is_some_and(is_part) && found.ends_with(is_part));
        (begins && ends).then_some(at..end)
    })
}

/// What a program has written whole.
fn is_generated(page: &Path) -> bool {
    let text = std::fs::read_to_string(pages::root().unwrap().join(page)).unwrap();
    text.contains("<!-- Made by `")
}

/// Those of the numbers that no exception of the page has. Notes which exceptions have one.
fn uncovered(
    page: &Page,
    paragraph: &Paragraph,
    numbers: Vec<Range<usize>>,
    exceptions: &mut [Exception],
) -> Vec<Range<usize>> {
    let mut left = numbers.clone();
    for exception in exceptions.iter_mut().filter(|one| one.page == page.path) {
        for place in places(&paragraph.text, &exception.text) {
            let holds =
                |number: &Range<usize>| place.start <= number.start && number.end <= place.end;
            exception.used |= numbers.iter().any(holds);
            left.retain(|number| !holds(number));
        }
    }
    left
}

/// The paragraphs of pages for users, less what a program writes.
fn for_users(pages: &[Page]) -> impl Iterator<Item = (&Page, &Paragraph)> {
    let is_for_users = |page: &&Page| {
        let is_page = page.path == Path::new("README.md") || page.path.starts_with("docs");
        is_page && !is_generated(&page.path)
    };
    pages.iter().filter(is_for_users).flat_map(|page| {
        let written = page.paragraphs.iter().filter(|one| !one.generated);
        written.map(move |paragraph| (page, paragraph))
    })
}

/// See docs/architecture-adding-figures.md, "A number of a page".
#[test]
fn every_number_in_prose_names_its_source() {
    let pages = pages::all().unwrap();
    let sources = Sources::new(&pages);
    let mut exceptions = exceptions();
    let (mut faults, mut sourced, mut excepted) = (String::new(), 0, 0);
    for (page, paragraph) in for_users(&pages) {
        let numbers = numbers(paragraph);
        if numbers.is_empty() {
            continue;
        }
        if sources.has(page, paragraph) {
            sourced += 1;
            continue;
        }
        let left = uncovered(page, paragraph, numbers, &mut exceptions);
        excepted += usize::from(left.is_empty());
        for number in left {
            let text: String = paragraph.text[number.start..].chars().take(30).collect();
            let place = page.at(paragraph.line);
            let _ = writeln!(faults, "{place}: `{text}…` has no source");
        }
    }
    for unused in exceptions.iter().filter(|one| !one.used) {
        let (page, text) = (unused.page.display(), &unused.text);
        let what = "matches no number without a source";
        let _ = writeln!(faults, "{EXCEPTIONS}: {page}: `{text}` {what}");
    }
    println!("{sourced} paragraphs have a source, {excepted} need none");
    assert!(
        faults.is_empty(),
        "{faults}Name in the sentence the command that measures it, link the page of experiments that has it, or, if \
         nobody has measured it, add the words to {EXCEPTIONS}."
    );
    assert!(sourced > 50, "{sourced} paragraphs have a source");
}

#[test]
fn numbers_are_told_by_what_stands_behind_them() {
    let page = Page::parse(
        "page.md".into(),
        "1 200 connections/s took .93 of 20–30 ms (5 %) on Linux 6.18, port 80, `3 ms`, 7 of 40, 4 000 of them a second.\n",
    );
    let paragraph = &page.paragraphs[0];
    let found: Vec<&str> = numbers(paragraph)
        .into_iter()
        .map(|at| &paragraph.text[at])
        .collect();
    assert_eq!(found, ["1 200", ".93", "20–30", "5", "7", "4 000"]);
    let of = |text: &str, wanted: &str| places(text, wanted).count();
    assert_eq!(
        (
            of("10 s and 0 s", "0 s"),
            of("5 %, 5 % of", "5 %"),
            of("2.5 ms", "5 ms")
        ),
        (1, 2, 0)
    );
}
