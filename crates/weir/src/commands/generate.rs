//! `weir generate`: man pages and completions from the command-line definition, for packages, and the
//! reference pages of the config file and of the metrics.

mod config_page;
mod man;
mod metrics;

use std::io::Write;
use std::path::Path;

use clap::builder::PossibleValuesParser;
use clap::{Arg, Command, CommandFactory};
use clap_complete::Shell;

use crate::cli::{Cli, Generate, GenerateWhat};
use crate::commands::explain;
use crate::failure::{Failure, Result};

/// Runs the command.
pub fn run(args: &Generate) -> Result<()> {
    match &args.what {
        GenerateWhat::Man { dir } => man_pages(dir),
        GenerateWhat::Completions { dir } => completions(dir),
        GenerateWhat::Reference { dir } => reference(dir),
    }
}

fn create(dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir)
        .map_err(|error| Failure::io(format_args!("create {}", dir.display()), error))
}

/// `weir.8`, `weir-COMMAND.8` and `weir.toml.5`.
fn man_pages(dir: &Path) -> Result<()> {
    create(dir)?;
    let mut command = visible(&Cli::command()).disable_help_subcommand(true);
    command.build();
    let mut pages = vec![("weir".to_owned(), command.clone())];
    let subcommands = command.get_subcommands();
    pages.extend(subcommands.map(|sub| (format!("weir-{}", sub.get_name()), sub.clone())));
    let names: Vec<String> = pages.iter().map(|(name, _)| name.clone()).collect();
    for (name, command) in &pages {
        let file = dir.join(format!("{name}.{}", man::SECTION));
        let write = || std::fs::write(&file, man::page(name, command, &names)?);
        write().map_err(|error| Failure::io(format_args!("write {}", file.display()), error))?;
    }
    let file = dir.join(format!("{}.{}", man::CONFIG.0, man::CONFIG.1));
    std::fs::write(&file, config_page::page(&names))
        .map_err(|error| Failure::io(format_args!("write {}", file.display()), error))
}

fn completions(dir: &Path) -> Result<()> {
    create(dir)?;
    let names = explain::names();
    let mut command = visible(&Cli::command()).mut_subcommand("explain", |explain| {
        explain.mut_arg("name", |arg| {
            arg.value_parser(PossibleValuesParser::new(&names))
        })
    });
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut command, "weir", dir).map_err(|error| {
            Failure::io(
                format_args!("write {shell} completions to {}", dir.display()),
                error,
            )
        })?;
    }
    // clap_complete's script for fish has the values of flags only.
    let names: Vec<&str> = names.into_iter().collect();
    let line = format!(
        "complete -c weir -n \"__fish_weir_using_subcommand explain\" -f -a \"{}\"\n",
        names.join(" ")
    );
    let file = dir.join("weir.fish");
    let append = || {
        let mut script = std::fs::OpenOptions::new().append(true).open(&file)?;
        script.write_all(line.as_bytes())
    };
    append().map_err(|error| Failure::io(format_args!("write {}", file.display()), error))
}

/// The command without what is hidden, which neither a page nor a completion shows.
fn visible(command: &Command) -> Command {
    let hidden = command.get_subcommands().filter(|sub| sub.is_hide_set());
    let hidden: Vec<String> = hidden.map(|sub| sub.get_name().to_owned()).collect();
    let shown = command.get_subcommands().filter(|sub| !sub.is_hide_set());
    let shown: Vec<Command> = shown.map(visible).collect();
    if hidden.is_empty() && shown.is_empty() && !command.get_arguments().any(Arg::is_hide_set) {
        return command.clone();
    }
    // clap takes nothing out of a command, so another one is made.
    let mut new = Command::new(command.get_name().to_owned())
        .args(command.get_arguments().filter(|arg| !arg.is_hide_set()))
        .groups(
            command
                .get_groups()
                .filter(|_| hidden.is_empty() && shown.is_empty()),
        )
        .subcommands(shown);
    if let Some(about) = command.get_about() {
        new = new.about(about.clone());
    }
    if let Some(about) = command.get_long_about() {
        new = new.long_about(about.clone());
    }
    if let Some(help) = command.get_after_help() {
        new = new.after_help(help.clone());
    }
    match command.get_version() {
        Some(_) => new.version(env!("CARGO_PKG_VERSION")),
        None => new,
    }
}

fn reference(dir: &Path) -> Result<()> {
    create(dir)?;
    let pages = [
        ("reference.md", weir_config::reference()),
        ("metrics.md", metrics::page()),
    ];
    for (name, page) in pages {
        let file = dir.join(name);
        std::fs::write(&file, page)
            .map_err(|error| Failure::io(format_args!("write {}", file.display()), error))?;
    }
    Ok(())
}
