//! `weir suggest`: settings that fit what the listeners have gone through, as a config file with the reasons.

use std::path::Path;

use weir_api::{Question, Suggestions};

use crate::cli::Suggest;
use crate::commands::status::not_running;
use crate::failure::{Failure, Result};
use crate::host::config::Source;
use crate::ipc::control::{ask, namespace};
use crate::show::log::line;
use crate::show::output::{print, print_json};
use crate::show::suggest::{comment, file};

/// Runs the command.
pub fn run(runtime_dir: &Path, args: &Suggest) -> Result<()> {
    let question = Question::Suggest {
        least_s: args.least.map(|least| least.as_secs()),
    };
    let suggestions = ask(runtime_dir, namespace()?, &question)?;
    let suggestions: Suggestions =
        suggestions.ok_or_else(|| not_running(runtime_dir, "suggest"))?;
    if args.json {
        print_json(&suggestions)?;
    }
    let listeners = suggestions.listeners.iter();
    let listeners = listeners.map(|one| (&one.listener, &one.missing));
    let quic = suggestions.quic.iter();
    let quic = quic.map(|one| (&one.listener, &one.missing));
    let failures = listeners.chain(quic).map(|(name, missing)| {
        let missing = missing.as_ref()?;
        let hint = "`weir suggest --least 1m` suggests from less";
        Some(Failure::failed(format!("{name}: {missing}"), hint))
    });
    match failures.collect::<Option<Vec<Failure>>>() {
        // Nothing at all is suggested.
        Some(failures) => Err(Failure::all(failures).unwrap_or_else(no_listener)),
        None if args.json => Ok(()),
        None => match &args.config {
            Some(file) => print(&changed(file, &suggestions)?),
            None => print(&text(&suggestions)),
        },
    }
}

/// The operator's own file, with what is suggested in it.
fn changed(file: &Path, suggestions: &Suggestions) -> Result<String> {
    let source = Source::read(file)?;
    if source.text.trim().is_empty() {
        return Err(Failure::usage(
            format!("{} is empty", file.display()),
            "a shell empties the file behind > before weir reads it: write to another one",
        ));
    }
    let config = source.parse()?;
    let changed = file::changed(&source.text, &config, suggestions).map_err(|unfit| {
        let hint = "write each as a table of its own, which begins with [[listener]] or [[quic]]";
        Failure::usage(format!("cannot change {}: {unfit}", file.display()), hint)
    })?;
    let name = format!("{} with what is suggested", file.display());
    weir_config::parse(&name, &changed.text)?;
    changed.said.iter().for_each(line);
    Ok(changed.text)
}

fn no_listener() -> Failure {
    Failure::failed(
        "weir guards nothing in its own network namespace, and suggests nothing for others",
        "`weir protect PORT --observe` guards one, and only counts",
    )
}

/// The tables of all listeners, and at the end what weir cannot know.
fn text(suggestions: &Suggestions) -> String {
    let mut text = comment(
        "weir suggests, from what it has seen. Read the reasons, change what you know better, then `weir check` and `weir reload`.",
    );
    let mut unknown: Vec<&String> = Vec::new();
    let listeners = suggestions.listeners.iter();
    let listeners = listeners.map(|one| {
        let (name, address) = (&one.listener, &one.address);
        part(name, address, one.missing.as_ref(), &one.toml)
    });
    let quic = suggestions.quic.iter();
    let quic = quic.map(|one| {
        let (name, address) = (&one.listener, &one.address);
        let mut text = part(name, address, one.missing.as_ref(), &one.toml);
        if !one.tcp_toml.is_empty() {
            text += &format!("\n{}", one.tcp_toml);
        }
        text
    });
    text.extend(listeners.chain(quic));
    let quic = suggestions.quic.iter().flat_map(|one| &one.unknown);
    let listeners = suggestions.listeners.iter().flat_map(|one| &one.unknown);
    for sentence in listeners.chain(quic) {
        if !unknown.contains(&sentence) {
            unknown.push(sentence);
        }
    }
    text += "\n# What weir cannot know:\n";
    for sentence in unknown {
        text += &comment(&format!("- {sentence}"));
    }
    text
}

/// The table of one, or what is missing for it.
fn part(name: &str, address: &str, missing: Option<&String>, toml: &str) -> String {
    match missing {
        Some(missing) => format!("\n{}", comment(&format!("{name} ({address}): {missing}."))),
        None => format!("\n{toml}"),
    }
}
