//! `weir generate`: man pages and completions from the command-line definition, for packages, and the
//! reference page of the config file.

use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::cli::{Cli, Generate, GenerateWhat};
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

/// Section of the pages: 8, system administration, since most commands need root.
const SECTION: &str = "8";

/// `weir.8` and `weir-COMMAND.8`.
fn man_pages(dir: &Path) -> Result<()> {
    create(dir)?;
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let visible = command.get_subcommands().filter(|sub| !sub.is_hide_set());
    let mut pages = vec![("weir".to_owned(), command.clone())];
    pages.extend(visible.map(|sub| (format!("weir-{}", sub.get_name()), sub.clone())));
    for (name, command) in pages {
        let file = dir.join(format!("{name}.{SECTION}"));
        let write = || -> std::io::Result<()> {
            let mut page = Vec::new();
            let man = clap_mangen::Man::new(command.clone().version(env!("CARGO_PKG_VERSION")));
            man.title(name.to_uppercase())
                .section("8")
                .render(&mut page)?;
            std::fs::write(&file, page)
        };
        write().map_err(|error| Failure::io(format_args!("write {}", file.display()), error))?;
    }
    Ok(())
}

fn completions(dir: &Path) -> Result<()> {
    create(dir)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut Cli::command(), "weir", dir).map_err(|error| {
            Failure::io(
                format_args!("write {shell} completions to {}", dir.display()),
                error,
            )
        })?;
    }
    Ok(())
}

fn reference(dir: &Path) -> Result<()> {
    create(dir)?;
    let file = dir.join("reference.md");
    std::fs::write(&file, weir_config::reference())
        .map_err(|error| Failure::io(format_args!("write {}", file.display()), error))
}
