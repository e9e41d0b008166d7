//! Holds the command lines of the Markdown pages to the definition of the command.

use std::collections::BTreeSet;
use std::path::Path;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use weir_testbed::pages::{self, Block, Page};

use super::Cli;

/// Words behind fences whose blocks are command lines; a block that is indented has none.
const SHELLS: [&str; 4] = ["", "sh", "bash", "console"];
/// Programs that start the one behind their options.
const STARTERS: [&str; 2] = ["sudo", "nohup"];
/// Programs that start one behind their arguments.
const ENTRIES: [&str; 3] = ["nsenter", "ip", "flock"];
/// What pages write for a value, and one that it could be.
const VALUES: [(&str, &str); 8] = [
    ("ADDRESS", "192.0.2.1"),
    ("PORT", "80"),
    ("ADDR:PORT", "127.0.0.1:80"),
    ("SECONDS", "1"),
    ("TIME", "1s"),
    ("N", "10"),
    ("P", "0.5"),
    ("…", ""),
];

/// A command line of a page.
struct Line {
    at: String,
    words: Vec<String>,
    /// In a sentence the name of a command or a flag may stand alone.
    in_a_sentence: bool,
}

fn lines(page: &Page) -> Vec<Line> {
    let in_blocks = page
        .blocks
        .iter()
        .filter(|block| SHELLS.contains(&block.info.as_str()))
        .flat_map(|block| in_block(page, block));
    let in_spans = page.spans.iter().flat_map(|span| {
        commands(&span.text).into_iter().map(|words| Line {
            at: page.at(span.line),
            words,
            in_a_sentence: true,
        })
    });
    in_blocks.chain(in_spans).collect()
}

fn in_block(page: &Page, block: &Block) -> Vec<Line> {
    let mut found = Vec::new();
    let mut line = String::new();
    // Where some lines have a prompt, the others are what the commands print.
    let has_prompt = |line: &str| line.starts_with("$ ");
    let is_session = block.text.lines().any(has_prompt);
    for (n, part) in block.text.lines().enumerate() {
        if is_session && line.is_empty() && !has_prompt(part) {
            continue;
        }
        match part.strip_suffix('\\') {
            Some(part) => line.push_str(part),
            None => {
                line.push_str(part);
                found.extend(commands(&line).into_iter().map(|words| Line {
                    at: page.at(block.line + n),
                    words,
                    in_a_sentence: false,
                }));
                line.clear();
            }
        }
    }
    found
}

/// The arguments of each `weir` in a line of shell. In a table of folders or crates the name stands before a gap.
fn commands(line: &str) -> Vec<Vec<String>> {
    let line = line.trim().trim_start_matches("$ ");
    if line.starts_with("weir  ") {
        return Vec::new();
    }
    let parts = words(line);
    let parts =
        parts.split(|word| ["|", "||", "&&", "&", ";", ">", "2>", "("].contains(&word.as_str()));
    parts.filter_map(arguments).collect()
}

/// Words as a shell splits them, up to a comment. Quotes go; what is in `$(…)` is one word.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut depth = 0;
    for c in line.chars() {
        match c {
            _ if quote == Some(c) => quote = None,
            _ if quote.is_some() => word.get_or_insert_default().push(c),
            '\'' | '"' => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            '#' if word.is_none() => break,
            ';' if depth == 0 => {
                words.extend(word.take());
                words.push(";".to_owned());
            }
            c if c.is_whitespace() && depth == 0 => words.extend(word.take()),
            c => {
                match c {
                    '(' => depth += 1,
                    ')' => depth -= 1,
                    _ => {}
                }
                word.get_or_insert_default().push(c);
            }
        }
    }
    words.extend(word);
    words
}

