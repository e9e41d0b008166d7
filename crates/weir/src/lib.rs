//! The weir command: protects listeners of this network namespace, and shows what it does.

mod cli;
mod commands;
mod daemon;
mod exec;
mod failure;
mod host;
mod ipc;
mod shape;
mod show;
mod top;

#[cfg(feature = "fuzzing")]
pub use daemon::guard::fuzzing;

use std::process::ExitCode;

use clap::Parser;
use cli::{Cli, Command};
use show::log;
use tracing_subscriber::filter::LevelFilter;

/// Runs the command that the arguments name, to its end. Gives the exit code of docs/operating.md.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let _log = start_log(&cli.command);
    match run(&cli) {
        Ok(code) => code,
        Err(failure) => {
            log::line(format_args!("error: {failure}"));
            ExitCode::from(failure.code.number())
        }
    }
}

fn run(cli: &Cli) -> failure::Result<ExitCode> {
    let dir = &cli.runtime_dir;
    let done = match &cli.command {
        Command::Protect(args) => commands::protect::run(dir, args),
        Command::Proxy(args) => commands::proxy::run(dir, args),
        Command::Run(args) => commands::run::run(dir, args),
        Command::Reload(args) => commands::reload::run(dir, args),
        Command::Observe(args) => commands::observe::run(dir, args),
        Command::Exec(args) => commands::exec::run(dir, args),
        Command::Check(args) => commands::check::run(dir, args),
        Command::Status(args) => commands::status::run(dir, args),
        Command::Events(args) => commands::events::run(dir, args),
        Command::Why(args) => return commands::why::run(dir, args),
        Command::Suggest(args) => commands::suggest::run(dir, args),
        Command::Top(args) => commands::top::run(dir, args),
        Command::Class(args) => commands::class::run(dir, args),
        Command::Shape(args) => commands::shape::run(dir, args),
        Command::Detach(args) => commands::detach::run(dir, args),
        Command::Doctor(args) => commands::doctor::run(dir, args),
        Command::Explain(args) => commands::explain::run(dir, args),
        Command::Trace(args) => commands::trace::run(args),
        Command::Model(args) => commands::model::run(args),
        Command::Generate(args) => commands::generate::run(args),
    };
    done.map(|()| ExitCode::SUCCESS)
}

/// A service says what it does; a command in the foreground only what is wrong. Those that stay do not wait
/// for whoever reads it.
fn start_log(command: &Command) -> log::AtEnd {
    let (level, stays) = match command {
        Command::Run(_) | Command::Protect(_) => (LevelFilter::INFO, true),
        Command::Proxy(args) if args.verbose => (LevelFilter::DEBUG, true),
        Command::Proxy(args) if args.config.is_some() => (LevelFilter::INFO, true),
        Command::Proxy(_) => (LevelFilter::WARN, true),
        _ => (LevelFilter::WARN, false),
    };
    log::start(level, stays)
}
