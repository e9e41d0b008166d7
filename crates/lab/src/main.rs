//! `weir-lab`: experiments on servers in a flash crowd. See the library's documentation.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use weir_lab::cli;
use weir_lab::error::Result;
use weir_lab::experiments::demo;
use weir_lab::interrupt;
use weir_lab::link::command as link;
use weir_lab::load::command as load;
use weir_lab::papers::command as papers;
use weir_lab::server::one_packet;
use weir_lab::server::pool;
use weir_lab::show::documents;

/// Measures what an overloaded server does to its clients, with weir and without, on the real
/// kernel in network namespaces of its own. Needs root.
#[derive(Debug, Parser)]
#[command(name = "weir-lab", version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Lists the experiments: id, source, question, and the command of the full run
    List,
    /// Runs experiments by their id
    Run(cli::RunArgs),
    /// Does what the five papers report hold on this kernel? Measures every table and figure that an experiment
    /// answers, and writes a report: the paper's number, this machine's, and whether it holds
    Papers(papers::Args),
    /// Prints a results file as tables
    Table {
        /// results.json of a run
        results: PathBuf,
    },
    /// Draws the pictures of a results file
    Plot {
        /// results.json of a run
        results: PathBuf,
        /// Folder for the pictures [default: that of the results]
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
    /// Judges the claims of a results file again, by the code of today
    Judge {
        /// results.json of a run
        results: PathBuf,
    },
    /// Writes the tables in README.md, docs and experiments from the results in experiments
    Tables {
        /// Only say which documents differ, and fail if any does
        #[arg(long)]
        check: bool,
        /// Folder of the repository
        #[arg(long, default_value = ".", value_name = "DIR")]
        root: PathBuf,
    },
    /// The flash crowd in short, and who is accepted first, with a few sentences (this is `make demo`)
    Demo(demo::Args),
    /// A command, or a load of its own, behind an emulated slow link with any queueing discipline; then what the link has counted
    Link(link::Args),
    /// Open-loop HTTP load on a server of your own: who is served, refused, times out, with a picture. Needs no root
    Load(load::Args),
    /// The built-in one-packet server, until Ctrl-C
    Serve(one_packet::Settings),
    /// The built-in pool of workers with a fixed service time, until Ctrl-C
    Pool(pool::Settings),
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("weir-lab: {error}");
            if !error.hint.is_empty() {
                eprintln!("hint: {}", error.hint);
            }
            ExitCode::from(error.exit_code())
        }
    }
}

fn run() -> Result<()> {
    let matches = cli::with_experiments(Cli::command()).get_matches();
    let (name, of_command) = matches.subcommand().expect("clap asks for a subcommand");
    // A pool serves until it is killed, by any signal.
    if name != "pool" {
        interrupt::install()?;
    }
    if let Some(done) = cli::dispatch(name, of_command) {
        return done;
    }
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    match cli.command {
        Command::List => {
            cli::list();
            Ok(())
        }
        Command::Run(args) => cli::run(&args),
        Command::Papers(args) => papers::run(&args),
        Command::Table { results } => cli::show_table(&results),
        Command::Plot { results, out } => cli::plot(&results, out.as_deref()),
        Command::Judge { results } => cli::judge(&results),
        Command::Tables { check, root } => documents::run(&root, check),
        Command::Demo(args) => demo::run(&args),
        Command::Link(args) => link::run(&args),
        Command::Load(args) => load::run(&args),
        Command::Pool(settings) => pool::serve(&settings),
        Command::Serve(settings) => one_packet::serve(settings),
    }
}