/// What stands behind `weir`, with values for placeholders; `None` where another program is called.
fn arguments(words: &[String]) -> Option<Vec<String>> {
    let is_weir = |word: &String| word == "weir" || word.ends_with("release/weir");
    let mut rest = words;
    loop {
        let (first, behind) = rest.split_first()?;
        rest = behind;
        if is_weir(first) {
            break;
        } else if STARTERS.contains(&first.as_str()) {
            let options = rest.iter().take_while(|word| word.starts_with('-'));
            rest = &rest[options.count()..];
        } else if ENTRIES.contains(&first.as_str()) {
            rest = &rest[rest.iter().position(is_weir)?..];
        } else {
            return None;
        }
    }
    let value = |word: &String| {
        // `[--json]` and `[--order auto|parking]` of a synopsis.
        let word = word.trim_matches(['[', ']']);
        let word = word.split('|').next().unwrap_or_default();
        let value = VALUES.iter().find(|(name, _)| *name == word);
        value.map_or(word, |(_, value)| value).to_owned()
    };
    let values = rest.iter().map(value);
    Some(values.filter(|word| !word.is_empty()).collect())
}

/// What clap has against a line.
fn fault(line: &Line) -> Option<String> {
    use ErrorKind::{
        DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion, InvalidValue,
        MissingRequiredArgument, MissingSubcommand,
    };
    let words = std::iter::once("weir").chain(line.words.iter().map(String::as_str));
    let error = Cli::try_parse_from(words).err()?;
    let is_fine = match error.kind() {
        DisplayHelp | DisplayVersion => true,
        DisplayHelpOnMissingArgumentOrSubcommand | MissingRequiredArgument | MissingSubcommand => {
            line.in_a_sentence
        }
        // `--interface` in a sentence about the flag.
        InvalidValue => {
            line.in_a_sentence && line.words.last().is_some_and(|word| word.starts_with('-'))
        }
        _ => false,
    };
    let shown = || format!("{}: weir {}\n{error}", line.at, line.words.join(" "));
    (!is_fine).then(shown)
}

#[test]
fn every_command_line_of_a_page_is_one() {
    let pages = pages::all().unwrap();
    let lines: Vec<Line> = pages.iter().flat_map(lines).collect();
    let faults: Vec<String> = lines.iter().filter_map(fault).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(lines.len() > 100, "{} lines", lines.len());
}

/// Pages about one command, with its name: a flag that stands alone there is one of its flags.
const OF_ONE_COMMAND: [(&str, &str); 10] = [
    ("docs/proxy.md", "proxy"),
    ("docs/design/proxy.md", "proxy"),
    ("docs/exec.md", "exec"),
    ("docs/shape.md", "shape install"),
    ("docs/suggest.md", "suggest"),
    ("docs/suggest-quic.md", "suggest"),
    ("docs/top.md", "top"),
    ("docs/trace.md", "trace"),
    ("docs/events.md", "events"),
    ("docs/start.md", "protect"),
];
/// Pages and the flags of theirs that another command or program has.
const OF_OTHERS: [(&str, &[&str]); 17] = [
    // `weir shape show` is beside it.
    ("docs/shape.md", &["--json"]),
    // `weir model` is beside `weir trace`, and tcpdump has `-i`.
    ("docs/trace.md", &["--loss", "--syn-loss", "-i"]),
    // `weir run`.
    ("docs/events.md", &["--verbose"]),
    // cargo and the tests.
    ("docs/architecture-adding.md", &["--test"]),
    ("docs/architecture-adding-figures.md", &["--test"]),
    ("docs/classes.md", &["--test"]),
    ("docs/environments.md", &["--test-threads"]),
    // An idea that is not built, and rustc.
    ("docs/design/decisions.md", &["--health-check", "-Cpasses"]),
    // iptables.
    ("docs/operating-firewalls.md", &["-m"]),
    ("docs/operating-path.md", &["--syn"]),
    // tcpdump.
    ("CHANGELOG.md", &["-i"]),
    // docker, and uvicorn.
    ("docs/packages.md", &["--ulimit"]),
    ("docs/recipes-containers.md", &["--network"]),
    ("docs/recipes-pools.md", &["--limit-concurrency"]),
    ("docs/tuning.md", &["--limit-concurrency"]),
    // haproxy.
    ("docs/queue.md", &["-sf"]),
    // weir-lab, and other load generators.
    (
        "docs/test-it.md",
        &[
            "--patience",
            "--out",
            "--yes-it-is-mine",
            "-c",
            "-disable-keepalive",
        ],
    ),
];

