//! The weir command: protects listeners of this network namespace, and shows what it does.

mod cli;
mod commands;
mod failure;
mod output;
mod table;

use std::process::ExitCode;

use clap::Parser;
use cli::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match &cli.command {
        Command::Check(args) => commands::check::run(args),
        Command::Explain(args) => commands::explain::run(args),
        Command::Generate(args) => commands::generate::run(args),
        _ => Err(failure::Failure::failed("not built yet", "")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::from(failure.code.number())
        }
    }
}
