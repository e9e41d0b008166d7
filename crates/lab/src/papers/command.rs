//! `weir-lab papers`.

use std::path::{Path, PathBuf};
use std::time::Instant;

use super::clock::{Clock, in_words};
use super::list::{List, Scale};
use super::measured::{self, Outcome, Outcomes};
use super::report::Report;
use super::{page, terminal};
use crate::cli::RunFlags;
use crate::error::{Context, Error, Result};
use crate::interrupt;
use crate::show;

/// Arguments of `weir-lab papers`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Only these papers and parts, separated by commas, as --list names them: SB06,rr02-fig5
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub only: Vec<String>,
    /// Few rounds of short windows, 25 minutes in all on two cores (this is the default)
    #[arg(long, conflicts_with = "full")]
    pub quick: bool,
    /// The papers' points, with rounds enough for intervals; this takes hours
    #[arg(long)]
    pub full: bool,
    /// Measure nothing: a report of the results that are stored in this folder [default of DIR: experiments]
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = "experiments", conflicts_with_all = ["quick", "full", "resume"])]
    pub stored: Option<PathBuf>,
    /// Go on after a stop: what is measured already is kept
    #[arg(long)]
    pub resume: bool,
    /// Folder for the report, index.html [default: OUT/report]
    #[arg(long, value_name = "DIR")]
    pub report: Option<PathBuf>,
    /// Folder for what is measured
    #[arg(long, default_value = "out/papers", value_name = "DIR")]
    pub out: PathBuf,
    /// The weir program [default: beside weir-lab, else from PATH]
    #[arg(long, value_name = "PATH")]
    pub weir: Option<PathBuf>,
    /// Only list the parts, what answers each, and how long that takes
    #[arg(long)]
    pub list: bool,
    /// Print the verdicts as JSON instead of tables
    #[arg(long)]
    pub json: bool,
}

impl Args {
    fn scale(&self) -> Scale {
        match self.full {
            true => Scale::Full,
            false => Scale::Quick,
        }
    }

    fn report(&self) -> PathBuf {
        let report = self.report.clone();
        report.unwrap_or_else(|| self.out.join("report"))
    }

    fn kind(&self) -> &'static str {
        match self.stored {
            Some(_) => "stored",
            None => self.scale().name(),
        }
    }
}

/// `weir-lab papers`.
pub fn run(args: &Args) -> Result<()> {
    let mut list = List::committed()?;
    list.keep_only(&args.only)?;
    if args.list {
        let text = match args.json {
            true => terminal::list_as_json(&list)?,
            false => terminal::list(&list)?,
        };
        show::print(&text);
        return Ok(());
    }
    let outcomes = match &args.stored {
        Some(folder) => stored(&list, folder)?,
        None => measure(&list, args)?,
    };
    let report = Report::of(args.kind(), list, outcomes)?;
    let page = write(&report, &args.report())?;
    show::print(&match args.json {
        true => terminal::as_json(&report)?,
        false => terminal::summary(&report),
    });
    eprintln!("weir-lab: wrote {}", page.display());
    end(&report)
}

fn write(report: &Report, folder: &Path) -> Result<PathBuf> {
    let what = || format!("cannot create folder {}", folder.display());
    std::fs::create_dir_all(folder).context(what())?;
    let path = folder.join("index.html");
    let what = || format!("cannot write {}", path.display());
    std::fs::write(&path, page::of(report)?).context(what())?;
    Ok(path)
}

/// A stop and failed experiments are errors of the command; verdicts are not.
pub(super) fn end(report: &Report) -> Result<()> {
    if interrupt::interrupted() {
        let hint = "the same command with --resume goes on";
        return Err(Error::interrupted().hint(hint));
    }
    let failed = report.outcomes.iter();
    let failed = failed.filter(|(_, outcome)| matches!(outcome, Outcome::Failed(_)));
    let names: Vec<&str> = failed.map(|(name, _)| name.as_str()).collect();
    match names.len() {
        0 => Ok(()),
        count => Err(
            Error::failed(format!("{count} experiments failed"), names.join(", "))
                .hint("the report has their errors; --resume tries them again"),
        ),
    }
}

/// Committed results of all runs that the parts need.
pub(super) fn stored(list: &List, folder: &Path) -> Result<Outcomes> {
    if !folder.is_dir() {
        let what = format!("cannot read the stored results in {}", folder.display());
        let hint = "run it in weir's sources, or give their folder: --stored WEIR/experiments";
        return Err(Error::usage(what, "there is no such folder").hint(hint));
    }
    let of = |name: &str| Ok((name.to_owned(), measured::stored(list.run(name)?, folder)));
    list.needed().into_iter().map(of).collect()
}

/// Measures all runs that the parts need, one after the other. After a stop those that are left have no results.
fn measure(list: &List, args: &Args) -> Result<Outcomes> {
    let scale = args.scale();
    let flags = RunFlags {
        resume: args.resume,
        weir: args.weir.clone(),
        ..RunFlags::default()
    };
    let names = list.needed();
    let mut clock = Clock::new(list, &names, scale)?;
    eprintln!(
        "weir-lab: papers: {} runs for {} parts, about {} on two cores",
        names.len(),
        list.parts.len(),
        in_words(clock.left())
    );
    let mut outcomes = Outcomes::new();
    for (index, name) in names.iter().enumerate() {
        if interrupt::interrupted() {
            let why = "it was stopped; --resume goes on";
            outcomes.insert((*name).to_owned(), Outcome::NotMeasured(why.into()));
            continue;
        }
        eprintln!(
            "\nweir-lab: papers {}/{}: {name}, for {}; about {}, {} left in all",
            index + 1,
            names.len(),
            parts_of(list, name),
            in_words(clock.of(index)),
            in_words(clock.left())
        );
        let begun = Instant::now();
        let folder = args.out.join(scale.name()).join(name);
        let outcome = measured::measure(list.run(name)?, scale, &folder, &flags);
        if let Outcome::Failed(why) | Outcome::NotPossible(why) = &outcome {
            eprintln!("weir-lab: papers: {name}: {why}");
        }
        clock.done(index, begun.elapsed());
        outcomes.insert((*name).to_owned(), outcome);
    }
    Ok(outcomes)
}

/// The parts that a run answers.
fn parts_of(list: &List, run: &str) -> String {
    let parts = list.parts.iter();
    let parts = parts.filter(|part| part.runs.iter().any(|name| name == run));
    let keys: Vec<&str> = parts.map(|part| part.key.as_str()).collect();
    keys.join(", ")
}