/// The flags of all commands; of one alone, if it is named.
fn flags(command: Option<&str>) -> BTreeSet<String> {
    fn gather(command: &clap::Command, flags: &mut BTreeSet<String>) {
        for flag in command.get_arguments() {
            flags.extend(flag.get_long().map(|long| format!("--{long}")));
            flags.extend(flag.get_short().map(|short| format!("-{short}")));
        }
        for one in command.get_subcommands() {
            gather(one, flags);
        }
    }
    let root = Cli::command();
    let mut of = &root;
    for word in command.unwrap_or_default().split_whitespace() {
        of = of.find_subcommand(word).expect("there is the command");
    }
    let mut flags = BTreeSet::from(["--help".to_owned(), "--version".to_owned()]);
    gather(of, &mut flags);
    flags
}

/// The flags that stand alone in the sentences of a page and that neither its command has nor what it speaks of besides.
fn strange_flags(page: &Page) -> Vec<String> {
    let is_page = |path: &str| page.path == Path::new(path);
    let own = OF_ONE_COMMAND.iter().find(|(path, _)| is_page(path));
    let known = flags(own.map(|(_, command)| *command));
    let others = OF_OTHERS.iter().filter(|(path, _)| is_page(path));
    let others: Vec<&str> = others
        .flat_map(|(_, flags)| flags.iter().copied())
        .collect();
    let of_span = |span: &pages::Text| {
        let word = span.text.split([' ', '=']).next().unwrap_or_default();
        let is_flag = word.starts_with('-')
            && word
                .chars()
                .nth(1)
                .is_some_and(|c| c != ' ' && !c.is_ascii_digit());
        let is_strange = is_flag && !known.contains(word) && !others.contains(&word);
        is_strange.then(|| format!("{}: {word}", page.at(span.line)))
    };
    page.spans.iter().filter_map(of_span).collect()
}

/// Of the experiments weir-lab's tests know the flags.
#[test]
fn every_flag_that_stands_alone_in_a_page_is_one_of_the_command_that_it_is_about() {
    let pages = pages::all().unwrap();
    let pages = pages
        .iter()
        .filter(|page| !page.path.starts_with("experiments"));
    let strange: Vec<String> = pages.flat_map(strange_flags).collect();
    assert!(strange.is_empty(), "{}", strange.join("\n"));
}

#[test]
fn a_flag_of_another_command_is_strange_in_a_page_about_one() {
    let page = |path: &str, text: &str| Page::parse(path.into(), text);
    let strange = |path, text| strange_flags(&page(path, text)).len();
    assert_eq!(
        strange(
            "docs/proxy.md",
            "`--take-over` and `--established-only` and `--nonsense`"
        ),
        2
    );
    assert_eq!(
        strange(
            "docs/operating.md",
            "`--established-only` and `--nonsense 7`"
        ),
        1
    );
    assert_eq!(
        strange("docs/operating.md", "`-1`, `-` and `weir run --nonsense`"),
        0
    );
}

#[test]
fn lines_of_shell_are_split_into_commands() {
    let split = |line: &str| {
        commands(line)
            .iter()
            .map(|words| words.join("+"))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        split("sudo weir protect 80 443   # why"),
        ["protect+80+443"]
    );
    assert_eq!(
        split("weir status --json | jq . && weir detach; true"),
        ["status+--json", "detach"]
    );
    assert_eq!(
        split("sudo nsenter -t $(cat a b) --net weir protect PORT"),
        ["protect+80"]
    );
    assert_eq!(
        split("weir exec [--order auto|exact] -- SERVER …"),
        ["exec+--order+auto+--+SERVER"]
    );
    for other in [
        "journalctl -u weir",
        "sudo systemctl stop weir",
        "sudo -E cargo test -p weir --test cli",
    ] {
        assert_eq!(split(other), [""; 0], "{other}");
    }
}
